"""Writes the rows of an artifact to a table, instead of those of the same batch."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.contract.artifacts import Artifact, BadInput, RowCounts
from airflow_hops.core.contract.streams import REJECTED_FOLDER
from airflow_hops.core.contract.tables import Table, TableWriteProperties
from airflow_hops.ml.readers.types import converted, normalised
from airflow_hops.ml.stages.write_table.table_writer import BATCH, FOLDER, TableWriter
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)

_BATCH_ROWS = 1 << 17
_MAY_BE_EMPTY = ("quarantine", REJECTED_FOLDER)
"""Folders that an artifact has only if there are such rows."""


def run(
    context: StepContext, *, table: Mapping[str, Any], folders: Sequence[str] | None = None, batch: str | None = None
) -> Artifact:
    """Writes the artifact ``table_write``, which has no files, after the rows of the input ``rows`` are in the table.

    Args:
        context: Step with the input ``rows``.
        table: Fields of the :class:`~airflow_hops.core.contract.tables.Table`.
        folders: Folders of the artifact; None for all except rejected records.
        batch: Value of the column ``hops_batch``; None for the artifact's path in the store.

    Raises:
        BadInput: the artifact has no rows, or the table other columns, or it cannot hold a type or value.
        HopsError: the database or storage failed.
    """
    target = Table.from_value(table).with_options(context.spec.source_options)
    artifact = context.input("rows")
    batch = batch or artifact.uri.removeprefix(context.store.root).strip("/")
    files = _files(context, artifact, folders)
    schema = _schema(files) if files else None
    total = sum(pq.read_metadata(path).num_rows for _, path in files)

    def rows() -> Iterator[pa.RecordBatch]:
        written = 0
        for folder, path in files:
            for read in pq.ParquetFile(path).iter_batches(_BATCH_ROWS):
                assert schema is not None
                yield _converted(read, schema, batch, folder, path)
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
    with context.output() as output:
        return output.commit(
            rows={target.uri: RowCounts(total, total)},
            metrics={"rows": total},
            properties=TableWriteProperties(target.uri, batch, columns, writer.version).to_dict(),
        )


def _opened(table: Table) -> AbstractContextManager[TableWriter]:
    name = table.uri.partition("://")[0] if table.conn_id is None else table.storage_options["dialect"]
    try:
        module = importlib.import_module(f"airflow_hops.ml.stages.write_table.{name}")
    except ModuleNotFoundError as error:
        raise BadInput(
            f"table {table.uri!r}: the environment {sys.prefix} lacks {error.name}; make one with 'airflow hops "
            f"runtime create --name lake --with {error.name}', and name it in the operator's 'runtime'"
        ) from error
    return module.opened(table)  # type: ignore[no-any-return]


def _files(context: StepContext, artifact: Artifact, folders: Sequence[str] | None) -> list[tuple[str, Path]]:
    """Returns the Parquet files with their folders."""
    if isinstance(folders, str) or (folders is not None and not folders):
        raise BadInput(f"folders is {folders!r}; expected a list of folders, or None for all")
    paths = sorted(
        entry.path for entry in context.store.manifest(artifact.uri).files if entry.path.endswith(".parquet")
    )
    of = [(path.rpartition("/")[0], path) for path in paths]
    known = dict.fromkeys(folder for folder, _ in of)
    for folder in folders or ():
        if folder not in known and not folder.startswith(_MAY_BE_EMPTY):
            raise BadInput(f"{artifact.uri}: folders names {folder!r}; rows are in {', '.join(known) or 'no folder'}")
    if not known and folders is None and artifact.kind != "anomalies":
        raise BadInput(f"{artifact.uri}: {artifact.kind} has no rows; expected an artifact with Parquet files")
    wanted = folders if folders is not None else [name for name in known if name.split("/")[0] != REJECTED_FOLDER]
    local = context.store.local(artifact)
    return [(folder, local / path) for folder, path in of if folder in wanted]


def _schema(files: Sequence[tuple[str, Path]]) -> pa.Schema:
    """Returns the schema of all files, with the columns of batch and folder."""
    schemas = {path: {field.name: normalised(field.type) for field in pq.read_schema(path)} for _, path in files}
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
            raise BadInput(f"{first}: there is a column {name!r}, which the table needs for itself; rename it")
    return pa.schema([*columns.items(), (BATCH, pa.string()), (FOLDER, pa.string())])


def _converted(read: pa.RecordBatch, schema: pa.Schema, batch: str, folder: str, path: Path) -> pa.RecordBatch:
    arrays = []
    for field in list(schema)[:-2]:
        array = read.column(read.schema.get_field_index(field.name))
        try:
            arrays.append(array if array.type == field.type else converted(array, field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise BadInput(f"{path}: column {field.name!r} does not fit {field.type}: {error}") from error
    added = [pa.repeat(value, read.num_rows).cast(pa.string()) for value in (batch, folder)]
    return pa.RecordBatch.from_arrays([*arrays, *added], schema=schema)


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
