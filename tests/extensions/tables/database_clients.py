"""Clients of databases: hooks by several drivers, and reads and writes through them as a worker's."""

from __future__ import annotations

import importlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.providers.common.sql.hooks.sql import DbApiHook

from airflow_hops.core.artifacts.artifact import Artifact, Producer, RowCounts
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.tables.core.tables import Table
from airflow_hops.extensions.tables.runner import query
from airflow_hops.extensions.tables.runner.write import write_rows

JDBC_DRIVER = Path("/usr/share/java/postgresql.jar")


def read(hook: Any, sql: str, folder: Path) -> pa.Table:
    """Reads a query as :func:`fetched` does."""
    folder.mkdir()
    with query.connected(hook, "connection 'odd'") as connection:
        rows = query.read_query(hook, connection, sql, folder, "connection 'odd'")
    table = pa.concat_tables([pq.read_table(path) for path in sorted(folder.iterdir())])
    assert table.num_rows == rows
    return table


def written_rows(store: ArtifactStore, table: pa.Table) -> Artifact:
    """An artifact with the rows in the folder ``eval``."""
    uri = store.uri("d", "r", "predict", "predictions")
    with store.create(uri, "predictions", Producer("d", "r", "predict")) as writer:
        (writer.path / "eval").mkdir()
        pq.write_table(table, writer.path / "eval" / "a.parquet", row_group_size=2)
        return writer.commit(rows={"eval": RowCounts(len(table), len(table))})


def write(store: ArtifactStore, rows: pa.Table, hook: Any, table: str = "kept", **params: Any) -> dict[str, Any]:
    """Writes rows to a table."""
    spec = StepSpec(
        "write", "", params, inputs={"rows": (written_rows(store, rows),)}, producer=Producer("d", "r", "w")
    )
    return write_rows(Table(conn_id="warehouse", name=table), spec, store, hook)


class Committing(sqlite3.Connection):
    """A connection that commits what is open when it is closed, as Oracle's driver of JDBC does."""

    def close(self) -> None:
        self.commit()
        super().close()


class Sqlite(DbApiHook):
    """SQLite as a database that is known by its hook alone."""

    conn_name_attr, conn_type, placeholder, escape_word_format = "odd_conn_id", "odd", "?", '"{}"'
    path: Path
    options: dict[str, Any] = {}  # of sqlite3.connect

    def get_conn(self) -> Any:
        return sqlite3.connect(self.path, factory=Committing, **self.options)


class PyMySql(DbApiHook):
    """MariaDB by PyMySQL, whose session is not in UTF-8."""

    conn_name_attr, conn_type, placeholder, escape_word_format = "odd_conn_id", "mysql", "%s", "`{}`"
    port: int
    options: dict[str, Any] = {}  # of pymysql.connect

    def get_conn(self) -> Any:
        fields = {"host": "127.0.0.1", "port": self.port, "user": "root", "database": "shop", "charset": "latin1"}
        return importlib.import_module("pymysql").connect(**fields, **self.options)


def odbc_hook(port: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A hook of PostgreSQL by psqlodbc."""
    if shutil.which("odbcinst") is None:
        pytest.skip("ODBC is missing: apt-get install unixodbc odbc-postgresql")
    fields = {"conn_type": "odbc", "host": "127.0.0.1", "port": port, "login": "airflow", "schema": "postgres"}
    monkeypatch.setenv("AIRFLOW_CONN_ODBC", json.dumps(fields))
    hook = importlib.import_module("airflow.providers.odbc.hooks.odbc").OdbcHook
    return hook("odbc", driver="PostgreSQL Unicode")


def jdbc_hook(port: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A hook of PostgreSQL by its JDBC driver."""
    if not JDBC_DRIVER.exists():
        pytest.skip("JDBC is missing: apt-get install libpostgresql-jdbc-java default-jre-headless")
    url = f"jdbc:postgresql://127.0.0.1:{port}/postgres"
    fields = {"conn_type": "jdbc", "host": url, "login": "airflow", "password": "x"}
    monkeypatch.setenv("AIRFLOW_CONN_JDBC", json.dumps(fields))
    hook = importlib.import_module("airflow.providers.jdbc.hooks.jdbc").JdbcHook
    return hook("jdbc", driver_path=str(JDBC_DRIVER), driver_class="org.postgresql.Driver")
