"""The contract of readers, for queries of SQLite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from airflow_hops.core.contract.sources import RowSource
from airflow_hops.extensions.tables import QuerySource
from airflow_hops.testing.sources import ReaderContract, SourceContract


class TestQuery(SourceContract, ReaderContract):
    fields = {"uri": "sql://warehouse", "sql": "SELECT * FROM flights", "key": ["id"], "time_column": "at"}
    rows = 3

    @pytest.fixture
    def source(self, tmp_path: Path) -> RowSource:
        path = tmp_path / "flights.sqlite"
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("CREATE TABLE flights (id INTEGER, at INTEGER)")
            database.executemany("INSERT INTO flights VALUES (?, ?)", [(1, 100), (2, 200), (3, 300)])
        query = QuerySource.from_value("flights", self.fields)
        return query.with_options({"warehouse": {"dialect": "sqlite", "path": str(path)}})
