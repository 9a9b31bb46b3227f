"""Writes to a Delta table, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from airflow_hops.core.contract.tables import Table
from airflow_hops.ml.readers.types import normalised
from airflow_hops.ml.stages.ingest.delta import failing
from airflow_hops.ml.stages.write_table.table_writer import BATCH, TableWriter


@contextmanager
def opened(table: Table) -> Iterator[TableWriter]:
    """Opens a table; raises HopsError if the storage fails, or another writer was faster."""
    with failing(f"table {table.uri!r}"):
        yield _DeltaTable(table)


class _DeltaTable:
    version: str | None = None

    def __init__(self, table: Table) -> None:
        self._path = table.uri.removeprefix("delta://")
        self._options = {name: str(value) for name, value in table.storage_options.items()}

    def type_of(self, type_: pa.DataType) -> str | None:
        text = str(normalised(type_))
        return None if "duration" in text else text

    def columns(self) -> dict[str, str] | None:
        if not DeltaTable.is_deltatable(self._path, self._options):
            return None
        schema = pa.schema(DeltaTable(self._path, storage_options=self._options).schema().to_arrow())
        return {field.name: str(normalised(field.type)) for field in schema}

    def create(self, schema: pa.Schema) -> None:
        write_deltalake(self._path, schema.empty_table(), mode="error", storage_options=self._options)

    def replace(self, batch: str, schema: pa.Schema | None, rows: Iterator[pa.RecordBatch]) -> None:
        table = DeltaTable(self._path, storage_options=self._options)
        same_batch = "{} = '{}'".format(BATCH, batch.replace("'", "''"))
        if schema is None:
            table.delete(same_batch)
        else:
            reader = pa.RecordBatchReader.from_batches(schema, rows)
            write_deltalake(table, reader, mode="overwrite", predicate=same_batch)
        self.version = str(table.version())
