"""Ingests raw tables of any source in a window of time into one snapshot of Parquet files, in parallel tasks."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_hops.core.contract.artifacts import Artifact, BadInput, FileEntry, HopsError, RowCounts
from airflow_hops.core.contract.properties import SnapshotProperties
from airflow_hops.core.contract.sources import Source, SourceFile
from airflow_hops.core.store.source_files import check_unchanged, list_files
from airflow_hops.extensions.streams.core.ranges import ranges_of
from airflow_hops.extensions.streams.ml.ingest import ingest_topic
from airflow_hops.extensions.tables.ml.read.tables import copy_table
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.readers.raw_file import RawFile
from airflow_hops.ml.readers.types import Types, unify
from airflow_hops.ml.spark.tasks import IN_PROCESS, Pool, remove_leftovers, run_tasks, task_pool, uploaded_files
from airflow_hops.ml.stages.ingest.parts import (
    FileSummary,
    Part,
    PartSummary,
    ReadingPlan,
    copy_part,
    copying_plan,
    describe_file,
    plan_parts,
)
from airflow_hops.ml.stages.ingest.window import Window, WindowCounts
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)

Progress = Callable[[float, str], None]


def run(
    context: StepContext,
    *,
    sources: Mapping[str, Mapping[str, Any]],
    window_start: str | None = None,
    window_end: str | None = None,
    ranges: Mapping[str, Mapping[str, Any]] | None = None,
    states: Mapping[str, str] | None = None,
) -> Artifact:
    """Writes one snapshot with a subfolder per table.

    Args:
        context: The step's context.
        sources: Fields of the :class:`~airflow_hops.core.contract.sources.Source` of each table.
        window_start: Start of the window, ISO 8601.
        window_end: End of the window, ISO 8601, excluded.
        ranges: Planned offsets of each table that is a topic.
        states: States of tables that are not files, by table, as
            :func:`~airflow_hops.extensions.tables.ml.read.tables.states_of` found them.

    Raises:
        BadInput: as :func:`ingest_table`, or the window cannot be used.
        HopsError: Spark failed, or a file changed while it was read.
    """
    window = Window.parse(window_start, window_end)
    tables = context.sources({table: Source.from_value(table, value) for table, value in sources.items()})
    topics = ranges_of(ranges)
    with task_pool(context, "local[*]") as pool, context.output() as writer:
        rows, columns = {}, {}
        for number, (table, source) in enumerate(tables.items()):

            def progress(share: float, text: str, number: int = number, table: str = table) -> None:
                context.progress((number + share) / len(tables), f"{table}: {text}")

            folder = pool.folder(context, writer)
            if table in topics:
                counts, files = ingest_topic(table, source, topics[table], window, folder, pool, progress, ingest_table)
            else:
                counts, files = ingest_table(table, source, window, folder, pool, progress, (states or {}).get(table))
            rows[table], columns[table] = counts, folder.columns(table, files)
            writer.add(files)
            reasons = "".join(f", {count} {reason}" for reason, count in counts.rejected.items())
            log.info("%s: %d rows in, %d out%s", table, counts.rows_in, counts.rows_out, reasons)
        return writer.commit(
            rows=rows,
            metrics={"rows": sum(counts.rows_out for counts in rows.values())},
            properties=SnapshotProperties(
                window.bounds, tuple(rows), columns, topics or None, states or None
            ).to_dict(),
        )


def ingest_table(
    table: str,
    source: Source,
    window: Window,
    folder: OutputFolder,
    pool: Pool = IN_PROCESS,
    progress: Progress = lambda share, text: None,
    state: str | None = None,
) -> tuple[RowCounts, list[FileEntry]]:
    """Reads the rows of one table in a window into Parquet files.

    Args:
        table: The table's name.
        source: Source of the rows.
        window: Window by the source's time column; a source without one is read completely.
        folder: Folder for ``<table>/part-*.parquet``.
        pool: Runs the tasks that read and write.
        progress: Called with the finished share and a message.
        state: Snapshot or version to read of an Iceberg or Delta table; None for the current one.

    Returns:
        The counts of rows, and the files that tasks wrote to a remote store.

    Raises:
        BadInput: a file is damaged, or not seen by an executor, a column is missing or mistyped, or no rows lie in the
            window.
        HopsError: a file changed while it was read.
    """
    if source.is_table:
        counts, files = copy_table(table, source, window, state, folder, pool, progress)
    else:
        counts, files = _copy_files(table, source, window, folder, pool, progress)
    if not counts.rows_in and counts.earliest is None:
        raise BadInput(f"table {table!r}: {source.uri!r} has no rows")
    if not counts.rows_out:
        of_rows = f" of the {counts.rows_in} rows" * bool(counts.rows_in)
        raise BadInput(
            f"table {table!r}: no rows in the window {window}; {source.time_column!r}{of_rows} in {source.uri!r} goes "
            f"from {counts.earliest or 'nothing'} to {counts.latest or 'nothing'}"
        )
    return RowCounts(counts.rows_in, counts.rows_out, counts.rejected).check(f"table {table!r}"), files


def _copy_files(
    table: str, source: Source, window: Window, folder: OutputFolder, pool: Pool, progress: Progress
) -> tuple[WindowCounts, list[FileEntry]]:
    fs, listed = list_files(source)
    plan = ReadingPlan(fs, replace(source, storage_options={}))
    try:
        result = _ingest(table, plan, listed, window, folder, pool, progress)
    except (HopsError, OSError):
        # A file that is being written can look damaged.
        check_unchanged(source, listed)
        raise
    check_unchanged(source, listed)
    return result


def _ingest(
    table: str,
    plan: ReadingPlan,
    listed: Sequence[SourceFile],
    window: Window,
    folder: OutputFolder,
    pool: Pool,
    progress: Progress,
) -> tuple[WindowCounts, list[FileEntry]]:
    files, types = _describe(plan, listed, pool)
    parts = plan_parts(
        [
            (RawFile(None, file, plan.source, summary.format, summary.compression), summary.row_groups)
            for file, summary in zip(listed, files, strict=True)
        ]
    )
    progress(0.3, f"{len(listed)} files, {len(parts)} parts")
    summaries = _copy(table, plan, types, parts, window, folder, pool, progress)
    if misfit := next((summary.misfit for summary in summaries if summary.misfit), None):
        log.info("Types of the first block do not fit all rows (%s); reading all rows for their types", misfit)
        types = _describe(replace(plan, all_rows=True), listed, pool)[1]
        summaries = _copy(table, plan, types, parts, window, folder, pool, progress)
        if misfit := next((summary.misfit for summary in summaries if summary.misfit), None):
            raise HopsError(f"{misfit}, after all rows were read for their types; the files may have changed: retry")
    if plain := [name for name, type_ in types.items() if pa.types.is_timestamp(type_) and type_.tz is None]:
        log.info("%s: times without a zone are read as UTC: %s", plan.source.uri, ", ".join(map(repr, plain)))
    counts = WindowCounts()
    counts.add(summaries)
    return counts, uploaded_files(summaries)


def _describe(plan: ReadingPlan, listed: Sequence[SourceFile], pool: Pool) -> tuple[list[FileSummary], Types]:
    """Returns descriptions of the files, and the types of the table's columns."""
    files = run_tasks(_pool_for(listed, pool), describe_file, plan, listed, FileSummary)
    _check_seen(files, pool)
    of_text = all(file.format in ("csv", "jsonl") for file in files)
    return files, unify({file.name: each.types for file, each in zip(listed, files, strict=True)}, of_text=of_text)


def _copy(
    table: str,
    plan: ReadingPlan,
    types: Types,
    parts: Sequence[Part],
    window: Window,
    folder: OutputFolder,
    pool: Pool,
    progress: Progress,
) -> list[PartSummary]:
    """Writes the rows in the window; replaces files of an earlier attempt."""
    copying = copying_plan(plan.fs, parts[0].files[0], types, window, folder, table)
    chosen = _pool_for(parts, pool)

    def report(share: float, rows: int) -> None:
        progress(0.3 + 0.6 * share, f"{rows} rows read")

    work = partial(copy_part, report=report) if chosen is IN_PROCESS else copy_part
    summaries = run_tasks(chosen, work, copying, parts, PartSummary, progress)
    if folder.store is None:
        remove_leftovers(Path(folder.path) / table)
    _check_seen(summaries, pool)
    return summaries


def _pool_for(tasks: Sequence[Any], pool: Pool) -> Pool:
    """Returns this process for a single task, unless the executors of a cluster are to run it."""
    return IN_PROCESS if pool.runs_here and len(tasks) == 1 else pool


def _check_seen(summaries: Sequence[FileSummary] | Sequence[PartSummary], pool: Pool) -> None:
    """Raises BadInput if a listed file could not be opened."""
    for summary in summaries:
        if summary.unseen and pool.runs_here:
            raise BadInput(summary.unseen)
        if summary.unseen:
            raise BadInput(
                f"Spark's executor on {summary.unseen}, which this step lists on {socket.gethostname()}; use a source "
                "that all hosts reach, such as s3:// or hdfs://, or a folder that they share, or let the step run on "
                "this machine: name a Spark connection with the host local[*] in spark_conn_id"
            )
