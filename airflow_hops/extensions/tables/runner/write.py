"""Writes rows to a table of any database that a provider's hook connects to: by the worker, with the provider's driver.

The rows of a batch are replaced in one transaction, and read again before it ends: a value that the table does not keep
is found, whatever the database. In a database without transactions, a retry replaces what was half written.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.tables.core.tables import BATCH, FOLDER, Table, batch_of, check_count, folders_of
from airflow_hops.extensions.tables.runner.query import connected, failing, read_query

log = logging.getLogger(__name__)

_BATCH_ROWS = 1 << 14
_NAME = re.compile(r"\w+(\.\w+){0,2}")
_NO_TRANSACTIONS = ("gcpbigquery",)


def write_rows(table: Table, spec: StepSpec, store: ArtifactStore, hook: Any) -> dict[str, object]:
    """Replaces the rows of a batch by those of the step's input ``rows``.

    Returns:
        ``columns``, the table's columns with the rows' types, and ``rows``, their number.

    Raises:
        BadInput: the table is missing, has other columns, or does not keep a value.
        HopsError: the database failed.
    """
    where, name = f"table {table.uri!r}", table.name or ""
    if hook.conn_type in _NO_TRANSACTIONS:
        raise BadInput(f"{where}: {hook.conn_type} loads files, not rows; use an operator of its provider")
    if not _NAME.fullmatch(name):
        raise BadInput(f"{where}: the name is {name!r}; expected words, such as 'schema.table'")
    (artifact,) = spec.inputs["rows"]
    batch = spec.params.get("batch") or batch_of(store, artifact)
    if "\\" in batch:
        raise BadInput(
            f"{where}: batch is {batch!r}; expected a text without backslashes, which databases read differently"
        )
    folder = store.local(artifact)
    files = [(split, folder / path) for split, path in folders_of(store, artifact, spec.params.get("folders"))]
    schema = _schema([path for _, path in files], where)
    lock = store.internal("_state", "table_writes", hashlib.sha256(table.uri.encode()).hexdigest())
    # Two tries of a task would both delete the old rows before either has written its own.
    with (
        store.files.lock(lock),
        connected(hook, where) as opened,
        failing(where),
        _transaction(hook, opened) as connection,
    ):
        session = _Session(hook, connection, name, where)
        columns = session.columns(schema)
        with temporary_folder("part") as written:
            count, values = session.replace(batch, columns, files)
            chosen = ", ".join(session.quoted(column) for column in columns.values())
            text = batch.replace("'", "''")
            sql = f"SELECT {chosen} FROM {name} WHERE {session.quoted(columns[BATCH])} = '{text}'"
            check_count(table.uri, batch, read_query(hook, connection, sql, written, where), count)
            read = _digests(_read(sorted(written.glob("*.parquet"))), len(columns))
            _check_values(list(columns), values, read, where)
        connection.commit()
    log.info("%d rows in table %s, batch %s", count, table.uri, batch)
    return {"columns": {field.name: str(field.type) for field in schema}, "rows": count}


@contextmanager
def _transaction(hook: Any, connection: Any) -> Iterator[Any]:
    """Yields a connection all of whose cursors are in one transaction."""
    if hasattr(connection, "to_arrow_reader"):  # DuckDB, whose cursors are sessions, which commit each statement
        with closing(connection.cursor()) as session:
            yield _OneCursor(session.begin())
        return
    if getattr(hook, "supports_autocommit", False):
        connection.commit()  # some drivers refuse to change it in a transaction
        hook.set_autocommit(connection, False)
    yield connection


class _OneCursor:
    """A session of DuckDB as a connection with one cursor: itself."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def cursor(self) -> _OneCursor:
        return self

    def close(self) -> None:
        """Does nothing, as the transaction goes on."""


class _Session:
    def __init__(self, hook: Any, connection: Any, table: str, where: str) -> None:
        self._hook, self._connection, self._table, self._where = hook, connection, table, where

    def quoted(self, column: str) -> str:
        """Returns an identifier, which is then taken as it is written."""
        form = str(self._hook.escape_word_format)
        return form.format(column.replace(form[-1], 2 * form[-1]))

    def columns(self, schema: pa.Schema) -> dict[str, str]:
        """Returns the table's names of the columns, as databases differ in case; without rows, of the added ones."""
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(f"SELECT * FROM {self._table} WHERE 1 = 0")
            cursor.fetchall()
            known = {str(each[0]).casefold(): str(each[0]) for each in cursor.description}
        wanted = [*schema.names, BATCH, FOLDER]
        for name in [*wanted, *(known.values() if schema.names else ())]:
            if name.casefold() not in known or name.casefold() not in map(str.casefold, wanted):
                place = "rows" if name in wanted else "table"
                raise BadInput(
                    f"{self._where}: column {name!r} is in the {place} alone; create the table with the columns "
                    f"{', '.join(wanted)}, the last two of which are texts"
                )
        return {name: known[name.casefold()] for name in wanted}

    def replace(self, batch: str, columns: dict[str, str], files: Sequence[tuple[str, Path]]) -> tuple[int, list[int]]:
        """Writes the rows of files instead of those of a batch; returns their number, and digests of the values."""
        names = [self.quoted(column) for column in columns.values()]
        place = str(self._hook.placeholder)
        places = [re.sub("1$", str(number), place) for number, _ in enumerate(names, 1)]
        insert = f"INSERT INTO {self._table} ({', '.join(names)}) VALUES ("
        delete = f"DELETE FROM {self._table} WHERE {self.quoted(columns[BATCH])} = "
        if place == "%s":
            insert, delete = insert.replace("%", "%%"), delete.replace("%", "%%")
        count, digests = 0, [0] * (len(names) + 1)
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(delete + places[0], (batch,))
            for folder, path in files:
                for rows in _read([path]):
                    values = [(*row, batch, folder) for row in rows]
                    cursor.executemany(f"{insert}{', '.join(places)})", values)
                    count += len(values)
                    digests = [sum(pair) for pair in zip(digests, _digests([values], len(names)), strict=True)]
        return count, digests


def _schema(paths: Sequence[Path], where: str) -> pa.Schema:
    """Returns the one schema of all files, of types whose values a driver takes."""
    schemas = {path: pq.read_schema(path).remove_metadata() for path in paths}
    first = next(iter(schemas.values()), pa.schema([]))
    for path, schema in schemas.items():
        if schema != first:
            raise BadInput(
                f"{path}: its columns are {schema}, and {first} in other folders; name alike ones in 'folders'"
            )
    for field in first:
        kinds = pa.types
        if kinds.is_nested(field.type) or kinds.is_duration(field.type) or kinds.is_dictionary(field.type):
            raise BadInput(
                f"{where} cannot hold column {field.name!r}, which is {field.type}; convert it, or leave it out"
            )
        if field.name in (BATCH, FOLDER):
            raise BadInput(f"{where}: the rows have a column {field.name!r}, which is reserved by the table; rename it")
    return first


def _read(paths: Sequence[Path]) -> Iterator[list[tuple[Any, ...]]]:
    """Yields the rows of files, some at a time; times with a zone become those of UTC, without one."""
    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                yield list(zip(*(map(_plain, column.to_pylist()) for column in batch.columns), strict=True))


def _plain(value: Any) -> object:
    is_zoned = isinstance(value, datetime) and value.tzinfo is not None
    return value.astimezone(UTC).replace(tzinfo=None) if is_zoned else value


def _digests(batches: Iterable[list[tuple[object, ...]]], columns: int) -> list[int]:
    """Returns sums of the hashes of each column's values, and of the rows; equal numbers have equal hashes."""
    sums = [0] * (columns + 1)
    for rows in filter(None, batches):
        hashes = [[hash(_comparable(value)) for value in column] for column in zip(*rows, strict=True)]
        parts = [*map(sum, hashes), sum(map(hash, zip(*hashes, strict=True)))]
        sums = [one + other for one, other in zip(sums, parts, strict=True)]
    return sums


def _comparable(value: Any) -> object:
    if value != value:
        return "NaN"
    if isinstance(value, bytes):  # whose hash is that of its text
        return (value,)
    if isinstance(value, time):  # a duration in MySQL
        return timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
    is_day = isinstance(value, date) and not isinstance(value, datetime)
    return datetime(value.year, value.month, value.day) if is_day else value


def _check_values(columns: Sequence[str], written: Sequence[int], read: Sequence[int], where: str) -> None:
    """Raises BadInput if the table's values are not those that were written."""
    for name, one, other in zip([*columns, None], written, read, strict=True):
        if one != other:
            what = f"column {name!r} does not keep" if name else "the rows do not keep"
            raise BadInput(
                f"{where}: {what} the values that were written, such as all digits, NaN, trailing blanks or long "
                "texts; alter its type, or convert the column where the artifact is made"
            )
