"""Writes to a table of SQLite."""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.extensions.tables.core.tables import BATCH, Table, check_count
from airflow_hops.extensions.tables.ml.read.open_table import quoted
from airflow_hops.extensions.tables.ml.read.sqlite import session
from airflow_hops.extensions.tables.ml.write.table_writer import TableWriter
from airflow_hops.ml.readers.types import converted

log = logging.getLogger(__name__)


@contextmanager
def opened(table: Table) -> Iterator[TableWriter]:
    """Opens a table in a transaction, which ends with the ``with`` block.

    Raises:
        BadInput: SQLite refuses a statement or a value.
        HopsError: the database is locked, or cannot be written.
    """
    with session(table.storage_options["path"], f"table {table.uri!r}", write=True) as connection:
        yield _SqliteTable(connection, table)
        connection.execute("COMMIT")


class _SqliteTable:
    version: str | None = None

    def __init__(self, connection: sqlite3.Connection, table: Table) -> None:
        self._connection, self._name, self._uri = connection, table.name or "", table.uri

    def type_of(self, type_: pa.DataType) -> str | None:
        kinds = pa.types
        if kinds.is_integer(type_) or kinds.is_boolean(type_):
            return "INTEGER"
        if kinds.is_floating(type_):
            return "REAL"
        if kinds.is_string(type_) or kinds.is_date(type_) or kinds.is_timestamp(type_) or kinds.is_decimal(type_):
            return "TEXT"
        return "BLOB" if kinds.is_binary(type_) else None

    def columns(self) -> dict[str, str] | None:
        # With hidden columns, so that generated ones are not overlooked
        rows = self._connection.execute("SELECT name, upper(type) FROM pragma_table_xinfo(?)", (self._name,))
        return dict(rows.fetchall()) or None

    def create(self, schema: pa.Schema) -> None:
        columns = [f"{quoted(field.name)} {self.type_of(field.type)}" for field in schema]
        self._connection.execute(f"CREATE TABLE {quoted(self._name)} ({', '.join(columns)})")
        index = quoted(f"{self._name} {BATCH}")
        self._connection.execute(f"CREATE INDEX {index} ON {quoted(self._name)} ({quoted(BATCH)})")

    def replace(self, batch: str, schema: pa.Schema | None, rows: Iterator[pa.RecordBatch]) -> None:
        table = quoted(self._name)
        self._connection.execute(f"DELETE FROM {table} WHERE {quoted(BATCH)} = ?", (batch,))
        self._check_count(batch, 0)
        names = [] if schema is None else schema.names
        insert = f"INSERT INTO {table} ({', '.join(map(quoted, names))}) VALUES ({', '.join('?' * len(names))})"
        nans: Counter[str] = Counter()
        written = 0
        for each in rows:
            for name, array in zip(names, each.columns, strict=True):
                if pa.types.is_floating(array.type):
                    nans[name] += pc.sum(pc.is_nan(array)).as_py() or 0
            self._connection.executemany(insert, zip(*map(self._values, each.columns), strict=True))
            written += each.num_rows
        self._check_count(batch, written)
        if nans := +nans:
            log.warning("%s: SQLite has no NaN, and stores NULL instead; values by column: %s", self._uri, dict(nans))

    def _check_count(self, batch: str, written: int) -> None:
        query = f"SELECT count(*) FROM {quoted(self._name)} WHERE {quoted(BATCH)} = ?"
        [rows] = self._connection.execute(query, (batch,)).fetchone()
        check_count(self._uri, batch, rows, written)

    def _values(self, array: pa.Array) -> list[object]:
        is_text = self.type_of(array.type) == "TEXT"
        return (converted(array, pa.string()) if is_text else array).to_pylist()  # type: ignore[no-any-return]
