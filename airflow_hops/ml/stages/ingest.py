"""Ingests raw tables of any source in a window of time into one snapshot of Parquet files.

Equal rows result in equal bytes: files do not depend on when, where or in which blocks the rows were read.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_hops.core.contract.artifacts import Artifact, BadInput, HopsError, RowCounts
from airflow_hops.core.contract.properties import SnapshotProperties
from airflow_hops.core.contract.sources import Source, SourceFile
from airflow_hops.core.store.source_files import list_files
from airflow_hops.ml.features.raw_features import check_names
from airflow_hops.ml.readers import first_types, infer_types, read
from airflow_hops.ml.readers.raw_file import RawFile, identify
from airflow_hops.ml.readers.types import Types, TypesDoNotFit, as_utc, stored, unify
from airflow_hops.ml.step.context import StepContext

log = logging.getLogger(__name__)

ROW_GROUP_ROWS = 1 << 17
ROW_GROUP_BYTES = 256 << 20
"""Maximum bytes of text in a row group, which waits in memory."""
FILE_ROWS = 1 << 20
OUTSIDE_WINDOW = "outside window"
_PROGRESS_BYTES = 32 << 20


@dataclass(frozen=True)
class Window:
    """Window of time ``[start, end)``; None means unbounded."""

    start: datetime | None
    end: datetime | None

    @classmethod
    def parse(cls, start: str | None, end: str | None) -> Window:
        """Parses ISO 8601 texts; a time without a zone is UTC.

        Raises:
            BadInput: a text is not a time, or the end is not after the start.
        """
        window = cls(_parse_time("window_start", start), _parse_time("window_end", end))
        if window.start and window.end and window.end <= window.start:
            raise BadInput(f"window_end {end!r} is not after window_start {start!r}")
        return window

    @property
    def bounds(self) -> tuple[str | None, str | None] | None:
        """Start and end in ISO 8601 UTC; None if the window has no bounds."""
        if self.start is None and self.end is None:
            return None
        start, end = (time.isoformat() if time else None for time in (self.start, self.end))
        return start, end

    def __str__(self) -> str:
        return "[{}, {})".format(*(time.isoformat() if time else "…" for time in (self.start, self.end)))


@dataclass
class _Counts:
    """Counts of a table's rows, and the range of their times."""

    rows_in: int = 0
    rows_out: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    earliest: datetime | None = None
    latest: datetime | None = None

    def reject(self, reason: str, rows: int) -> None:
        if rows:
            self.rejected[reason] = self.rejected.get(reason, 0) + rows

    def widen(self, times: pa.Array) -> None:
        result = pc.min_max(times).as_py()
        if result["min"] is not None:
            self.earliest = min(self.earliest or result["min"], result["min"])
            self.latest = max(self.latest or result["max"], result["max"])


def run(
    context: StepContext,
    *,
    sources: Mapping[str, Mapping[str, Any]],
    window_start: str | None = None,
    window_end: str | None = None,
) -> Artifact:
    """Writes one snapshot with a subfolder per table.

    Args:
        context: The step's context.
        sources: Fields of the :class:`~airflow_hops.core.contract.sources.Source` of each table.
        window_start: Start of the window, ISO 8601.
        window_end: End of the window, ISO 8601, excluded.
    """
    window = Window.parse(window_start, window_end)
    with context.output() as writer:
        rows = {}
        for number, (table, value) in enumerate(sources.items()):
            source = Source.from_value(table, value)

            def report(share: float, counts: RowCounts, number: int = number, table: str = table) -> None:
                context.progress((number + share) / len(sources), f"{table}: {counts.rows_in} rows read")

            rows[table] = ingest_table(table, source, window, writer.path / table, report)
            reasons = "".join(f", {count} {reason}" for reason, count in rows[table].rejected.items())
            log.info("%s: %d rows in, %d out%s", table, rows[table].rows_in, rows[table].rows_out, reasons)
        return writer.commit(
            rows=rows,
            metrics={"rows": sum(counts.rows_out for counts in rows.values())},
            properties=SnapshotProperties(window.bounds, tuple(rows)).to_dict(),
        )


def ingest_table(
    table: str, source: Source, window: Window, folder: Path, report: Any = lambda share, counts: None
) -> RowCounts:
    """Reads the rows of one table in a window into Parquet files.

    Args:
        table: The table's name.
        source: Source of the rows.
        window: Window by the source's time column; a source without one is read completely.
        folder: Folder for ``part-*.parquet``.
        report: Called from time to time with the share of bytes read, and the counts so far.

    Raises:
        BadInput: a file is damaged, a column is missing or mistyped, or no rows lie in the window.
        HopsError: a file changed while it was read.
    """
    fs, listed = list_files(source)
    try:
        files = [identify(fs, file, source) for file in listed]
        of_text = all(file.is_text for file in files)
        try:
            types = unify({file.name: first_types(file) for file in files}, of_text=of_text)
            counts = _copy(files, types, window, folder, report)
        except TypesDoNotFit as error:
            log.info("Types of the first block do not fit all rows (%s); reading all rows for their types", error)
            types = unify({file.name: infer_types(file) for file in files}, of_text=of_text)
            counts = _copy(files, types, window, folder, report)
    except (BadInput, OSError):
        # A file that is being written can look damaged.
        _check_unchanged(source, listed)
        raise
    _check_unchanged(source, listed)
    if not counts.rows_in:
        raise BadInput(f"table {table!r}: {source.uri!r} has no rows")
    if not counts.rows_out:
        raise BadInput(
            f"table {table!r}: no rows in the window {window}; {source.time_column!r} of the {counts.rows_in} rows in "
            f"{source.uri!r} goes from {_text(counts.earliest)} to {_text(counts.latest)}"
        )
    return RowCounts(counts.rows_in, counts.rows_out, counts.rejected).check(f"table {table!r}")


def _check_unchanged(source: Source, listed: Sequence[SourceFile]) -> None:
    """Raises HopsError if the files are not the listed ones any more."""
    try:
        again = {file.name: file for file in list_files(source)[1]}
    except (BadInput, FileNotFoundError):
        again = {}
    for file in listed:
        if again.pop(file.name, None) != file:
            raise HopsError(f"{file.name}: the file changed while it was read; retry when its writer has finished")
    if again:
        raise HopsError(f"{next(iter(again))}: the file appeared while {source.uri!r} was read; retry")


def _copy(files: list[RawFile], types: Types, window: Window, folder: Path, report: Any) -> _Counts:
    """Writes the rows of all files that are in the window; replaces files of an earlier attempt."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    counts = _Counts()
    columns = stored(types, files[0].name)
    time = files[0].source.time_column
    if time is not None and not pa.types.is_integer(columns[time]):
        columns[time] = pa.timestamp("us", "UTC")
    schema = pa.schema(list(columns.items()))
    names = [name for name in types if files[0].source.columns is None or name in files[0].source.columns]
    check_names(names, files[0].source.uri)
    selected = _select(files, types, window, counts, report)
    write_parts((batch.select(names) for batch in selected), pa.schema([schema.field(name) for name in names]), folder)
    if plain := [name for name, type_ in types.items() if pa.types.is_timestamp(type_) and type_.tz is None]:
        log.info("%s: times without a zone are read as UTC: %s", files[0].source.uri, ", ".join(map(repr, plain)))
    return counts


def _select(files: list[RawFile], types: Types, window: Window, counts: _Counts, report: Any) -> Iterator[pa.Table]:
    total_bytes = sum(file.file.size_bytes for file in files) or 1
    done_bytes = reported_bytes = 0
    for file in files:
        rows_before = 0
        for batch, position in read(file, types):
            table = pa.Table.from_batches([batch])
            counts.rows_in += table.num_rows
            if file.source.time_column is not None:
                table = _in_window(table, file, window, counts, rows_before)
            rows_before += batch.num_rows
            counts.rows_out += table.num_rows
            yield table
            if done_bytes + position - reported_bytes >= _PROGRESS_BYTES:
                reported_bytes = done_bytes + position
                report(reported_bytes / total_bytes, counts)
        done_bytes += file.file.size_bytes
    report(1.0, counts)


def _in_window(table: pa.Table, file: RawFile, window: Window, counts: _Counts, rows_before: int) -> pa.Table:
    column = file.source.time_column
    assert column is not None
    index = table.schema.get_field_index(column)
    times = as_utc(table.column(index).combine_chunks(), column, file, rows_before)
    counts.widen(times)
    inside = pc.is_valid(times)
    counts.reject(f"{column} is missing", times.null_count)
    if window.start is not None:
        inside = pc.and_(inside, pc.fill_null(pc.greater_equal(times, pa.scalar(window.start, times.type)), False))
    if window.end is not None:
        inside = pc.and_(inside, pc.fill_null(pc.less(times, pa.scalar(window.end, times.type)), False))
    if not pa.types.is_integer(table.schema.field(index).type):
        table = table.set_column(index, pa.field(column, times.type), times)
    chosen = table.filter(inside)
    counts.reject(OUTSIDE_WINDOW, table.num_rows - times.null_count - chosen.num_rows)
    return chosen


def write_parts(tables: Iterable[pa.Table], schema: pa.Schema, folder: Path) -> None:
    """Writes tables of any sizes to ``part-00000.parquet`` and so on; equal rows result in equal bytes."""
    part = rows = 0
    writer = pq.ParquetWriter(folder / "part-00000.parquet", schema, version="2.6", compression="snappy")
    try:
        for group in _groups_of(tables, schema, ROW_GROUP_ROWS):
            if rows >= FILE_ROWS:
                writer.close()
                part, rows = part + 1, 0
                writer = pq.ParquetWriter(
                    folder / f"part-{part:05}.parquet", schema, version="2.6", compression="snappy"
                )
            writer.write_table(group, row_group_size=ROW_GROUP_ROWS)
            rows += group.num_rows
    finally:
        writer.close()


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


def _parse_time(argument: str, text: str | None) -> datetime | None:
    # Templates render missing values as one of these texts.
    if text is None or text in ("", "None"):
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{argument} is {text!r}, expected a time in ISO 8601, like 2013-01-01T00:00:00Z") from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _text(time: datetime | None) -> str:
    return time.isoformat() if time else "nothing"
