"""Rows of a query of any database that a provider's hook connects to, read by the worker into an artifact of the store.

The rows are there while the step that reads them runs. All rows are read before any is written to the store: only then
their types are known, and a connection that fails leaves nothing.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.parquet_writer import parquet_writer
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.times import window_time
from airflow_hops.extensions.tables.core.sources import QuerySource, name_of_query
from airflow_hops.extensions.tables.runner.columns import Column, check_duckdb_types, columns_of
from airflow_hops.extensions.tables.runner.failures import failing
from airflow_hops.extensions.tables.runner.jdbc import return_exact_values, type_names
from airflow_hops.extensions.tables.runner.servers import (
    MYSQL,
    POSTGRES,
    Server,
    is_jdbc,
    is_odbc,
    package_of,
    server_of,
)

log = logging.getLogger(__name__)

_BATCH_ROWS = 1 << 14
_FILE_ROWS = 1 << 20
_REPORTED_ROWS = 1 << 20
_UNREADABLE = ("halffloat", "string_view", "binary_view")
"""Types that a step's Arrow, which may be older, does not read."""
_DAYS = ("date", "datetime", "zoned", "moment")
_WINDOW = re.compile(r"(?<![:\w]):(window_start|window_end)\b")
_PROVIDERS = {
    "databricks": "databricks", "druid": "apache-druid", "drill": "apache-drill", "exasol": "exasol",
    "gcpbigquery": "google", "hiveserver2": "apache-hive", "jdbc": "jdbc", "mssql": "microsoft-mssql",
    "mysql": "mysql", "odbc": "odbc", "oracle": "oracle", "postgres": "postgres", "presto": "presto",
    "redshift": "amazon",
    "snowflake": "snowflake", "teradata": "teradata", "trino": "trino", "vertica": "vertica",
}  # fmt: skip
"""Airflow's providers by type of connection, without ``apache-airflow-providers-``."""
_OTHER_PROVIDERS = {"duckdb": "airflow-provider-duckdb", "clickhouse": "airflow-clickhouse-plugin"}


def hook_of(connection: Any) -> Any:
    """Returns the hook of a connection of a database.

    Raises:
        BadInput: its provider or driver is not installed, or is not one of a database.
    """
    from airflow.sdk import BaseHook

    kind, where = connection.conn_type, f"connection {connection.conn_id!r}"
    package = _OTHER_PROVIDERS.get(kind) or f"apache-airflow-providers-{_PROVIDERS.get(kind, '…')}"
    try:
        from airflow.providers.common.sql.hooks.sql import DbApiHook

        hook = BaseHook.get_hook(connection.conn_id)
    except Exception as error:  # Airflow's own class, or an ImportError of the provider
        raise BadInput(
            f"{where}: its type {kind!r} has no hook ({error}); install the provider {package!r} beside Airflow"
        ) from error
    if not isinstance(hook, DbApiHook):
        raise BadInput(
            f"{where}: it is of type {kind!r}, whose hook {type(hook).__name__} is not one of a database (DbApiHook)"
        )
    return hook


@contextmanager
def connected(hook: Any, where: str) -> Iterator[Any]:
    """Yields a connection of a hook, in UTC and one state of the database where this is known of it.

    Raises:
        BadInput: it is MySQL behind a driver for many databases.
    """
    with failing(where), _closing(hook.get_conn()) as connection:
        server = server_of(connection)
        if server.utc:
            _execute(connection, server.utc)
        if server is MYSQL:
            if is_odbc(connection) or is_jdbc(connection):
                raise BadInput(f"{where}: ODBC and JDBC change values of {server.name}; use a connection of type mysql")
            _set_characters(connection, where)
        if is_jdbc(connection):
            return_exact_values(connection, where)
        elif server.snapshot is not None:
            connection.commit()  # what the session has got so far
            _execute(connection, server.snapshot)
        yield connection


def _execute(connection: Any, statement: str) -> None:
    with _closing(connection.cursor()) as cursor:
        cursor.execute(statement)


@contextmanager
def _closing(item: Any) -> Iterator[Any]:
    """Closes a connection or cursor at the end, which may fail for one that is dead or has unread rows."""
    try:
        yield item
    finally:
        with suppress(Exception):
            item.close()


def _set_characters(connection: Any, where: str) -> None:
    """Sets a session of MySQL to UTF-8, as it converts text to the session's characters."""
    with suppress(AttributeError):
        connection.set_character_set("utf8mb4")
    with _closing(connection.cursor()) as cursor:
        cursor.execute("SELECT @@character_set_results")
        [[characters]] = cursor.fetchall()
    if characters != "utf8mb4":
        raise BadInput(
            f"{where}: the session's characters are {characters!r}, which hold not all text; set 'charset' to "
            "'utf8mb4' in the connection's extra"
        )


def rows_of(hook: object, query: str, where: str) -> list[list[Any]]:
    """Returns the first two rows of a small query."""
    with connected(hook, where) as connection, _closing(connection.cursor()) as cursor:
        cursor.execute(query)
        return [list(row) for row in cursor.fetchmany(2)]


def in_window(sql: str, window: tuple[str | None, str | None], where: str) -> str:
    """Returns a query with the bounds of a window, as texts in UTC, for ``:window_start`` and ``:window_end``.

    Raises:
        BadInput: the query names a bound that the window does not have.
    """
    bounds = dict(zip(("window_start", "window_end"), window, strict=True))

    def literal(match: re.Match[str]) -> str:
        bound = window_time(match[1], bounds[match[1]])
        if bound is None:
            raise BadInput(f"{where}: the query names :{match[1]}, and the task has none; set {match[1]!r}")
        return f"'{bound.astimezone(UTC).replace(tzinfo=None).isoformat(' ')}'"

    return _WINDOW.sub(literal, sql)


@contextmanager
def fetched(source: QuerySource, spec: StepSpec, store: ArtifactStore, hook: object) -> Iterator[Artifact]:
    """Yields an artifact with the rows of a query, in files that sort in the rows' order; removes it at the end.

    Raises:
        BadInput: the query is refused, or a column or value cannot be used.
        HopsError: the database failed.
    """
    where = name_of_query(source, source.sql)
    window = spec.params.get("window_start"), spec.params.get("window_end")
    sql = in_window(source.sql.strip().rstrip(";"), window, where)
    identity = hashlib.sha256(f"{source.conn_id} {source.sql}".encode()).hexdigest()[:12]
    uri = store.address(spec.producer, f"rows-{identity}")
    try:
        with store.create(uri, "rows", spec.producer) as writer:
            with connected(hook, where) as connection:
                rows = read_query(hook, connection, sql, writer.path, where)
            log.info("%s: %d rows", where, rows)
            artifact = writer.commit(rows={"rows": RowCounts(rows, rows)})
        yield artifact
    finally:
        store.remove_folder(uri)


def read_query(hook: Any, connection: object, sql: str, folder: Path, where: str, values: Sequence[object] = ()) -> int:
    """Writes the rows of a query, with values for its places, to ``part-*.parquet`` in a folder, in their order.

    Returns:
        Their number.

    Raises:
        BadInput: the query returns no columns, or two of one name, or values that no snapshot holds.
    """
    if getattr(hook, "conn_type", "") == "gcpbigquery":  # the cursor of Airflow's hook returns times as floats
        result = hook.get_client().query(sql).result()
        return _write_arrow(result.to_arrow_iterable() if result.total_rows else [result.to_arrow()], folder, where)
    with _closing(_streaming_cursor(connection)) as cursor:
        if hasattr(cursor, "to_arrow_reader"):  # DuckDB, whose "execute" makes all rows before the first is read
            if (relation := cursor.sql(sql, **({"params": list(values)} if values else {}))) is None:
                columns_of(None, connection, where)
            check_duckdb_types(relation.columns, relation.types, where)
            return _write_arrow(relation.to_arrow_reader(_BATCH_ROWS), folder, where)
        arguments = (sql, tuple(values)) if values else (sql,)
        cursor.execute(*arguments)
        if hasattr(cursor, "fetch_record_batch"):  # ADBC
            return _write_arrow(cursor.fetch_record_batch(), folder, where)
        if hasattr(cursor, "fetchmany_arrow"):  # Databricks
            return _write_arrow(_fetched_tables(cursor), folder, where)
        with temporary_folder("part") as spooled:
            types = partial(_type_names, connection, cursor, arguments)
            columns, batches = _spool(cursor, connection, types, spooled, where)
            _check_times(connection, columns, arguments, where)
            schema = pa.schema([(column.name, column.type()) for column in columns])

            def converted() -> Iterator[pa.RecordBatch]:
                yield pa.RecordBatch.from_pylist([], schema)  # types of no rows
                for number in range(batches):
                    values = pickle.loads((spooled / str(number)).read_bytes())
                    arrays = map(Column.array, columns, values, schema.types)
                    yield pa.RecordBatch.from_arrays(list(arrays), schema=schema)

            return _write_arrow(converted(), folder, where)


def _streaming_cursor(connection: Any) -> Any:
    """Returns a cursor that does not read all rows at once, where the driver's usual one does."""
    package = package_of(connection)
    streaming = getattr(sys.modules.get(f"{package}.cursors"), "SSCursor", None)  # mysqlclient, PyMySQL
    if streaming is not None:
        return connection.cursor(streaming)
    return connection.cursor("hops") if package in ("psycopg", "psycopg2") else connection.cursor()


def _type_names(connection: Any, cursor: Any, arguments: tuple[Any, ...]) -> Sequence[str]:
    """Returns the database's names for the types of a query's columns, which descriptions of ODBC and JDBC lack."""
    if is_jdbc(connection):
        return type_names(cursor)
    if not is_odbc(connection) or server_of(connection) is not POSTGRES:
        return ()
    sql, *values = arguments
    types = ", ".join(f"pg_typeof({_quoted(POSTGRES, entry[0])})" for entry in cursor.description)
    with _closing(connection.cursor()) as other:
        other.execute(f"SELECT {types} FROM (\n{sql}\n) AS hops_source LIMIT 1", *values)
        return [str(name) for row in other.fetchall() for name in row]


def _quoted(server: Server, name: str) -> str:
    quote = "`" if server is MYSQL else '"'
    return quote + name.replace(quote, 2 * quote) + quote


def _spool(
    cursor: Any, connection: object, types: Callable[[], Sequence[str]], folder: Path, where: str
) -> tuple[list[Column], int]:
    """Writes the values of each batch to a file of its number; returns the columns and the number of batches."""
    is_described_late = type(cursor).__module__.startswith("psycopg2")
    batch = cursor.fetchmany(_BATCH_ROWS) if cursor.description or is_described_late else []
    columns = columns_of(cursor.description, connection, where)
    if names := types():
        columns = columns_of(cursor.description, connection, where, names)
    number = rows = 0
    while batch:
        if isinstance(batch[0], Mapping):
            raise BadInput(f"{where}: the cursor returns mappings; remove 'cursor' from the connection's extra")
        values = [column.add(each) for column, each in zip(columns, zip(*batch, strict=True), strict=True)]
        (folder / str(number)).write_bytes(pickle.dumps(values))
        number, rows = number + 1, rows + len(batch)
        if rows % _REPORTED_ROWS < len(batch):
            log.info("%s: %d rows read", where, rows)
        batch = cursor.fetchmany(_BATCH_ROWS)
    return columns, number


def _check_times(connection: Any, columns: Sequence[Column], arguments: tuple[Any, ...], where: str) -> None:
    """Raises BadInput if there are times among the rows that the driver changes, such as 0000-00-00 and infinity."""
    server = server_of(connection)
    if server.changed_times is None or not (server is MYSQL or is_odbc(connection)):
        return
    times = [column for column in columns if column.declared in _DAYS and (column.nulls or server is not MYSQL)]
    if not times:
        return
    sql, *values = arguments
    counts = ", ".join(server.changed_times.format(_quoted(server, column.name)) for column in times)
    with _closing(connection.cursor()) as cursor:
        cursor.execute(f"SELECT {counts} FROM (\n{sql}\n) AS hops_source", *values)
        [changed] = cursor.fetchall()
    for column, count in zip(times, changed, strict=True):
        if (number := abs(int(count or 0) - column.nulls)) > 0:
            raise BadInput(
                f"{where}: column {column.name!r} has {number} times such as 0000-00-00, infinity or of the year "
                f"20000, which the driver changes; replace them in the query, such as by NULLIF, or cast it to text"
            )


def _fetched_tables(cursor: Any) -> Iterator[pa.Table]:
    yield (table := cursor.fetchmany_arrow(_BATCH_ROWS))
    while table.num_rows:
        yield (table := cursor.fetchmany_arrow(_BATCH_ROWS))


def _write_arrow(batches: Iterable[pa.RecordBatch | pa.Table], folder: Path, where: str) -> int:
    """Writes the rows of a driver that returns Arrow's tables or batches; returns their number."""
    first = getattr(batches, "schema", None)  # a reader has it also without rows
    parts = None if first is None else _Parts(folder, _checked(first, where), where)
    for batch in batches:
        parts = parts or _Parts(folder, _checked(batch.schema, where), where)
        parts.write(batch)
    if parts is None:
        raise HopsError(f"{where}: the driver returned neither rows nor types")
    parts.close()
    return parts.rows


def _checked(schema: pa.Schema, where: str) -> pa.Schema:
    columns_of([(name, None) for name in schema.names], None, where)
    for field in schema:
        if str(field.type) in _UNREADABLE:
            raise BadInput(f"{where}: column {field.name!r} is {field.type} in Arrow; cast it in the query")
    return schema


class _Parts:
    """Writer of files of many rows; the first is there also without rows."""

    def __init__(self, folder: Path, schema: pa.Schema, where: str) -> None:
        self._folder, self._schema, self._where = folder, schema, where
        self._number = self.rows = 0
        self._open()

    def _open(self) -> None:
        path = self._folder / f"part-{self._number:05}.parquet"
        try:
            self._writer = parquet_writer(path, self._schema, version="2.6", compression="snappy")
        except pa.ArrowNotImplementedError as error:
            raise BadInput(f"{self._where}: {error}; cast the column in the query, such as to text") from error
        self._number += 1

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Adds rows."""
        if rows.schema != self._schema:
            raise BadInput(f"{self._where}: the driver's types changed from {self._schema} to {rows.schema}; add casts")
        if self.rows >= self._number * _FILE_ROWS:
            self._writer.close()
            self._open()
        for name, column in zip(self._schema.names, rows.columns, strict=True):
            if pa.types.is_decimal(column.type):
                self._check_digits(name, column)
        self._writer.write_table(pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows)
        self.rows += rows.num_rows

    def _check_digits(self, name: str, column: pa.Array | pa.ChunkedArray) -> None:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise BadInput(f"{self._where}: column {name!r}: {error}; cast it in the query, such as to text") from error

    def close(self) -> None:
        """Completes the last file."""
        self._writer.close()
