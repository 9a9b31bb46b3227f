"""Fixtures of databases and stores: PostgreSQL, SQLite, S3, and the environment of Iceberg and Delta."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from step_runner import warm_launcher_in
from waiting import wait_for


@pytest.fixture(scope="session")
def postgres_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A PostgreSQL of this session, which refuses to run as root."""
    import psycopg

    from demo.production import find_program

    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.socket())
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        sock.close()
        data = stack.enter_context(tempfile.TemporaryDirectory(prefix="hops-postgres-", dir="/tmp"))
        user: list[str] = []
        if os.geteuid() == 0:
            user = ["runuser", "-u", "postgres", "--"]
            shutil.chown(data, "postgres")
        initdb = [*user, find_program("initdb"), "-D", data, "-U", "airflow", "--auth=trust"]
        subprocess.run(initdb, check=True, cwd="/", capture_output=True)
        options = ["-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", "", "-c", "fsync=off"]
        server = subprocess.Popen([*user, find_program("postgres"), *options], cwd="/", stderr=subprocess.DEVNULL)
        stack.callback(server.wait)
        stack.callback(server.terminate)

        def answers() -> bool:
            with contextlib.suppress(psycopg.OperationalError), connected(port):
                return True
            return False

        wait_for(answers, "PostgreSQL answers", 60)
        yield port


def connected(port: int) -> Any:
    import psycopg

    return psycopg.connect(f"host=127.0.0.1 port={port} user=airflow dbname=postgres", autocommit=True)


@pytest.fixture
def postgres(postgres_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A connection to an empty schema, which is also the Airflow connection ``warehouse``."""
    value = f"postgres://airflow:S%27ecret%5C1@127.0.0.1:{postgres_port}/postgres?connect_timeout=5"
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", value)
    with connected(postgres_port) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        yield connection


@pytest.fixture
def sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sqlite3.Connection]:
    """A connection to a database, which is also the Airflow connection ``warehouse``."""
    path = tmp_path / "it's a ware?house.db"
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", f'{{"conn_type": "sqlite", "host": "{path}"}}')
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    yield connection
    connection.close()


@pytest.fixture(scope="session")
def lake_runtime(runtime: Path) -> Path:
    """The named environment with pyiceberg and deltalake beside the runtime environment."""
    from airflow_hops.cli.runtime import find_uv
    from airflow_hops.environments.named import make_named
    from airflow_hops.environments.runtime import pins_file

    requirements = ["pyiceberg[sql-sqlite]==0.12.*", "deltalake==1.6.*"]
    make_named(runtime, "test-lake", requirements, pins_file(), uv=find_uv(), say=lambda line: None)
    return runtime.with_name(f"{runtime.name}-test-lake")


@pytest.fixture(scope="session")
def lake_launcher(lake_runtime: Path) -> Any:
    """Launches steps from a warm process in that environment."""
    return warm_launcher_in(Path(os.environ["AIRFLOW_HOME"], "warm-lake"), lake_runtime)
