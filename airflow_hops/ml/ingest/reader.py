"""Reads the rows of one source of any class into a table of a snapshot."""

from __future__ import annotations

import logging
import pkgutil
import re
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from airflow_hops.core.artifacts.artifact import MANIFEST_NAME, FileEntry, RowCounts
from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.sources import RowSource
from airflow_hops.ml.ingest.window import Window, WindowCounts
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.spark.pools import IN_PROCESS, Pool

Progress = Callable[[float, str], None]
"""Called with the finished share and a message."""


log = logging.getLogger(__name__)

_TABLE = re.compile(r"[^./\\*?\[\]{}\x00-\x1f][^/\\*?\[\]{}\x00-\x1f]*")
_MOST_BYTES = 200


class Reader(Protocol):
    """The function that a source class names in ``reader``."""

    def __call__(
        self, table: str, source: Any, plan: Any, window: Window, folder: OutputFolder, pool: Pool, progress: Progress
    ) -> tuple[WindowCounts, list[FileEntry]]:
        """Writes the rows of one table in a window to ``<table>/part-*.parquet``.

        Equal rows must become equal bytes on each machine; :func:`write_part` of
        :mod:`airflow_hops.ml.ingest.parts` does this.

        Args:
            table: The table's name.
            source: The source, with the options of its connection.
            plan: The plan of the class's planner; None without a time column, as for labels.
            window: Window by the source's time column; a source without one is read completely.
            folder: Folder of the snapshot.
            pool: Reads and writes.
            progress: Called with the finished share and a message.

        Returns:
            The counts of rows, and the files that the pool wrote to a remote store.

        Raises:
            BadInput: the source cannot be read, and a retry cannot help.
            HopsError: the source does not answer, or changed while it was read.
        """


def ingest_table(
    table: str,
    source: RowSource,
    window: Window,
    folder: OutputFolder,
    pool: Pool = IN_PROCESS,
    progress: Progress = lambda share, text: None,
    plan: object = None,
    warn: Callable[[str], None] = log.warning,
) -> tuple[RowCounts, list[FileEntry]]:
    """Reads the rows of one table in a window into Parquet files; arguments as those of :class:`Reader`.

    ``warn`` is called with what a person should know of the values.

    Raises:
        BadInput: as the reader, or the table's name cannot be that of a folder, or no rows lie in the window of a
            source that is not ``may_be_empty``.
        HopsError: as the reader.
    """
    # Spark 3.5: takes paths for patterns, and the manifest lies beside the tables.
    if not _TABLE.fullmatch(table) or table == MANIFEST_NAME or len(table.encode()) > _MOST_BYTES:
        raise BadInput(
            f"sources has a table {table[:60]!r}; expected a name that can be a folder's: without / \\ * ? [ ] {{ }} "
            f"and line breaks, no dot at its beginning, and at most {_MOST_BYTES} bytes"
        )
    read: Reader = pkgutil.resolve_name(source.reader)
    counts, files = _read_by(source, partial(read, table, source, plan, window, folder, pool), progress)
    for sentence in (*counts.warnings, *counts.notices.sentences(source)):
        warn(sentence)
    if not counts.rows_out and source.may_be_empty:
        if not folder.has_files(table, files):  # whose columns the reader does not know
            files = [*files, *folder.write_empty(table, pa.schema([]))]
    elif not counts.rows_in and counts.earliest is None:
        raise BadInput(f"table {table!r}: {source.uri!r} has no rows")
    elif not counts.rows_out:
        of_rows = f" of the {counts.rows_in} rows" * bool(counts.rows_in)
        raise BadInput(
            f"table {table!r}: no rows in the window {window}; {source.time_column!r}{of_rows} in {source.uri!r} goes "
            f"from {counts.earliest or 'nothing'} to {counts.latest or 'nothing'}"
        )
    return RowCounts(counts.rows_in, counts.rows_out, counts.rejected).check(f"table {table!r}"), files


def ingest_staged(
    table: str, staged: RowSource, window: Window, folder: OutputFolder, pool: Pool, progress: Progress
) -> tuple[WindowCounts, list[FileEntry]]:
    """Returns what :func:`ingest_table` does of the files that a reader has staged here, as its second half."""
    counts = WindowCounts()
    rows, files = ingest_table(
        table,
        staged,
        window,
        folder,
        pool if pool.runs_here else IN_PROCESS,
        lambda share, text: progress(0.5 + share / 2, text),
        warn=counts.warnings.append,
    )
    counts.rows_in, counts.rows_out, counts.rejected = rows.rows_in, rows.rows_out, dict(rows.rejected)
    return counts, files


def _read_by(
    source: RowSource, read: Callable[[Progress], tuple[WindowCounts, list[FileEntry]]], progress: Progress
) -> tuple[WindowCounts, list[FileEntry]]:
    """Calls a source's reader, which others may have written; an error about its rows is not retried."""
    position = "nothing"

    def note(share: float, text: str) -> None:
        nonlocal position
        position = text
        progress(share, text)

    try:
        return read(note)
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise BadInput(
            f"source {source.uri!r}: its reader {source.reader!r} raised {type(error).__name__}: {error} "
            f"({frame.filename}, line {frame.lineno}), after it had reported {position!r}; correct the reader, or the "
            "rows that it reads"
        ) from error
