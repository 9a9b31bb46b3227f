"""Rows of an Iceberg table at one snapshot and schema, read without Spark.

A state is the id of a snapshot, with ``@`` and the id of the table's schema if the snapshot was written in another one:
a change of the schema makes no snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, IsNull, LessThan
from pyiceberg.io.pyarrow import ArrowScan, UnsupportedPyArrowTypeException, schema_to_pyarrow
from pyiceberg.table import DataScan, Table
from pyiceberg.table.metadata import TableMetadata

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.tables.core.sources import TableSource
from airflow_hops.extensions.tables.ml.read import lake
from airflow_hops.extensions.tables.ml.read.open_table import OpenTable, columns_to_read, failing_as
from airflow_hops.ml.ingest.window import Window


def state_of(source: TableSource) -> list[list[Any]]:
    """Returns the current state, or the one that the source names, as one row."""
    table = _load(source)
    metadata = table.metadata if source.version is None else _metadata_at(table, source.version, source)
    snapshot = metadata.current_snapshot()
    if snapshot is None:
        raise BadInput(f"{source.uri}: the table has no snapshot, and so no rows")
    schema_id = metadata.current_schema_id
    return [[str(snapshot.snapshot_id) + (f"@{schema_id}" if schema_id != snapshot.schema_id else "")]]


@contextmanager
def opened(source: TableSource, window: Window, state: str) -> Iterator[OpenTable]:
    """Opens a table at a state, for the rows in a window.

    Raises:
        BadInput: the table, snapshot or schema is missing, a key occurs twice, or the table has equality deletes.
        HopsError: the catalogue or the storage fails.
    """
    where = f"{source.uri} at snapshot {state}"
    table = _load(source)
    metadata = _metadata_at(table, state, source)
    schema: pa.Schema = schema_to_pyarrow(metadata.schema())
    columns = columns_to_read(source, schema.names, where)
    bounds = lake.bounds(source, window, schema)
    time = source.time_column or ""
    inside: BooleanExpression = AlwaysTrue()
    for compared, bound in bounds:
        value = bound.as_py() if pa.types.is_integer(bound.type) else bound.as_py().isoformat()
        inside = And(inside, (GreaterThanOrEqual if compared == ">=" else LessThan)(time, value))

    def scan(condition: BooleanExpression, columns: Sequence[str]) -> Any:
        return DataScan(metadata, table.io, condition, tuple(columns))

    rows = scan(inside, columns)
    with failing(where):
        parts = lake.parts((task, task.file.file_size_in_bytes) for task in rows.plan_files())
        if source.key:
            lake.check_key(scan(inside, source.key).to_arrow(), source, where)
        without_time = scan(IsNull(time), [time]).count() if bounds else 0
    yield OpenTable(
        where,
        {name: schema.field(name).type for name in columns},
        parts,
        partial(_read, where, metadata, table.io, rows.projection(), inside, columns),
        without_time=without_time,
        span=lambda: lake.span(scan(AlwaysTrue(), [time]).to_arrow()[0]),
    )


def _read(
    where: str, metadata: Any, io: Any, projection: Any, inside: Any, columns: Sequence[str], part: Sequence[Any]
) -> Iterator[pa.RecordBatch]:
    with failing(where):
        for batch in ArrowScan(metadata, io, projection, inside).to_record_batches(part):
            yield batch.select(list(columns))


def _load(source: TableSource) -> Table:
    name, identifier = name_of(source.uri, "source")
    with failing(source.uri):
        return load_catalog(name, **source.storage_options).load_table(identifier)


def name_of(uri: str, what: str) -> tuple[str, str]:
    """Returns the names of the catalogue and of the table in it; raises BadInput if the URI has another form."""
    name, _, identifier = uri.removeprefix("iceberg://").partition("/")
    if not name or "." not in identifier:
        raise BadInput(f"{what} {uri!r}: expected iceberg://catalog/namespace.table")
    return name, identifier


def failing(where: str) -> AbstractContextManager[None]:
    """Turns errors of pyiceberg into ours."""
    # Each catalogue has its own errors. pyiceberg raises ValueError for equality deletes and for an unknown catalogue.
    bad = (NoSuchNamespaceError, NoSuchTableError, UnsupportedPyArrowTypeException, ValueError)
    return failing_as(where, Exception, is_bad=lambda error: isinstance(error, bad))


def _metadata_at(table: Table, state: str, source: TableSource) -> TableMetadata:
    """Returns the table's metadata with a state's snapshot and schema as the current ones.

    pyiceberg selects files and rows by the current schema, and returns the columns of the snapshot's schema.
    """
    snapshot_id, _, schema_id = state.partition("@")
    snapshot = table.snapshot_by_id(int(snapshot_id)) if snapshot_id.isdigit() else None
    if snapshot is None:
        known = ", ".join(str(each.snapshot_id) for each in table.snapshots()[-5:])
        raise BadInput(
            f"{source.uri}: there is no snapshot {state}, or it has expired; the newest are {known or 'none'}: begin a "
            "new run, or correct 'version'"
        )
    if not schema_id:
        schema_id = str(table.metadata.current_schema_id if snapshot.schema_id is None else snapshot.schema_id)
    schemas = [str(number) for number in table.schemas()]
    if schema_id not in schemas:
        raise BadInput(
            f"{source.uri} at snapshot {snapshot_id}: there is no schema {schema_id}; its schemas are "
            f"{', '.join(schemas)}: begin a new run, or correct 'version'"
        )
    current = {"current_snapshot_id": snapshot.snapshot_id, "current_schema_id": int(schema_id)}
    return table.metadata.model_copy(update=current)
