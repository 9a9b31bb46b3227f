"""Writes the rows of an artifact to a table, instead of those of the same batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import scheme_of
from airflow_hops.extensions.tables.core.tables import BATCH, FOLDER, Table, TableWriteProperties, batch_of, folders_of
from airflow_hops.extensions.tables.ml.read.open_table import module_for
from airflow_hops.extensions.tables.ml.write.table_writer import TableWriter
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.text_types import first_bad
from airflow_hops.ml.readers.types import converted, fits, is_in_calendar, normalised, value_text
from airflow_hops.ml.step.context import StepContext

# A write replaces the rows of one batch in one transaction (for a lake's table, one commit): delete rows with this
# hops_batch, insert, count, commit. The batch is by default the artifact's path, so a retry or a rerun replaces its own
# rows. A kill before the commit leaves the old rows; a kill after it, before the artifact `table_write` is committed,
# leaves new rows that the retry replaces by the same ones.

log = logging.getLogger(__name__)

_BATCH_ROWS = 1 << 17


def run(
    context: StepContext, *, table: Mapping[str, object], folders: Sequence[str] | None = None, batch: str | None = None
) -> Artifact:
    """Writes the artifact ``table_write``, which has no files, after the rows of the input ``rows`` are in the table.

    Parameters are those of ``WriteTableOperator``.

    Raises:
        BadInput: the artifact has no rows, or the table other columns, or it cannot hold a type or value.
        HopsError: the database or storage failed.
    """
    target = Table.from_value(table).with_options(context.spec.source_options)
    artifact = context.input("rows")
    batch = batch or batch_of(context.store, artifact)
    if written := target.storage_options.get("written"):  # by the worker, before this step
        return _committed(context, target, batch, written["columns"], written["rows"], None)
    if target.conn_id is not None:
        raise BadInput(f"table {target.uri!r}: only a task of Airflow writes to a database")
    files = _files(context, artifact, folders)
    schema = _schema(files) if files else None
    total = sum(footer.num_rows for *_, footer in files)

    def rows() -> Iterator[pa.RecordBatch]:
        written = 0
        for file in files:
            for read in scan.batches(file[1], rows=_BATCH_ROWS):
                assert schema is not None
                yield _converted(read, schema, batch, file, target)
                written += read.num_rows
                context.progress(0.9 * written / max(total, 1), f"{written} of {total} rows")

    with _opened(target) as writer:
        columns = {field.name: _type(writer, field, target) for field in schema or ()}
        existing = writer.columns()
        if schema is not None and existing is None:
            writer.create(schema)
        elif schema is not None and existing is not None:
            _check_columns(existing, columns, target)
        if not (schema is None and existing is None):
            writer.replace(batch, schema, rows())
    log.info("%d rows in table %s, batch %s", total, target.uri, batch)
    return _committed(context, target, batch, columns, total, writer.version)


def _committed(
    context: StepContext, table: Table, batch: str, columns: Mapping[str, str], rows: int, version: str | None
) -> Artifact:
    with context.output() as output:
        return output.commit(
            rows={table.uri: RowCounts(rows, rows)},
            metrics={"rows": rows},
            properties=TableWriteProperties(table.uri, dict(columns), version, batch).to_dict(),
        )


def _opened(table: Table) -> AbstractContextManager[TableWriter]:
    module = module_for(f"airflow_hops.extensions.tables.ml.write.{scheme_of(table.uri)}", f"table {table.uri!r}")
    return module.opened(table)  # type: ignore[no-any-return]


_File = tuple[str, Path, pq.FileMetaData]
"""Folder in the artifact, path and footer of a Parquet file."""


def _files(context: StepContext, artifact: Artifact, folders: Sequence[str] | None) -> list[_File]:
    """Returns the Parquet files."""
    local = context.store.local(artifact)
    files = folders_of(context.store, artifact, folders)
    return [(folder, local / path, scan.footer(local / path)) for folder, path in files]


def _schema(files: Sequence[_File]) -> pa.Schema:
    """Returns the schema of all files, with the columns of batch and folder."""
    schemas = {
        path: {field.name: normalised(field.type) for field in footer.schema.to_arrow_schema()}
        for _, path, footer in files
    }
    first, columns = next(iter(schemas.items()))
    for path, others in schemas.items():
        if others != columns:
            name = next(name for name in [*columns, *others] if columns.get(name) != others.get(name))
            raise BadInput(
                f"{path}: column {name!r} is {others.get(name, 'missing')}, and {columns.get(name, 'missing')} in "
                f"{first}; name folders with the same columns in 'folders'"
            )
    for name in (BATCH, FOLDER):
        if name in columns:
            raise BadInput(f"{first}: there is a column {name!r}, which is reserved by the table; rename it")
    return pa.schema([*columns.items(), (BATCH, pa.string()), (FOLDER, pa.string())])


def _converted(read: pa.RecordBatch, schema: pa.Schema, batch: str, file: _File, table: Table) -> pa.RecordBatch:
    arrays = []
    for field in list(schema)[:-2]:
        array = read.column(read.schema.get_field_index(field.name))
        if not _fits(array, field.type):
            value = value_text(array, first_bad(array, partial(_fits, type_=field.type)))
            raise BadInput(
                f"table {table.uri!r}: column {field.name!r} has {value}, which does not fit {field.type}, in "
                f"{file[1]}; correct it where the artifact is made"
            )
        arrays.append(converted(array, field.type))
    added = [pa.repeat(value, read.num_rows).cast(pa.string()) for value in (batch, file[0])]
    return pa.RecordBatch.from_arrays([*arrays, *added], schema=schema)


def _fits(array: pa.Array, type_: pa.DataType) -> bool:
    return is_in_calendar(array) and fits(array, type_)


def _type(writer: TableWriter, field: pa.Field, table: Table) -> str:
    type_ = writer.type_of(field.type)
    if type_ is None:
        raise BadInput(
            f"table {table.uri!r} cannot hold column {field.name!r}, which is {field.type}; convert it or leave it out "
            "where the artifact is made"
        )
    return type_


def _check_columns(existing: Mapping[str, str], columns: Mapping[str, str], table: Table) -> None:
    """Raises BadInput if the table has other columns."""
    for name in [*columns, *existing]:
        if existing.get(name) != columns.get(name):
            raise BadInput(
                f"table {table.uri!r}: column {name!r} is {existing.get(name, 'missing')}, and the rows have "
                f"{columns.get(name, 'no such column')}; alter the table, or write to another one"
            )
