"""Fixtures of databases and stores: PostgreSQL, MariaDB, S3, and the environment of Iceberg and Delta."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
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


DRIVERS = (
    *("PyMySQL==1.2.4", "mysql-connector-python==26.10.0", "apache-airflow-providers-mysql==6.7.1"),
    *("duckdb==2.0.1", "airflow-provider-duckdb==0.2.0", "pyodbc==5.5.0", "apache-airflow-providers-odbc==4.13.1"),
    *("JayDeBeApi==1.2.3", "JPype1==1.7.1", "apache-airflow-providers-jdbc==5.6.1"),
)


@pytest.fixture(scope="session")
def drivers() -> None:
    """Providers and drivers that are not in Airflow's environment, on the import path."""
    import airflow.providers
    from step_runner import REPOSITORY
    from uv import find_uv_bin

    folder = REPOSITORY / ".hops" / "databases"
    if not (folder / "jaydebeapi").exists():
        command = [find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--target", str(folder), *DRIVERS]
        subprocess.run(command, check=True)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        airflow.providers.__path__.append(str(folder / "airflow" / "providers"))


@pytest.fixture(scope="session")
def mariadb_port() -> Iterator[int]:
    """A MariaDB of this session whose time zone and characters are neither UTC nor UTF-8; it refuses to run as root."""
    install, server = (
        shutil.which("mariadb-install-db"),
        shutil.which("mariadbd", path=f"{os.environ['PATH']}:/usr/sbin"),
    )
    if install is None or server is None:
        pytest.skip("MariaDB is missing: apt-get install mariadb-server")
    with contextlib.ExitStack() as stack:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
        data = stack.enter_context(tempfile.TemporaryDirectory(prefix="hops-mariadb-", dir="/tmp"))
        user: list[str] = []
        if os.geteuid() == 0:
            user = ["runuser", "-u", "mysql", "--"]
            shutil.chown(data, "mysql")
        # A worker's own temporary folder, which TMPDIR names, may be its user's alone.
        options = ["--no-defaults", f"--datadir={data}", f"--tmpdir={data}"]
        command = [*user, install, *options, "--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(command, check=True, cwd="/", capture_output=True)
        options += [f"--port={port}", "--bind-address=127.0.0.1", f"--socket={data}/socket", "--skip-name-resolve"]
        options += ["--default-time-zone=+02:00", "--character-set-server=latin1", "--innodb-flush-log-at-trx-commit=0"]
        process = subprocess.Popen([*user, server, *options], cwd="/", stderr=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.terminate)

        def answers() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        wait_for(answers, "MariaDB answers", 60)
        yield port


@pytest.fixture
def mariadb(drivers: None, mariadb_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cursor of an empty database, which is also the Airflow connection ``warehouse``, with an odd password."""
    pymysql = importlib.import_module("pymysql")
    fields = {"host": "127.0.0.1", "port": mariadb_port, "login": "air'flow", "password": "S'ec@r/e:t%1\\ü"}
    connection = {"conn_type": "mysql", **fields, "schema": "shop", "extra": {"client": "mysql-connector-python"}}
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps(connection))
    root = pymysql.connect(host="127.0.0.1", port=mariadb_port, user="root", autocommit=True, charset="utf8mb4")
    with root, root.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE USER %s IDENTIFIED BY %s", (fields["login"], fields["password"]))
        cursor.execute("GRANT ALL ON *.* TO %s", (fields["login"],))
        cursor.execute("CREATE OR REPLACE DATABASE shop CHARACTER SET utf8mb4")
        cursor.execute("USE shop")
        cursor.execute("SET sql_mode = ''")  # allows dates such as 0000-00-00
        yield cursor


@pytest.fixture(scope="session")
def lake_runtime(runtime: Path) -> Path:
    """The named environment with pyiceberg and deltalake beside the runtime environment."""
    from airflow_hops.cli.runtime import find_uv
    from airflow_hops.runner.environments.named import make_named
    from airflow_hops.runner.environments.runtime import pins_file

    requirements = ["pyiceberg[sql-sqlite]==0.12.*", "deltalake==1.6.*"]
    make_named(runtime, "test-lake", requirements, pins_file(), uv=find_uv(), say=lambda line: None)
    return runtime.with_name(f"{runtime.name}-test-lake")


@pytest.fixture(scope="session")
def lake_launcher(lake_runtime: Path) -> Any:
    """Launches steps from a warm process in that environment."""
    return warm_launcher_in(Path(os.environ["AIRFLOW_HOME"], "warm-lake"), lake_runtime)
