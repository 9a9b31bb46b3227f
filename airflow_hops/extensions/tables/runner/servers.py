"""Databases behind drivers: how a session gets UTC and one state, and how it compares texts by their bytes.

One driver, such as of ODBC or JDBC, leads to many databases, so a database is recognised by its own name where the
driver tells it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Server:
    """A database, and the statements that its sessions get.

    Attributes:
        name: Its name.
        utc: Gives a session UTC, in which it compares and returns times; empty if its times have no zones, None if
            unknown.
        snapshot: Begins a transaction, all of whose queries read one state.
        begin: Begin a write: no autocommit, and a lock with the name ``{}`` against other writers of the table.
        as_bytes: Expression for the bytes of the text ``{}``; None if unknown.
        changed_times: Expression for the number of nulls of a column ``{0}``, and of times that drivers change.
    """

    name: str
    utc: str | None = None
    snapshot: str | None = None
    begin: tuple[str, ...] = ()
    as_bytes: str | None = None
    changed_times: str | None = None


MYSQL = Server(
    "mysql",
    "SET SESSION time_zone = '+00:00'",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    ("SET autocommit = 0", "SELECT GET_LOCK('{}', 86400)"),
    "CAST(CONVERT({} USING utf8mb4) AS BINARY)",  # also of a column in latin1
    "SUM(CAST({0} AS CHAR) IS NULL)",  # 0000-00-00, of which drivers make nulls
)
POSTGRES = Server(
    "postgresql",
    "SET timezone TO 'UTC'",
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    ("SELECT pg_advisory_xact_lock(hashtextextended('{}', 0))",),
    "convert_to(CAST({} AS text), 'UTF8')",
    # psqlodbc 13.02 makes 9999-12-31 or this day of infinity, and years from 1 to 9999 of others
    "SUM(CASE WHEN {0} >= DATE '0001-01-01' AND {0} < DATE '10000-01-01' THEN 0 ELSE 1 END)",
)
SQLITE = Server("sqlite", "", begin=("BEGIN IMMEDIATE",), as_bytes="CAST({} AS BLOB)")
_SERVERS = (
    MYSQL,
    # Each cursor of DuckDB is a session, which begins with the global settings.
    Server("duckdb", "SET GLOBAL TimeZone = 'UTC'", as_bytes="encode(CAST({} AS VARCHAR))"),
    Server("redshift", "SET timezone TO 'UTC'"),
    POSTGRES,
    SQLITE,
    Server("oracle", "ALTER SESSION SET TIME_ZONE = 'UTC'"),
    Server("snowflake", "ALTER SESSION SET TIMEZONE = 'UTC'"),
    Server("databricks", "SET TIME ZONE 'UTC'"),
    Server("sql server", ""),
)
_BY_PACKAGE = {
    **dict.fromkeys(["MySQLdb", "mysql", "pymysql", "mariadb"], "mysql"),
    **dict.fromkeys(["psycopg", "psycopg2", "pg8000"], "postgresql"),
    **{"redshift_connector": "redshift", "oracledb": "oracle", "sqlite3": "sqlite"},
    **dict.fromkeys(["pymssql", "mssql_python"], "sql server"),
}
_SQL_DBMS_NAME = 17
"""Information type of ODBC."""


def is_jdbc(connection: object) -> bool:
    """Returns whether a connection is JDBC's, by JayDeBeApi."""
    return hasattr(connection, "jconn")


def is_odbc(connection: object) -> bool:
    """Returns whether a connection is ODBC's, by pyodbc."""
    return hasattr(connection, "getinfo")


def package_of(connection: object) -> str:
    """Returns the name of a driver's package."""
    return type(connection).__module__.partition(".")[0].lstrip("_")


def server_of(connection: Any) -> Server:
    """Returns the database behind a connection; of an unknown one, its name alone."""
    if is_jdbc(connection):
        name = str(connection.jconn.getMetaData().getDatabaseProductName())
    elif is_odbc(connection):
        name = str(connection.getinfo(_SQL_DBMS_NAME))
    elif hasattr(connection, "adbc_get_info"):
        name = str(connection.adbc_get_info().get("vendor_name"))
    else:
        packages = [base.__module__.partition(".")[0].lstrip("_") for base in type(connection).__mro__]
        name = next((_BY_PACKAGE[package] for package in packages if package in _BY_PACKAGE), packages[0])
    if name == POSTGRES.name:  # whose drivers also lead to Redshift, CockroachDB and others
        with connection.cursor() as cursor:
            cursor.execute("SELECT version()")
            name = str(cursor.fetchall()[0][0])
    folded = name.casefold().replace("mariadb", "mysql")
    return next((server for server in _SERVERS if server.name in folded), Server(name))
