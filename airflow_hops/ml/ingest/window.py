"""Window of time of a snapshot, and the selection and counts of its rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput
from airflow_hops.core.times import window_time
from airflow_hops.ml.readers.notices import Notices
from airflow_hops.ml.readers.raw_file import RawFile
from airflow_hops.ml.readers.types import as_utc
from airflow_hops.ml.spark.pools import WorkSummary

OUTSIDE_WINDOW = "outside window"


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
        window = cls(window_time("window_start", start), window_time("window_end", end))
        if window.start and window.end and window.end <= window.start:
            of_a_run = (
                '; runs of a DAG with schedule="@daily" have no interval: give it schedule=CronDataIntervalTimetable('
                '"@daily", timezone="UTC"), from airflow.sdk'
            )
            is_moment = window.start == window.end
            raise BadInput(f"window_end {end!r} is not after window_start {start!r}{of_a_run if is_moment else ''}")
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
class WindowCounts(WorkSummary):
    """Counts of rows, and the range of their times.

    Attributes:
        rows_in: Rows read.
        rows_out: Rows in the window.
        rejected: Rows that were left out, by reason.
        earliest: First time, ISO 8601 UTC; None if no row has one.
        latest: Last time.
        notices: What a person should know of the values.
        warnings: Further sentences, of an ingest within this one.
    """

    rows_in: int = 0
    rows_out: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    earliest: str | None = None
    latest: str | None = None
    notices: Notices = field(default_factory=Notices)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Reads JSON."""
        if not isinstance(self.notices, Notices):
            self.notices = Notices.from_dict(self.notices)

    def add(self, others: Iterable[WindowCounts]) -> None:
        """Adds the counts of further rows."""
        for other in others:
            self.rows_in, self.rows_out = self.rows_in + other.rows_in, self.rows_out + other.rows_out
            for reason, rows in other.rejected.items():
                self.reject(reason, rows)
            self._widen(other.earliest, other.latest)
            self.notices.merge(other.notices)
            self.warnings += other.warnings

    def reject(self, reason: str, rows: int) -> None:
        """Counts rejected rows."""
        if rows:
            self.rejected[reason] = self.rejected.get(reason, 0) + rows

    def select(self, table: pa.Table, file: RawFile, window: Window, rows_before: int) -> pa.Table:
        """Counts rows of a file, and returns those in a window; their times in UTC, unless they are integers.

        Raises:
            BadInput: the time column does not hold times.
        """
        self.rows_in += table.num_rows
        self.notices.add_texts(table, file.name, rows_before)
        if file.source.time_column is not None:
            table = self._in_window(table, file, file.source.time_column, window, rows_before)
        self.rows_out += table.num_rows
        return table

    def _in_window(self, table: pa.Table, file: RawFile, column: str, window: Window, rows_before: int) -> pa.Table:
        index = table.schema.get_field_index(column)
        times = as_utc(table.column(index).combine_chunks(), column, file, rows_before)
        ends = pc.min_max(times).as_py()
        self._widen(*(time and time.isoformat() for time in (ends["min"], ends["max"])))
        inside = pc.is_valid(times)
        self.reject(f"{column} is missing", times.null_count)
        if window.start is not None:
            inside = pc.and_(inside, pc.fill_null(pc.greater_equal(times, pa.scalar(window.start, times.type)), False))
        if window.end is not None:
            inside = pc.and_(inside, pc.fill_null(pc.less(times, pa.scalar(window.end, times.type)), False))
        if not pa.types.is_integer(table.schema.field(index).type):
            table = table.set_column(index, pa.field(column, times.type), times)
        chosen = table.filter(inside)
        self.reject(OUTSIDE_WINDOW, table.num_rows - times.null_count - chosen.num_rows)
        return chosen

    def _widen(self, earliest: str | None, latest: str | None) -> None:
        # UTC texts of equal length, up to the seconds, sort as the times do.
        self.earliest = min(filter(None, (self.earliest, earliest)), default=None)
        self.latest = max(filter(None, (self.latest, latest)), default=None)
