"""Rows of a query of SQLite, read by one connection in one transaction."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.tables.core.sources import QuerySource
from airflow_hops.extensions.tables.ml.read.open_table import (
    OpenTable,
    check_duplicates,
    columns_to_read,
    duplicates,
    failing_as,
    name_of_query,
    quoted,
    subquery,
    window_conditions,
)
from airflow_hops.ml.ingest.window import Window
from airflow_hops.ml.readers.types import Types

_BATCH_ROWS = 1 << 16
_PATIENCE_S = 60.0
_FAULTS_OF_USERS = ("ERROR", "CANTOPEN", "NOTADB", "READONLY", "MISMATCH", "CONSTRAINT", "TOOBIG")
_TYPES = {"integer": pa.int64(), "real": pa.float64(), "text": pa.string(), "blob": pa.binary()}


@contextmanager
def session(path: str, where: str, *, write: bool = False) -> Iterator[sqlite3.Connection]:
    """Opens the database at a path in a transaction, which only reads unless ``write`` is set.

    Raises:
        BadInput: SQLite refuses a statement.
        HopsError: the database is locked, or cannot be read.
    """
    uri = f"file:{quote(path)}?mode=rw"  # a reader may also have to roll back a killed writer's transaction

    def is_bad(error: Exception) -> bool:
        # Errors raised by Python's sqlite3 itself have no name, such as those for text that is not UTF-8.
        return getattr(error, "sqlite_errorname", "SQLITE_ERROR").removeprefix("SQLITE_").startswith(_FAULTS_OF_USERS)

    with (
        failing_as(where, sqlite3.Error, is_bad=is_bad),
        closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_PATIENCE_S)) as connection,
    ):
        connection.execute(f"PRAGMA query_only = {not write}")
        connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
        yield connection


@contextmanager
def opened(source: QuerySource, window: Window, _state: str) -> Iterator[OpenTable]:
    """Opens a query, for the rows in a window if its times are integers, and else for all rows.

    Raises:
        BadInput: the query is refused, a column holds values of several types, or a key occurs twice.
        HopsError: the database is locked, or cannot be read.
    """
    where, sql = name_of_query(source, source.sql), source.sql
    if source.num_partitions > 1:
        raise BadInput(
            f"{where}: SQLite does not share a transaction among connections, so num_partitions must be 1; found "
            f"{source.num_partitions}"
        )
    with session(source.storage_options["path"], where) as connection:
        names = [name for name, *_ in connection.execute(subquery(["*"], sql) + " LIMIT 0").description]
        _check_names(names, where)
        wanted = columns_to_read(source, names, where)
        types = _types(connection, sql, wanted, where)
        conditions: list[str] = []
        if source.time_column is not None and pa.types.is_integer(types[source.time_column]):
            conditions = window_conditions(source.time_column, window, lambda time: str(math.ceil(time.timestamp())))
        if source.key:
            check_duplicates(connection.execute(duplicates(source, conditions)).fetchall(), source, where)

        def row_of(columns: Sequence[str], conditions: Sequence[str] = ()) -> Any:
            return connection.execute(subquery(columns, sql, conditions)).fetchone()

        time = quoted(source.time_column or "")
        without_time = row_of(["count(*)"], [f"{time} IS NULL"])[0] if conditions else 0
        query = subquery([quoted(name) for name in wanted], sql, conditions)
        read = partial(_read, connection, query, types, where)
        yield OpenTable(
            where,
            types,
            [None],
            read,
            without_time=without_time,
            span=lambda: row_of([f"CAST({end}({time}) AS TEXT)" for end in ("min", "max")]),
            in_this_process=True,
        )


def state_of(source: QuerySource) -> list[object]:
    """Returns the rows of the source's ``version`` query."""
    with session(source.storage_options["path"], name_of_query(source, source.version)) as connection:
        return connection.execute(source.version or "").fetchall()


def _check_names(names: Sequence[str], where: str) -> None:
    """Raises BadInput if two columns have one name: SQLite, which ignores case, calls the second ``name:1``."""
    seen: set[str] = set()
    for number, name in enumerate(names, 1):
        original, _, suffix = name.rpartition(":")
        if suffix.isdigit() and original.lower() in seen:
            raise BadInput(
                f"{where}: column {number} ({original!r}) has the name of an earlier column; rename it, or leave it out"
            )
        seen.add(name.lower())


def _types(connection: sqlite3.Connection, sql: str, names: Sequence[str], where: str) -> Types:
    """Returns the types of all values of each column, which SQLite does not restrict to one."""
    columns = [f"group_concat(DISTINCT typeof({quoted(name)}))" for name in names]
    listed = connection.execute(subquery(columns, sql)).fetchone()
    types: Types = {}
    for name, text in zip(names, listed, strict=True):
        kinds = [kind for kind in _TYPES if kind in (text or "").split(",")]
        if len(kinds) > 1 and kinds != ["integer", "real"]:
            raise BadInput(
                f"{where}: column {name!r} holds values of the types {' and '.join(kinds)}; cast it in the query, as "
                f"CAST({name} AS TEXT)"
            )
        types[name] = _TYPES[kinds[-1]] if kinds else pa.null()
    return types


def _read(
    connection: sqlite3.Connection, query: str, types: Types, where: str, _part: None
) -> Iterator[pa.RecordBatch]:
    cursor = connection.execute(query)
    while rows := cursor.fetchmany(_BATCH_ROWS):
        arrays = [
            _array(values, *item, where) for values, item in zip(zip(*rows, strict=True), types.items(), strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, list(types))


def _array(values: Sequence[object], name: str, type_: pa.DataType, where: str) -> pa.Array:
    try:
        return pa.array(values, type_)
    except pa.ArrowInvalid as error:  # integers among reals
        raise BadInput(
            f"{where}: column {name!r} holds reals, and an integer that no real represents: {error}"
        ) from error
