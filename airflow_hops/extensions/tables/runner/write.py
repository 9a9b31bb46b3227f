"""Writes rows to a table of any database that a provider's hook connects to: by the worker, with the provider's driver.

The rows of a batch are replaced in one transaction, and read again before it ends: a value that the table does not keep
is found, whatever the database. In a database without transactions, a retry replaces what was half written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.tables.core.tables import BATCH, FOLDER, Table, batch_of, check_count, folders_of
from airflow_hops.extensions.tables.runner.failures import failing
from airflow_hops.extensions.tables.runner.query import connected, read_query
from airflow_hops.extensions.tables.runner.servers import MYSQL, POSTGRES, Server, is_jdbc, is_odbc, server_of

log = logging.getLogger(__name__)

_BATCH_ROWS = 1 << 14
_NAME = re.compile(r"\w+(\.\w+){0,2}")
_PLACE = "\0"
"""Place of a value in a statement, until it is in the driver's form."""
_MOST_BYTES = 63
"""Maximum length of a name in PostgreSQL, which cuts off the rest."""
_JSON = (pa.float32(), pa.float64(), pa.int64(), pa.string(), pa.bool_())
"""Types of values in lists, which a database gets as JSON."""
_NO_TRANSACTIONS = ("gcpbigquery",)


def write_rows(table: Table, spec: StepSpec, store: ArtifactStore, hook: Any) -> dict[str, object]:
    """Replaces the rows of a batch by those of the step's input ``rows``.

    Returns:
        ``columns``, the table's columns with the rows' types, and ``rows``, their number.

    Raises:
        BadInput: the table is missing, has other columns, or does not keep a value.
        HopsError: the database failed.
    """
    where = f"table {table.uri!r}"
    (artifact,) = spec.inputs["rows"]
    batch = spec.params.get("batch") or batch_of(store, artifact)
    if not isinstance(batch, str):
        raise BadInput(f"{where}: batch is {batch!r}; expected a text")
    folder = store.local(artifact)
    files = [(split, folder / path) for split, path in folders_of(store, artifact, spec.params.get("folders"))]
    schema = _schema([path for _, path in files], where)
    lock = store.internal("_state", "table_writes", hashlib.sha256(table.uri.encode()).hexdigest())
    # Two tries of a task would both delete the old rows before either has written its own.
    with store.files.lock(lock), opened_table(table, hook) as (session, connection):
        columns = session.columns(schema.names)
        for field in schema:
            if getattr(field.type, "tz", None) and session.server.utc is None:
                raise BadInput(
                    f"{where}: column {field.name!r} is {field.type}, and it is unknown how sessions of "
                    f"{session.server.name!r} get UTC; convert it to a time without a zone, or to text"
                )
        singles = [*(pa.types.is_float32(field.type) for field in schema), False, False]
        with temporary_folder("part") as written:
            count, values = session.replace(batch, columns, files, singles)
            chosen = ", ".join(session.quoted(column) for column in columns.values())
            sql, chosen_batch = session.of_batch(f"SELECT {chosen}", columns[BATCH], batch)
            check_count(table.uri, batch, read_query(hook, connection, sql, written, where, chosen_batch), count)
            read = _digests(_read(sorted(written.glob("*.parquet")), where), singles)
            _check_values(list(columns), values, read, where)
        connection.commit()
    log.info("%d rows in table %s, batch %s", count, table.uri, batch)
    types = {field.name: str(field.type) for field in schema} | {BATCH: "string", FOLDER: "string"}
    return {"columns": types, "rows": count}


@contextmanager
def opened_table(table: Table, hook: Any, *, writes: bool = True) -> Iterator[tuple[_Session, Any]]:
    """Yields a table and the connection, in a transaction that ends without a change unless it is committed."""
    where = f"table {table.uri!r}"
    if hook.conn_type in _NO_TRANSACTIONS:
        raise BadInput(f"{where}: {hook.conn_type} loads files, not rows; use an operator of its provider")
    with connected(hook, where) as opened, failing(where), _transaction(hook, opened) as connection:
        yield _Session(hook, connection, server_of(opened), table, writes=writes), connection


@contextmanager
def _transaction(hook: Any, connection: Any) -> Iterator[Any]:
    """Yields a connection all of whose cursors are in one transaction, which reads what others have committed."""
    if hasattr(connection, "to_arrow_reader"):  # DuckDB, whose cursors are sessions, which commit each statement
        with closing(connection.cursor()) as session:
            yield _OneCursor(session.begin())
        return
    if getattr(hook, "supports_autocommit", False) and hook.get_autocommit(connection):
        hook.set_autocommit(connection, False)
    connection.commit()  # what the session has got so far
    try:
        yield connection
    finally:
        with suppress(Exception):  # Oracle's driver of JDBC commits what is open when it is closed
            connection.rollback()


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
    def __init__(self, hook: Any, connection: Any, server: Server, table: Table, *, writes: bool) -> None:
        self._hook, self._connection, self.server, self._where = hook, connection, server, f"table {table.uri!r}"
        self._table = self._name(table.name or "")
        lock = f"hops {hashlib.sha256(self._table.encode()).hexdigest()[:32]}"
        for statement in server.begin if writes and not getattr(connection, "in_transaction", False) else ():
            with closing(connection.cursor()) as cursor:
                cursor.execute(statement.format(lock))
                cursor.fetchall() if cursor.description else None
        if server is MYSQL:
            self._check_engine()

    def _name(self, name: str) -> str:
        """Returns the table's name in SQL."""
        parts = name.split(".")
        if self.server is POSTGRES and len(parts) < 3 and all(0 < len(part.encode()) <= _MOST_BYTES for part in parts):
            return ".".join(map(self.quoted, parts))  # as it is written, with capitals
        if self.server is POSTGRES or not _NAME.fullmatch(name):
            raise BadInput(
                f"{self._where}: the name is {name!r}; expected 'table' or 'schema.table', of words (in PostgreSQL, of "
                f"any text of at most {_MOST_BYTES} bytes)"
            )
        return name

    def _check_engine(self) -> None:
        """Raises BadInput if a table of MySQL has no transactions, so that a refused batch would have lost its rows."""
        schema, _, name = self._table.rpartition(".")
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(
                "SELECT t.engine FROM information_schema.tables t JOIN information_schema.engines e USING (engine) "
                f"WHERE t.table_schema = COALESCE(NULLIF('{schema}', ''), DATABASE()) AND t.table_name = '{name}' "
                "AND e.transactions <> 'YES'"
            )
            for (engine,) in cursor.fetchall():
                raise BadInput(f"{self._where}: its engine {engine} has no transactions; ALTER TABLE … ENGINE=InnoDB")

    def quoted(self, column: str) -> str:
        """Returns an identifier, which is then taken as it is written."""
        form = str(self._hook.escape_word_format)
        return form.format(column.replace(form[-1], 2 * form[-1]))

    def _statement(self, text: str) -> str:
        """Returns a statement with the driver's places for values."""
        place = "?" if is_odbc(self._connection) or is_jdbc(self._connection) else str(self._hook.placeholder)
        parts = (text.replace("%", "%%") if place == "%s" else text).split(_PLACE)
        return parts[0] + "".join(re.sub("1$", str(n), place) + part for n, part in enumerate(parts[1:], 1))

    def of_batch(self, verb: str, column: str, batch: str) -> tuple[str, tuple[str, ...]]:
        """Returns a statement on the rows of a batch, and its values: texts are the same if their bytes are.

        Raises:
            BadInput: the database cannot compare bytes, and takes another batch of the table for this one.
        """
        name, as_bytes = self.quoted(column), self.server.as_bytes
        same = f"FROM {self._table} WHERE {name} = {_PLACE}"  # which an index may answer
        if as_bytes is not None:
            same += f" AND {as_bytes.format(name)} = {as_bytes.format(_PLACE)}"
            return self._statement(f"{verb} {same}"), (batch, batch)
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(self._statement(f"SELECT {name} {same}"), (batch,))
            while rows := cursor.fetchmany(_BATCH_ROWS):
                for (other,) in rows:
                    if other != batch:
                        raise BadInput(
                            f"{self._where}: the database takes batch {other!r} for {batch!r}; give its column "
                            f"{column!r} a collation that compares bytes, or write a batch of another name"
                        )
        return self._statement(f"{verb} {same}"), (batch,)

    def columns(self, names: Sequence[str], *, are_all: bool = True) -> dict[str, str]:
        """Returns the table's names of the columns, as databases differ in case; without rows, of the added ones."""
        wanted = [*names, BATCH, FOLDER]
        with closing(self._connection.cursor()) as cursor:
            try:
                with failing(self._where):
                    cursor.execute(f"SELECT * FROM {self._table} WHERE 1 = 0")
            except BadInput as error:
                text = f"{error}; if the table is missing, create it with the columns {', '.join(wanted)}"
                raise error.with_text(text) from None
            cursor.fetchall()
            known = {str(each[0]): str(each[0]) for each in cursor.description}
        folded = {name.casefold(): name for name in known if name not in wanted}
        columns = {name: known.get(name) or folded.get(name.casefold()) for name in wanted}
        alone = [("rows", name) for name, column in columns.items() if column is None]
        alone += [("table", name) for name in known if name not in columns.values() and names and are_all]
        for place, name in alone:
            raise BadInput(
                f"{self._where}: column {name!r} is in the {place} alone; create the table with the columns "
                f"{', '.join(wanted)}, the last two of which are texts"
            )
        return {name: str(column) for name, column in columns.items()}

    def replace(
        self, batch: str, columns: dict[str, str], files: Sequence[tuple[str, Path]], singles: Sequence[bool]
    ) -> tuple[int, list[int]]:
        """Writes the rows of files instead of those of a batch; returns their number, and digests of the values."""
        names = [self.quoted(column) for column in columns.values()]
        places = ", ".join(_PLACE for _ in names)
        insert = self._statement(f"INSERT INTO {self._table} ({', '.join(names)}) VALUES ({places})")
        count, digests = 0, [0] * (len(names) + 1)
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(*self.of_batch("DELETE", columns[BATCH], batch))
            for folder, path in files:
                for rows in _read([path], self._where):
                    values = [(*row, batch, folder) for row in rows]
                    cursor.executemany(insert, values)
                    count += len(values)
                    digests = [sum(pair) for pair in zip(digests, _digests([values], singles), strict=True)]
            if self.server is POSTGRES:
                cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # whose triggers may change rows, too
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
        is_json = getattr(field.type, "value_type", None) in _JSON
        if (pa.types.is_nested(field.type) and not is_json) or pa.types.is_duration(field.type):
            raise BadInput(
                f"{where} cannot hold column {field.name!r}, which is {field.type}; convert it, or leave it out"
            )
        if field.name in (BATCH, FOLDER):
            raise BadInput(f"{where}: the rows have a column {field.name!r}, which is reserved by the table; rename it")
    return first


def _read(paths: Sequence[Path], where: str) -> Iterator[list[tuple[Any, ...]]]:
    """Yields the rows of files, some at a time; times with a zone become those of UTC, without one.

    Raises:
        BadInput: Python does not hold a value, such as a time with nanoseconds.
    """
    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                yield list(
                    zip(*(_values(*each, where) for each in zip(batch.schema, batch.columns, strict=True)), strict=True)
                )


def _values(field: pa.Field, column: pa.Array, where: str) -> list[object]:
    try:
        if pa.types.is_timestamp(field.type):
            column = column.cast(pa.timestamp("us"))  # in UTC
        values: list[object] = column.to_pylist()
        if pa.types.is_nested(field.type):
            return [None if each is None else json.dumps(each, ensure_ascii=False, allow_nan=False) for each in values]
    except (ValueError, OverflowError) as error:
        raise BadInput(
            f"{where}: column {field.name!r}, {field.type}, has a value that a driver does not take: {error}; convert "
            "it where the artifact is made"
        ) from error
    return values


def _digests(batches: Iterable[list[tuple[object, ...]]], singles: Sequence[bool]) -> list[int]:
    """Returns sums of the hashes of each column's values, and of the rows; equal numbers have equal hashes.

    Values in columns of float32, which ``singles`` marks, are compared as such: databases return 0.1 for one.
    """
    sums = [0] * (len(singles) + 1)
    for rows in filter(None, batches):
        columns = zip(zip(*rows, strict=True), singles, strict=True)
        # A number's hash is linear, so that of [0.4, 0.6] would be that of [0, 1]; a tuple's is not.
        hashes = [list(map(hash, zip(_comparable_values(*each), strict=True))) for each in columns]
        parts = [*map(sum, hashes), sum(map(hash, zip(*hashes, strict=True)))]
        sums = [one + other for one, other in zip(sums, parts, strict=True)]
    return sums


def _comparable_values(values: Sequence[object], is_single: bool) -> Sequence[object]:
    if {*map(type, values)} <= {str, datetime, bool, type(None)}:
        return values
    return [_comparable(value, is_single) for value in values]


def _comparable(value: Any, is_single: bool) -> object:
    if is_single and isinstance(value, int | float | Decimal):
        with suppress(OverflowError):
            (value,) = struct.unpack("f", struct.pack("f", value))
    if value != value:
        return "NaN"
    if value == -1:  # whose hash is that of -2
        return (-1,)
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
            problem = f"column {name!r} does not keep" if name else "the rows do not keep"
            raise BadInput(
                f"{where}: {problem} the values that were written, such as all digits, NaN, trailing blanks or long "
                "texts; alter its type, or convert the column where the artifact is made"
            )
