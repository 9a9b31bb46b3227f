"""Writes to an Iceberg table, without Spark."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import schema_to_pyarrow

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.tables.core.tables import BATCH, Table
from airflow_hops.extensions.tables.ml.read.iceberg import failing, name_of
from airflow_hops.extensions.tables.ml.write.table_writer import TableWriter
from airflow_hops.ml.readers.types import normalised


@contextmanager
def opened(table: Table) -> Iterator[TableWriter]:
    """Opens a table.

    Raises:
        BadInput: the catalogue or namespace is missing, or Iceberg lacks a type.
        HopsError: the catalogue or the storage fails, or another writer was faster.
    """
    with failing(f"table {table.uri!r}"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Delete operation did not match any records")
        yield _IcebergTable(table)


class _IcebergTable:
    version: str | None = None

    def __init__(self, table: Table) -> None:
        self._uri = table.uri
        catalogue, self._identifier = name_of(table.uri, "table")
        self._catalogue = load_catalog(catalogue, **table.storage_options)
        try:
            self._table = self._catalogue.load_table(self._identifier)
        except NoSuchTableError:
            self._table = None

    def type_of(self, type_: pa.DataType) -> str | None:
        # Iceberg has no smaller integers.
        text = re.sub(r"\bint(8|16)\b", "int32", str(normalised(type_)))
        return None if "duration" in text else text

    def columns(self) -> dict[str, str] | None:
        if self._table is None:
            return None
        return {field.name: str(normalised(field.type)) for field in schema_to_pyarrow(self._table.schema())}

    def create(self, schema: pa.Schema) -> None:
        self._table = self._catalogue.create_table(self._identifier, schema)

    def replace(self, batch: str, schema: pa.Schema | None, rows: Iterator[pa.RecordBatch]) -> None:
        if schema is None:
            self._table.delete(EqualTo(BATCH, batch))
        else:
            required = {field.name for field in self._table.schema().fields if field.required}
            schema = pa.schema([field.with_nullable(field.name not in required) for field in schema])
            reader = pa.RecordBatchReader.from_batches(schema, self._without_nulls(rows, schema))
            # pyiceberg divides only rows in memory into partitions.
            is_whole = not self._table.spec().is_unpartitioned()
            self._table.overwrite(reader.read_all() if is_whole else reader, EqualTo(BATCH, batch))
        snapshot = self._table.current_snapshot()
        self.version = None if snapshot is None else str(snapshot.snapshot_id)

    def _without_nulls(self, rows: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yields rows in a schema; raises BadInput if a column of it that is not nullable has a null."""
        for each in rows:
            for field, column in zip(schema, each.columns, strict=True):
                if column.null_count and not field.nullable:
                    raise BadInput(
                        f"table {self._uri!r}: {field.name!r} is required, and null in {column.null_count} rows; "
                        "fill them where the artifact is made, or make the column optional"
                    )
            yield pa.RecordBatch.from_arrays(each.columns, schema=schema)
