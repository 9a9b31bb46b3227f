"""Tables and queries of databases, copied by tasks to Parquet files of a snapshot."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_hops.core.contract.artifacts import BadInput, FileEntry, HopsError
from airflow_hops.core.contract.sources import Source, SourceFile
from airflow_hops.extensions.tables.ml.read.open_table import OpenTable, module_for, name_of_query
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.readers.raw_file import RawFile
from airflow_hops.ml.readers.types import cast, check_values, stored, wanted
from airflow_hops.ml.spark.tasks import IN_PROCESS, Pool, run_tasks, uploaded_files
from airflow_hops.ml.stages.ingest.parts import CopyingPlan, PartSummary, copying_plan, write_part
from airflow_hops.ml.stages.ingest.window import Window, WindowCounts
from airflow_hops.ml.step.context import StepContext

_MODULES = {"iceberg": "iceberg", "delta": "delta", "spark": "catalogue", "hive": "catalogue"}
Read = Callable[[Any], Iterable[pa.RecordBatch]]


def opened(source: Source, window: Window, state: str) -> AbstractContextManager[OpenTable]:
    """Opens the table of a source for the rows in a window; raises as the module that reads it."""
    return _module_of(source).opened(source, window, state)  # type: ignore[no-any-return]


def _module_of(source: Source) -> Any:
    """Imports the module that reads a table; the others' libraries may not be installed."""
    scheme = source.uri.partition("://")[0]
    name = _MODULES.get(scheme) or source.storage_options["dialect"]
    return module_for(f"airflow_hops.extensions.tables.ml.read.{name}", f"source {source.uri!r}")


def states_of(context: StepContext, *, sources: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Step: returns the state of each table, a text that changes with its rows; unknown, it is new each time."""
    tables = context.sources({table: Source.from_value(table, value) for table, value in sources.items()})
    return {table: state_of(source) for table, source in tables.items()}


def state_of(source: Source) -> str:
    """Returns the state of a table.

    Raises:
        BadInput: the source's ``version`` query is refused, or does not return one value.
        HopsError: the database does not answer.
    """
    if source.version is None and source.sql is not None:
        return uuid.uuid4().hex
    rows = _module_of(source).state_of(source)
    if len(rows) != 1 or len(rows[0]) != 1 or rows[0][0] is None:
        raise BadInput(
            f"{name_of_query(source, source.version)}: 'version' returned {rows[:3]}; expected one row with one value "
            "that is not null"
        )
    return str(rows[0][0])


def copy_table(
    table: str,
    source: Source,
    window: Window,
    state: str | None,
    folder: OutputFolder,
    pool: Pool,
    progress: Callable[[float, str], None],
) -> tuple[WindowCounts, list[FileEntry]]:
    """Writes the rows of a table in a window, at a state or else the current one, to Parquet files.

    Raises:
        BadInput: the table, the query or a value cannot be used, or a key occurs twice.
        HopsError: the database failed, or returned other rows than it had counted.
    """
    with opened(source, window, state or state_of(source)) as table_at_state:
        name, parts = table_at_state.name, table_at_state.parts
        file = RawFile(None, SourceFile(name, name, 0, ""), replace(source, storage_options={}), "table", None)
        plan = copying_plan(None, file, wanted(table_at_state.types, file), window, folder, table)
        plan = replace(plan, types=stored(plan.types, name))
        progress(0.3, f"{len(parts)} parts")
        if table_at_state.pool is not None:
            pool = table_at_state.pool
        elif table_at_state.in_this_process or (len(parts) == 1 and pool.runs_here):
            pool = IN_PROCESS
        work = partial(_copy, file=file, read=table_at_state.read)
        summaries = run_tasks(pool, work, plan, list(enumerate(parts)), PartSummary, progress)
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


def _copy(plan: CopyingPlan, part: tuple[int, Any], file: RawFile, read: Read) -> str:
    """Task: writes the rows of a part; returns its summary as JSON."""
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
