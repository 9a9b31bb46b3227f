"""Rows of an Iceberg table at one snapshot, read without Spark."""

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
from pyiceberg.table import Table

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.sources import Source
from airflow_hops.ml.stages.ingest import lake
from airflow_hops.ml.stages.ingest.open_table import OpenTable, columns_to_read, failing_as
from airflow_hops.ml.stages.ingest.window import Window


def state_of(source: Source) -> list[list[Any]]:
    """Returns the id of the current snapshot, or the one that the source names, as one row."""
    table = _load(source)
    snapshot = table.current_snapshot() if source.version is None else _snapshot(table, source.version, source)
    if snapshot is None:
        raise BadInput(f"{source.uri}: the table has no snapshot, and so no rows")
    return [[snapshot.snapshot_id]]


@contextmanager
def opened(source: Source, window: Window, state: str) -> Iterator[OpenTable]:
    """Opens a table at a snapshot, for the rows in a window.

    Raises:
        BadInput: there is no such table or snapshot, a key occurs twice, or the table has equality deletes.
        HopsError: the catalogue or the storage fails.
    """
    where = f"{source.uri} at snapshot {state}"
    table = _load(source)
    snapshot = _snapshot(table, state, source)
    of_snapshot = table.schema() if snapshot.schema_id is None else table.schemas()[snapshot.schema_id]
    schema: pa.Schema = schema_to_pyarrow(of_snapshot)
    columns = columns_to_read(source, schema.names, where)
    bounds = lake.bounds(source, window, schema)
    time = source.time_column or ""
    inside: BooleanExpression = AlwaysTrue()
    for compared, bound in bounds:
        value = bound.as_py() if pa.types.is_integer(bound.type) else bound.as_py().isoformat()
        inside = And(inside, (GreaterThanOrEqual if compared == ">=" else LessThan)(time, value))

    def scan(condition: BooleanExpression, columns: Sequence[str]) -> Any:
        return table.scan(row_filter=condition, selected_fields=tuple(columns), snapshot_id=snapshot.snapshot_id)

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
        partial(_read, where, table.metadata, table.io, rows.projection(), inside, columns),
        without_time=without_time,
        span=lambda: lake.span(scan(AlwaysTrue(), [time]).to_arrow()[0]),
    )


def _read(
    where: str, metadata: Any, io: Any, projection: Any, inside: Any, columns: Sequence[str], part: Sequence[Any]
) -> Iterator[pa.RecordBatch]:
    with failing(where):
        for batch in ArrowScan(metadata, io, projection, inside).to_record_batches(part):
            yield batch.select(list(columns))


def _load(source: Source) -> Table:
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
    # Each catalogue has its own errors. pyiceberg raises ValueError for equality deletes, and for a catalogue unknown.
    bad = (NoSuchNamespaceError, NoSuchTableError, UnsupportedPyArrowTypeException, ValueError)
    return failing_as(where, Exception, is_bad=lambda error: isinstance(error, bad))


def _snapshot(table: Table, state: str, source: Source) -> Any:
    snapshot = table.snapshot_by_id(int(state)) if state.isdigit() else None
    if snapshot is None:
        known = ", ".join(str(each.snapshot_id) for each in table.snapshots()[-5:])
        raise BadInput(
            f"{source.uri}: there is no snapshot {state}, or it has expired; the newest are {known or 'none'}: begin a "
            "new run, or correct 'version'"
        )
    return snapshot
