"""Tables and queries of databases, copied in parts to Parquet files of a snapshot."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_hops.core.artifacts.artifact import FileEntry
from airflow_hops.core.errors import HopsError
from airflow_hops.core.sources.sources import Source, SourceFile, row_source, scheme_of
from airflow_hops.extensions.tables.core.sources import SQL, KeyedSource, name_of_query, state_in
from airflow_hops.extensions.tables.ml.read.open_table import OpenTable, module_for
from airflow_hops.ml.ingest.parts import CopyingPlan, PartSummary, copying_plan, write_part
from airflow_hops.ml.ingest.reader import Progress
from airflow_hops.ml.ingest.window import Window, WindowCounts
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.readers.raw_file import RawFile
from airflow_hops.ml.readers.types import cast, check_values, stored, wanted
from airflow_hops.ml.spark.pools import IN_PROCESS, Pool, run_parts, uploaded_files
from airflow_hops.ml.step.context import StepContext

# A table is read in parts by several connections, which must see the same rows: each module fixes the state first (a
# snapshot exported by PostgreSQL, a version of a lake's table) and gives it to all parts. Rows are counted in this
# state before, and compared after reading. A retry uses the state from the plan, if the table still has it.

_MODULES = {"iceberg": "iceberg", "delta": "delta", "spark": "catalogue", "hive": "catalogue"}
Read = Callable[[Any], Iterable[pa.RecordBatch]]


def opened(source: KeyedSource, window: Window, state: str) -> AbstractContextManager[OpenTable]:
    """Opens the table of a source for the rows in a window; raises as the module that reads it."""
    return _module_of(source).opened(source, window, state)  # type: ignore[no-any-return]


def _module_of(source: KeyedSource) -> Any:
    """Imports the module that reads a table; libraries of other tables may not be installed."""
    name = _MODULES.get(scheme_of(source.uri)) or source.storage_options["dialect"]
    return module_for(f"airflow_hops.extensions.tables.ml.read.{name}", f"source {source.uri!r}")


def states_of(context: StepContext, *, sources: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """Step: returns the state of each table, a text that changes with its rows; unknown, it is new each time."""
    tables = context.sources({table: row_source(table, value) for table, value in sources.items()})
    return {table: state_of(source) for table, source in tables.items() if isinstance(source, KeyedSource)}


def state_of(source: KeyedSource) -> str:
    """Returns the state of a table.

    Raises:
        BadInput: the source's ``version`` query is refused, or does not return one value.
        HopsError: the database does not answer.
    """
    if source.version is None and scheme_of(source.uri) == SQL:
        return uuid.uuid4().hex
    return state_in(_module_of(source).state_of(source), name_of_query(source, source.version))


def copy_table(
    table: str, source: KeyedSource, plan: Any, window: Window, folder: OutputFolder, pool: Pool, progress: Progress
) -> tuple[WindowCounts, list[FileEntry]]:
    """Reads a table, as :class:`~airflow_hops.ml.ingest.reader.Reader`; ``plan`` is its state.

    Without a plan, it is read at the current state.

    Raises:
        BadInput: the table, the query or a value cannot be used, or a key occurs twice.
        HopsError: the database failed, or returned a different number of rows than it had counted.
    """
    with opened(source, window, plan or state_of(source)) as table_at_state:
        name, parts = table_at_state.name, table_at_state.parts
        as_file = Source(source.uri, time_column=source.time_column, columns=source.columns, schema=source.schema)
        file = RawFile(None, SourceFile(name, name, 0, ""), as_file, "table", None)
        copying = copying_plan(None, file, wanted(table_at_state.types, file), window, folder, table)
        copying = replace(copying, types=stored(copying.types, name))
        progress(0.3, f"{len(parts)} parts")
        if table_at_state.pool is not None:
            pool = table_at_state.pool
        elif table_at_state.in_this_process or (len(parts) == 1 and pool.runs_here):
            pool = IN_PROCESS
        work = partial(_copy, file=file, read=table_at_state.read)
        summaries = run_parts(pool, work, copying, list(enumerate(parts)), PartSummary, progress)
        counts = WindowCounts()
        counts.add(summaries)
        if table_at_state.rows not in (None, counts.rows_in):
            raise HopsError(
                f"{name}: {table_at_state.rows} rows were counted, and {counts.rows_in} read; the query does not give "
                "the same rows each time: remove random functions from it"
            )
        counts.rows_in += table_at_state.without_time
        counts.reject(f"{source.time_column} is missing", table_at_state.without_time)
        if not counts.rows_out and source.time_column is not None:
            counts.earliest, counts.latest = table_at_state.span()
    return counts, uploaded_files(summaries)


def _copy(plan: CopyingPlan, part: tuple[int, object], file: RawFile, read: Read) -> str:
    """Writes the rows of a part; returns its summary as JSON."""
    summary = PartSummary()
    with summary.recording_errors(plan.folder.path):
        write_part(_selected(plan, file, read(part[1]), summary), plan, part[0], summary.uploaded)
    return summary.to_json()


def _selected(
    plan: CopyingPlan, file: RawFile, batches: Iterable[pa.RecordBatch], counts: WindowCounts
) -> Iterator[pa.Table]:
    """Yields the rows in the window in the snapshot's types, and counts them."""
    rows = 0
    for batch in batches:
        converted = cast(batch, plan.types, file, rows)
        check_values(converted, file, rows)
        yield counts.select(pa.Table.from_batches([converted]), file, plan.window, rows).select(plan.schema.names)
        rows += batch.num_rows
