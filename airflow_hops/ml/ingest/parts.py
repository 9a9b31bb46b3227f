"""Parts of a source, each copied to Parquet files of a snapshot.

Equal files result in equal bytes: the division of a source depends only on its files, and the encoding of rows does not
depend on the machine or the blocks that read them.
"""

from __future__ import annotations

import itertools
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.parquet_writer import parquet_writer
from airflow_hops.core.sources.sources import Source, SourceFile
from airflow_hops.ml.features.raw_features import check_names
from airflow_hops.ml.ingest.window import Window, WindowCounts
from airflow_hops.ml.readers import first_types, infer_types, read
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.readers.notices import Notices
from airflow_hops.ml.readers.parquet import row_groups
from airflow_hops.ml.readers.raw_file import RawFile, identify
from airflow_hops.ml.readers.types import Types, TypesDoNotFit, stored
from airflow_hops.ml.spark.pools import StagedFiles, WorkSummary

# Two rounds over the files: describe (format, types of the first block), then copy with the types that fit all files. A
# value that does not fit ends its part with a `misfit`, not an error; the driver then describes again with all rows and
# copies once more. Errors of a part are sent to the driver in its summary, so that Spark does not retry what would fail
# again.
# A part that is copied twice writes the same bytes under the same names; its files appear when it has written all of
# them.

ROW_GROUP_ROWS = 1 << 17
ROW_GROUP_BYTES = 256 << 20
"""Maximum bytes of text in a row group, which waits in memory."""
FILE_ROWS = 1 << 20
"""Minimum rows of a written file, unless it is the last of its part; maximum rows of a part of several row groups."""
PART_BYTES = 32 << 20
"""Maximum bytes of a part of several files, or of several row groups of Parquet."""
_PROGRESS_BYTES = 32 << 20


@dataclass(frozen=True)
class ReadingPlan:
    """Plan of reading a source, common to all its files.

    Attributes:
        fs: The source's fsspec file system. Only the plan has it and its options, which may be secrets: Spark writes
            tasks to a file.
        source: The source, without storage options.
        all_rows: Whether types are inferred from all rows, or from the first block of each file.
    """

    fs: Any = field(repr=False)
    source: Source
    all_rows: bool = False


@dataclass(frozen=True)
class CopyingPlan:
    """Plan of copying a source, common to all its parts.

    Attributes:
        fs: As for :class:`ReadingPlan`.
        types: Types of the table's columns.
        schema: Schema of the snapshot's files.
        window: Window of the rows to copy.
        folder: Folder of the snapshot.
        table: Name of the table, whose subfolder gets the files.
    """

    fs: Any = field(repr=False)
    types: Types
    schema: pa.Schema
    window: Window
    folder: OutputFolder
    table: str


def copying_plan(fs: Any, file: RawFile, types: Types, window: Window, folder: OutputFolder, table: str) -> CopyingPlan:
    """Returns the plan of a table with these types, and removes files of an earlier attempt; ``file`` is its first.

    Raises:
        BadInput: a column's name or type cannot be used.
    """
    source = file.source
    columns = stored(types, file.name)
    if source.time_column is not None and not pa.types.is_integer(columns[source.time_column]):
        columns[source.time_column] = pa.timestamp("us", "UTC")
    names = [column for column in types if source.columns is None or column in source.columns]
    check_names(names, source.uri)
    if folder.store is None:
        shutil.rmtree(Path(folder.path) / table, ignore_errors=True)
    return CopyingPlan(fs, types, pa.schema([(name, columns[name]) for name in names]), window, folder, table)


class FilePart(NamedTuple):
    """Consecutive files of a source, or row groups of them, without their file system."""

    number: int
    files: tuple[RawFile, ...]


@dataclass(kw_only=True)
class FileSummary(WorkSummary):
    """Description of a file.

    Attributes:
        format: As in :class:`~airflow_hops.ml.readers.raw_file.RawFile`.
        compression: As there.
        schema: Columns and types: a serialized Arrow schema in hexadecimal.
        row_groups: Rows and bytes of each row group of Parquet.
        unseen: Host and error if the file could not be opened.
    """

    format: str = ""
    compression: str | None = None
    schema: str = ""
    row_groups: list[tuple[int, int]] = field(default_factory=list)
    unseen: str = ""

    @property
    def types(self) -> Types:
        """Returns the columns' types."""
        schema = pa.ipc.read_schema(pa.BufferReader(bytes.fromhex(self.schema)))
        return dict(zip(schema.names, schema.types, strict=True))


@dataclass
class PartSummary(WindowCounts):
    """Summary of a copied part.

    Attributes:
        misfit: First value that is not of the inferred types; empty if all are.
        unseen: As for :class:`FileSummary`.
    """

    misfit: str = ""
    unseen: str = ""


class _UnseenFile(Exception):
    """Raised for a listed file that this process cannot open."""


@contextmanager
def _seeing(name: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, PermissionError) as error:
        raise _UnseenFile(f"{socket.gethostname()} cannot open {name} ({type(error).__name__}: {error})") from error


def describe_file(plan: ReadingPlan, file: SourceFile) -> str:
    """Detects a file's format, and infers its types; returns its :class:`FileSummary` as JSON."""
    summary = FileSummary()
    with summary.recording_errors(""):
        try:
            with _seeing(file.name):
                raw = replace(identify(plan.fs, file, plan.source), notices=Notices())
                types = (infer_types if plan.all_rows else first_types)(raw)
                summary.format, summary.compression = raw.format, raw.compression
                summary.schema = pa.schema(list(types.items())).serialize().to_pybytes().hex()
                summary.row_groups = row_groups(raw) if raw.format == "parquet" else []
        except _UnseenFile as error:
            summary.unseen = str(error)
    return summary.to_json()


def plan_parts(files: Sequence[tuple[RawFile, Sequence[tuple[int, int]]]]) -> list[FilePart]:
    """Divides files, with the rows and bytes of their row groups, into parts; small ones share a part."""
    parts: list[list[RawFile]] = []
    rows = size = 0
    for file, groups in files:
        first_row = 0
        for number, (group_rows, group_bytes) in enumerate(groups or [(0, file.file.size_bytes)]):
            rows, size = rows + group_rows, size + group_bytes
            if not parts or rows > FILE_ROWS or size > PART_BYTES:
                parts.append([])
                rows, size = group_rows, group_bytes
            if not groups:
                parts[-1].append(file)
            elif parts[-1] and parts[-1][-1].file == file.file:
                start = (parts[-1][-1].row_groups or range(0)).start
                parts[-1][-1] = replace(parts[-1][-1], row_groups=range(start, number + 1))
            else:
                parts[-1].append(replace(file, row_groups=range(number, number + 1), first_row=first_row))
            first_row += group_rows
    return [FilePart(number, tuple(pieces)) for number, pieces in enumerate(parts)]


def copy_part(
    plan: CopyingPlan, part: FilePart, report: Callable[[float, int], None] = lambda share, rows: None
) -> str:
    """Writes the rows of a part that are in the window; returns its :class:`PartSummary` as JSON.

    ``report`` is called from time to time with the share of bytes and the number of rows read.
    """
    summary = PartSummary()
    with summary.recording_errors(plan.folder.path):
        try:
            write_part(_select(plan, part.files, summary, report), plan, part.number, summary.uploaded)
        except TypesDoNotFit as error:
            summary.misfit = str(error)
        except _UnseenFile as error:
            summary.unseen = str(error)
    return summary.to_json()


def _select(
    plan: CopyingPlan, files: Sequence[RawFile], counts: WindowCounts, report: Callable[[float, int], None]
) -> Iterator[pa.Table]:
    total_bytes = sum(file.file.size_bytes for file in files) or 1
    done_bytes = reported_bytes = 0
    for file in files:
        rows_before = file.first_row
        with _seeing(file.name):
            for batch, position in read(replace(file, fs=plan.fs, notices=counts.notices), plan.types):
                table = pa.Table.from_batches([batch])
                yield counts.select(table, file, plan.window, rows_before).select(plan.schema.names)
                rows_before += batch.num_rows
                if done_bytes + position - reported_bytes >= _PROGRESS_BYTES:
                    reported_bytes = done_bytes + position
                    report(reported_bytes / total_bytes, counts.rows_in)
        done_bytes += file.file.size_bytes


def write_part(tables: Iterable[pa.Table], plan: CopyingPlan, number: int, uploaded: list[Mapping[str, Any]]) -> None:
    """Writes tables of any sizes to ``part-00007.parquet``, ``part-00007_001.parquet`` and so on, if they have rows."""
    groups = _groups_of(tables, plan.schema, ROW_GROUP_ROWS)
    for index, first in enumerate(groups):
        name = f"part-{number:05}{f'_{index:03}' if index else ''}.parquet"
        with plan.folder.writing(uploaded) as folder, StagedFiles() as files:
            create = partial(parquet_writer, schema=plan.schema, version="2.6", compression="snappy")
            writer = files.open(folder / plan.table / name, create)
            rows = 0
            for group in itertools.chain([first], groups):
                writer.write_table(group, row_group_size=ROW_GROUP_ROWS)
                rows += group.num_rows
                if rows >= FILE_ROWS:
                    break


def _groups_of(tables: Iterable[pa.Table], schema: pa.Schema, size: int) -> Iterator[pa.Table]:
    """Regroups the rows into tables of ``size`` rows, or fewer if their text reaches :data:`ROW_GROUP_BYTES`."""
    pending, text_bytes = schema.empty_table(), 0
    for table in tables:
        while table.num_rows:
            # Bytes of each row's strings and binary values, independent of how the table is divided
            sizes = np.zeros(table.num_rows, np.int64)
            for column in table.columns:
                if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
                    sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy()
            totals = text_bytes + np.cumsum(sizes)
            rows = min(size - pending.num_rows, int(np.searchsorted(totals, ROW_GROUP_BYTES)) + 1, table.num_rows)
            pending, text_bytes = pa.concat_tables([pending, table.slice(0, rows)]), int(totals[rows - 1])
            table = table.slice(rows)
            if pending.num_rows == size or text_bytes >= ROW_GROUP_BYTES:
                yield pending.combine_chunks()
                pending, text_bytes = schema.empty_table(), 0
    if pending.num_rows:
        yield pending.combine_chunks()
