"""Writes to a table of PostgreSQL, by ADBC's binary COPY."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.tables.core.tables import BATCH, Table, check_count
from airflow_hops.extensions.tables.ml.read.open_table import quoted
from airflow_hops.extensions.tables.ml.read.postgres import PostgresSession
from airflow_hops.extensions.tables.ml.write.table_writer import TableWriter

_TYPES = {
    pa.bool_(): "boolean", pa.int8(): "smallint", pa.int16(): "smallint", pa.int32(): "integer",
    pa.int64(): "bigint", pa.float32(): "real", pa.float64(): "double precision", pa.string(): "text",
    pa.binary(): "bytea", pa.date32(): "date", pa.timestamp("us"): "timestamp without time zone",
    pa.timestamp("us", "UTC"): "timestamp with time zone", pa.duration("us"): "interval",
}  # fmt: skip
_MOST_BYTES = 63
"""Maximum length of an identifier, of which PostgreSQL would silently cut off the rest."""


@contextmanager
def opened(table: Table) -> Iterator[TableWriter]:
    """Opens a table in a transaction, which ends with the ``with`` block.

    Raises:
        BadInput: PostgreSQL refuses the login, a statement or a value.
        HopsError: PostgreSQL does not answer.
    """
    with PostgresSession(table.storage_options, f"table {table.uri!r}") as session:
        session.rows("BEGIN")
        yield _PostgresTable(session, table)
        session.rows("COMMIT")


class _PostgresTable:
    """Holds a lock on the table's name until the transaction ends."""

    version: str | None = None

    def __init__(self, session: PostgresSession, table: Table) -> None:
        self._session, self._uri = session, table.uri
        self._schema, dot, self._name = (table.name or "").rpartition(".")
        if not self._name or (dot and not self._schema):
            raise BadInput(f"table {table.uri!r}: the name is {table.name!r}; expected 'table' or 'schema.table'")
        self._quoted = ".".join(self._identifier(part) for part in (self._schema, self._name) if part)
        # Two tries of a task would both delete the old rows before either has written its own.
        session.rows("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))::text", f"hops {self._quoted}")

    def type_of(self, type_: pa.DataType) -> str | None:
        if pa.types.is_list(type_) and not pa.types.is_list(type_.value_type):
            of_items = self.type_of(type_.value_type)
            return of_items and f"{of_items}[]"
        if pa.types.is_decimal128(type_):
            return f"numeric({type_.precision},{type_.scale})"
        return _TYPES.get(type_)

    def columns(self) -> dict[str, str] | None:
        [[exists]] = self._session.rows("SELECT to_regclass($1) IS NOT NULL", self._quoted)
        query = (
            "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )
        return dict(self._session.rows(query, self._quoted)) if exists else None

    def create(self, schema: pa.Schema) -> None:
        columns = [f"{self._identifier(field.name)} {self.type_of(field.type)}" for field in schema]
        self._session.rows(f"CREATE TABLE {self._quoted} ({', '.join(columns)})")
        self._session.rows(f"CREATE INDEX ON {self._quoted} ({quoted(BATCH)})")

    def replace(self, batch: str, schema: pa.Schema | None, rows: Iterator[pa.RecordBatch]) -> None:
        self._session.rows(f"DELETE FROM {self._quoted} WHERE {quoted(BATCH)} = $1", batch)
        self._check_count(batch, 0)
        written = 0
        for each in rows:
            self._session.append(each, self._name, self._schema)
            written += each.num_rows
        self._session.rows("SET CONSTRAINTS ALL IMMEDIATE")  # their triggers may change rows, too
        self._check_count(batch, written)

    def _check_count(self, batch: str, written: int) -> None:
        query = f"SELECT count(*) FROM {self._quoted} WHERE {quoted(BATCH)} = $1"
        [[rows]] = self._session.rows(query, batch)
        check_count(self._uri, batch, rows, written)

    def _identifier(self, name: str) -> str:
        if len(name.encode()) > _MOST_BYTES:
            raise BadInput(f"table {self._uri!r}: the name {name!r} has more than {_MOST_BYTES} bytes; shorten it")
        return quoted(name)
