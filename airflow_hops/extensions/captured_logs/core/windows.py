"""Windows of a log: which parts of its files each reads, and which entries it takes.

A window is the number of its plan. A file's part has the number of the first window that found it. An entry is taken by
the first window, from that of its part on, whose end is after the entry's time: so each entry is taken once, also if it
is late, or its clock is fast. Two windows of a log never depend on each other's success.

``<store>/_state/tasks/<dag>/<task>/logs/<table>-<digest>/log.json`` has the plans and parts.
"""

# A part that was planned never changes: a retry of a window reads the same bytes. An entry that is delivered twice is
# found among the entries of the last 2 * lookback windows: it counts only if it was captured within the last lookback
# windows, and waits through at most as many.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_fields import JsonFields

_PLANS_KEPT = 1000
IN_THE_FUTURE = "captured in the future"
"""Reason for which an entry is left out whose time no window reaches."""


@dataclass(frozen=True)
class LogPart(JsonFields):
    """Bytes of a file, from ``start`` up to ``end``, that the window ``number`` found first."""

    path: str
    format: str
    start: int
    end: int
    number: int


@dataclass(frozen=True)
class LogFile(JsonFields):
    """A file of a log as a window found it.

    Attributes:
        format: ``lines``, which may grow; or ``gzip`` or ``parquet``, which may not.
        size: Bytes.
        version: A text that changes with the file; empty if unknown.
        end: Bytes up to the end of the last complete entry.
        tail: Digest of the last bytes before ``end`` of lines, which tell a file that grew from another of its name.
    """

    path: str
    format: str
    size: int
    version: str
    end: int
    tail: str = ""


@dataclass(frozen=True)
class WindowPlan(JsonFields):
    """A window, and what it reads.

    Attributes:
        number: Number of the window.
        ends: End of each window that matters, by number, in microseconds since the epoch; None takes everything.
        first_start: Start of the log's first window; None for all of the log.
        lookback: As of the source.
        deployed: Versions in the model's record; None without a record.
        parts: The parts, by number and path.
    """

    number: int
    ends: Mapping[int, int | None]
    first_start: int | None
    lookback: int
    deployed: tuple[int, ...] | None = None
    parts: tuple[LogPart, ...] = ()

    def is_taken_before(self, number: int, at_us: int) -> bool:
        """Returns whether a window before this one has taken an entry of a part of a number."""
        last = min(self.number - 1, number + self.lookback)
        return any(_is_before(at_us, self.ends[each]) for each in range(number, last + 1))

    def judge(self, number: int, at_us: int) -> str | None:
        """Judges an entry that no window before has taken.

        Returns:
            ``""`` if this window takes it; None if it waits for a later window, or one before has refused it; or why it
            is refused.
        """
        oldest = self.ends.get(self.number - self.lookback - 1)
        if number == self.number and self.first_start is not None and at_us < self.first_start:
            return "outside window"
        if number == self.number and oldest is not None and at_us < oldest:
            return f"captured more than {self.lookback} windows before"
        is_last = number + self.lookback == self.number
        if number + self.lookback < self.number or not (is_last or _is_before(at_us, self.ends[self.number])):
            return None
        return "" if _is_before(at_us, self.ends[self.number]) else IN_THE_FUTURE


def _is_before(at_us: int, end: int | None) -> bool:
    return end is None or at_us < end


@dataclass(frozen=True)
class LogState(JsonFields):
    """The windows of a log so far.

    Attributes:
        windows: Key and end of each window, and ``deployed`` of its plan; the first one has the number ``dropped``.
        dropped: Number of windows that were forgotten.
        first_start: Start of the first window.
        files: The files as the newest window found them.
        parts: Parts of all windows that may be read again.
    """

    windows: tuple[tuple[str, int | None, tuple[int, ...] | None], ...] = ()
    dropped: int = 0
    first_start: int | None = None
    files: tuple[LogFile, ...] = ()
    parts: tuple[LogPart, ...] = ()

    def number(self, key: str) -> int | None:
        """Returns the number of a window; None if it was not planned."""
        return next((self.dropped + index for index, each in enumerate(self.windows) if each[0] == key), None)

    def planned(
        self, key: str, start: int | None, end: int | None, found: Iterable[LogFile], deployed: tuple[int, ...] | None
    ) -> LogState:
        """Returns the state with one more window.

        Args:
            key: Name of the window.
            start: Its start, in microseconds since the epoch.
            end: Its end.
            found: The log's files now.
            deployed: As of :class:`WindowPlan`.

        Raises:
            BadInput: a later window was planned before, or a file was replaced.
        """
        last = self.windows[-1][1] if self.windows else None
        if last is not None and end is not None and end <= last:
            raise BadInput(
                f"window {key}: a window that ends later was planned before; the windows of a log are read in their "
                "order: "
                "give the DAG max_active_runs=1, and backfill into another DAG, or begin with the earliest window"
            )
        number, known = self.dropped + len(self.windows), {file.path: file for file in self.files}
        files = list(found)
        parts = list(self.parts)
        for file in files:
            former = known.get(file.path)
            if former is not None:
                _check_grown(former, file)
            begin = former.end if former is not None else 0
            if file.end > begin:
                parts.append(LogPart(file.path, file.format, begin, file.end, number))
        windows = (*self.windows, (key, end, deployed))
        forgotten = max(0, len(windows) - _PLANS_KEPT)
        return replace(
            self,
            windows=windows[forgotten:],
            dropped=self.dropped + forgotten,
            first_start=self.first_start if self.windows else start,
            files=tuple(files),
            parts=tuple(part for part in parts if part.number >= self.dropped + forgotten),
        )

    def plan(self, number: int, lookback: int) -> WindowPlan:
        """Returns the plan of a window."""
        first = max(self.dropped, number - 2 * lookback)
        ends = {each: self.windows[each - self.dropped][1] for each in range(first, number + 1)}
        parts = [part for part in self.parts if first <= part.number <= number]
        deployed = self.windows[number - self.dropped][2]
        ordered = tuple(sorted(parts, key=lambda part: (part.number, part.path, part.start)))
        return WindowPlan(number, ends, self.first_start, lookback, deployed, ordered)


def replaced(former: LogFile, size: int) -> BadInput:
    """Returns the error of a file that is another one than before."""
    return BadInput(
        f"{former.path}: the file was replaced since a window has read it (it had {former.size} bytes, and has "
        f"{size}); its rows could be taken twice. Restore it, or remove it and give the new one another name"
    )


def _check_grown(former: LogFile, file: LogFile) -> None:
    """Raises BadInput if a file is not the former one, or has not only grown."""
    is_same = file.size == former.size and (file.format == "lines" or file.version == former.version)
    if file.format != former.format or not (is_same or (file.format == "lines" and file.size > former.size)):
        raise replaced(former, file.size)
