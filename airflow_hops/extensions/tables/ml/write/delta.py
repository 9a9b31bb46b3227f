"""Writes to a Delta table, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.tables.core.tables import BATCH, Table
from airflow_hops.extensions.tables.ml.read.delta import check_features, failing
from airflow_hops.extensions.tables.ml.write.table_writer import TableWriter
from airflow_hops.ml.readers.types import normalised


@contextmanager
def opened(table: Table) -> Iterator[TableWriter]:
    """Opens a table.

    Raises:
        BadInput: Delta does not allow the columns, or the table has features that only Spark knows.
        HopsError: the storage fails, or another writer was faster.
    """
    with failing(f"table {table.uri!r}"):
        yield _DeltaTable(table)


class _DeltaTable:
    version: str | None = None

    def __init__(self, table: Table) -> None:
        self._path = table.uri.removeprefix("delta://")
        self._options = {name: str(value) for name, value in table.storage_options.items()}
        exists = DeltaTable.is_deltatable(self._path, self._options)
        self._table = DeltaTable(self._path, storage_options=self._options) if exists else None
        self._where = f"table {table.uri!r}"
        if self._table is not None:
            check_features(self._table, self._where)
            if self._table.metadata().configuration.get("delta.appendOnly") == "true":
                raise BadInput(
                    f"{self._where} is append-only, and a write replaces the rows of its batch; turn delta.appendOnly "
                    "off, or write to another table"
                )

    def type_of(self, type_: pa.DataType) -> str | None:
        text = str(normalised(type_))
        return None if "duration" in text else text

    def columns(self) -> dict[str, str] | None:
        if self._table is None:
            return None
        schema = pa.schema(self._table.schema().to_arrow())
        return {field.name: str(normalised(field.type)) for field in schema}

    def create(self, schema: pa.Schema) -> None:
        write_deltalake(self._path, schema.empty_table(), mode="error", storage_options=self._options)
        self._table = DeltaTable(self._path, storage_options=self._options)

    def replace(self, batch: str, schema: pa.Schema | None, rows: Iterator[pa.RecordBatch]) -> None:
        assert self._table is not None
        same_batch = "{} = '{}'".format(BATCH, batch.replace("'", "''"))
        bad: list[BadInput] = []

        def noting_errors() -> Iterator[pa.RecordBatch]:
            try:
                yield from rows
            except BadInput as error:  # deltalake would raise its own error
                bad.append(error)
                raise

        try:
            if schema is None:
                self._table.delete(same_batch)
            else:
                reader = pa.RecordBatchReader.from_batches(schema, noting_errors())
                write_deltalake(self._table, reader, mode="overwrite", predicate=same_batch)
        except DeltaError as error:
            if bad:
                raise bad[0] from None
            if "Invalid data found" in str(error):  # deltalake has no error class for it
                raise BadInput(
                    f"{self._where}: rows break a constraint of the table ({self._constraints()}): "
                    f"{' '.join(str(error).split())}; correct them where the artifact is made"
                ) from error
            raise
        self.version = str(self._table.version())

    def _constraints(self) -> str:
        assert self._table is not None
        configuration, fields = self._table.metadata().configuration, self._table.schema().fields
        checks = [check for name, check in configuration.items() if name.startswith("delta.constraints.")]
        checks += [f"{field.name} IS NOT NULL" for field in fields if not field.nullable]
        return ", ".join(checks) or "an invariant or a generated column"
