"""Reads the files of a source into a table of a snapshot."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa

from airflow_hops.core.artifacts.artifact import FileEntry
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.sources.source_files import check_unchanged, list_files
from airflow_hops.core.sources.sources import Source, SourceFile
from airflow_hops.ml.ingest.parts import (
    FilePart,
    FileSummary,
    PartSummary,
    ReadingPlan,
    copy_part,
    copying_plan,
    describe_file,
    plan_parts,
)
from airflow_hops.ml.ingest.reader import Progress
from airflow_hops.ml.ingest.window import Window, WindowCounts
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.readers.raw_file import RawFile
from airflow_hops.ml.readers.types import Types, unify
from airflow_hops.ml.spark.pools import IN_PROCESS, Pool, remove_leftovers, run_parts, uploaded_files

log = logging.getLogger(__name__)


def copy_files(
    table: str, source: Source, plan: None, window: Window, folder: OutputFolder, pool: Pool, progress: Progress
) -> tuple[WindowCounts, list[FileEntry]]:
    """Reads files, as :class:`~airflow_hops.ml.ingest.reader.Reader`.

    Raises:
        BadInput: a file is damaged, or not seen by an executor, or a column is missing or mistyped.
        HopsError: a file changed while it was read.
    """
    fs, listed = list_files(source)
    reading = ReadingPlan(fs, replace(source, storage_options={}))
    try:
        result = _ingest(table, reading, listed, window, folder, pool, progress)
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
    counts = WindowCounts()
    counts.add(summaries)
    if mixed := counts.notices.with_several_units():
        if typed := [name for name in mixed if name in plan.source.schema]:
            raise BadInput(
                f"{plan.source.uri}: column {typed[0]!r} has numbers of several units; give it the type 'string' in "
                "the source's 'schema', and convert it in prepare()"
            )
        # As if they were in one block.
        types |= dict.fromkeys(mixed, pa.string())
        summaries, counts = _copy(table, plan, types, parts, window, folder, pool, progress), WindowCounts()
        counts.add(summaries)
    if plain := [name for name, type_ in types.items() if pa.types.is_timestamp(type_) and type_.tz is None]:
        log.info("%s: times without a zone are read as UTC: %s", plan.source.uri, ", ".join(map(repr, plain)))
    return counts, uploaded_files(summaries)


def _describe(plan: ReadingPlan, listed: Sequence[SourceFile], pool: Pool) -> tuple[list[FileSummary], Types]:
    """Returns descriptions of the files, and the types of the table's columns."""
    files = run_parts(_pool_for(listed, pool), describe_file, plan, listed, FileSummary)
    _check_seen(files, pool)
    are_texts = all(file.format in ("csv", "jsonl") for file in files)
    return files, unify({file.name: each.types for file, each in zip(listed, files, strict=True)}, are_texts=are_texts)


def _copy(
    table: str,
    plan: ReadingPlan,
    types: Types,
    parts: Sequence[FilePart],
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
    summaries = run_parts(chosen, work, copying, parts, PartSummary, progress)
    if folder.store is None:
        remove_leftovers(Path(folder.path) / table)
    _check_seen(summaries, pool)
    return summaries


def _pool_for(parts: Sequence[object], pool: Pool) -> Pool:
    """Returns this process for a single part, unless the executors of a cluster are to run it."""
    return IN_PROCESS if pool.runs_here and len(parts) == 1 else pool


def _check_seen(summaries: Sequence[FileSummary] | Sequence[PartSummary], pool: Pool) -> None:
    """Raises BadInput if a listed file could not be opened."""
    for summary in summaries:
        if summary.unseen and pool.runs_here:
            raise BadInput(summary.unseen)
        if summary.unseen:
            raise BadInput(
                f"Spark's executor on {summary.unseen}, which this step lists on {socket.gethostname()}; use a source "
                "that all hosts reach, such as s3:// or hdfs://, or a folder that they share, or let the step run on "
                "this machine: name, by hops_conn_id, a connection whose spark_conn_id has the host local[*]"
            )
