"""Windows of a log: which entries each takes, and which parts of files it reads to find them.

A window takes every entry that was captured before its end and that no window has taken. What was planned is not what
was taken, and files are not what was taken: entries are, by the digests of their ids.

1. *Plan*, under the log's lock: a window gets a number, parts of files, and the windows whose entries it leaves out.
2. *Read*: the step takes the other entries, and records them with the times of those that it leaves. Then it publishes.
3. *Commit*, under the lock, after the task's step has succeeded: the window is taken, and its parts are read. If a
   window was committed since the plan that may have taken the same entries, the task fails, and its retry plans again.

A run that ends before its commit leaves its entries to the next window. A window that is taken gives the same entries
at each rerun, from the same parts, or if these are gone, from any file that has them. If the source's options have
changed, it is planned again, with the same parts and without the entries of other windows, and taken by the new plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.json_fields import JsonFields

_WINDOWS_KEPT = 1000
_ENTRIES_KEPT = 100_000_000  # 24 bytes each
NEW = -1
"""``born`` of a file that no window knows."""
IN_THE_FUTURE = "captured in the future"
"""Reason for which an entry is left out whose time is too far ahead."""


@dataclass(frozen=True)
class LogPart(JsonFields):
    """Bytes of a file, from ``start`` up to ``end``.

    Attributes:
        number: Number of the window that read it first; a window counts what it leaves out only in its own parts.
        born: As of the file.
        is_seen: Whether a window of another name has failed with it, and has said what cannot be read in it.
        due_us: End of the windows that have read it, which have counted what they left out before; None without one.
        future_us: Time from which on its entries were left out for good; None for no such time.
        first_us: Time of the oldest entry that no window has taken, in microseconds since the epoch; None without one.
        last_us: Time of the newest such entry.
    """

    path: str
    format: str
    start: int
    end: int
    number: int
    born: int = 0
    is_seen: bool = False
    due_us: int | None = None
    future_us: int | None = None
    first_us: int | None = None
    last_us: int | None = None

    @property
    def place(self) -> tuple[str, int, int]:
        """Path, ``born`` and start, which no two parts share."""
        return self.path, self.born, self.start


@dataclass(frozen=True)
class LogFile(JsonFields):
    """A file of a log as the newest plan found it.

    Attributes:
        format: ``lines``, which may grow; or ``gzip``, ``csv`` or ``parquet``, which may not.
        size: Bytes.
        version: A text that changes with the file; empty if unknown.
        end: Bytes up to the end of the last complete entry.
        tail: Digest of the last bytes before ``end`` of lines, which tell a file that grew from another of its name.
        born: Number of the window that found it first, or found that it is another file than before.
        read: Bytes that taken windows have read.
        quiet: Bytes that were read under another name, so that what is found again in them is not counted.
        seen: Bytes that windows of other names than ``finder`` have found.
        finder: Name of the window of the newest plan; empty if all was read.
    """

    path: str
    format: str
    size: int
    version: str
    end: int
    tail: str = ""
    born: int = NEW
    read: int = 0
    quiet: int = 0
    seen: int = 0
    finder: str = ""

    def parts(self, number: int, future_us: int | None) -> Iterator[LogPart]:
        """Yields the parts that no taken window has read."""
        start = self.read
        for number_of, end, is_seen in ((NEW, self.quiet, False), (number, self.seen, True), (number, self.end, False)):
            if end > start:
                yield LogPart(self.path, self.format, start, end, number_of, self.born, is_seen, future_us=future_us)
            start = max(start, end)


@dataclass(frozen=True)
class WindowPlan(JsonFields):
    """A window, and what it reads. Times are in microseconds since the epoch.

    Attributes:
        number: Number of the plan.
        key: Name of the window.
        end: Its end; None takes everything.
        lookback: As of the source.
        start: Start of the log's first window; None for all of the log.
        oldest: Time before which entries are left out, since copies of them could not be found; None for no such time.
        expires: The ``oldest`` of the next window: an event that waits for another one waits no longer.
        future: Time from which on entries are left out.
        deployed: Versions in the model's record; None without a record.
        parts: The parts, in the order of their windows and paths.
        known: Numbers of the taken windows whose entries are left out.
        folder: Place in the store of the log's windows; empty for a plan that is not recorded.
        repeats: Whether to take the entries again that this window has taken, from any file.
        source: Digest of the source's options.
    """

    number: int
    key: str
    end: int | None
    lookback: int
    start: int | None = None
    oldest: int | None = None
    expires: int | None = None
    future: int | None = None
    deployed: tuple[int, ...] | None = None
    parts: tuple[LogPart, ...] = ()
    known: tuple[int, ...] = ()
    folder: str = ""
    repeats: bool = False
    source: str = ""

    def reaches(self, entries: LogPart | LogWindow) -> bool:
        """Returns whether there may be entries of a part or another window that this window may take."""
        first, last = entries.first_us, entries.last_us
        if first is None or last is None or (self.end is not None and first >= self.end):
            return False
        return all(low is None or last >= low for low in (self.start, self.oldest))

    def judge(self, at_us: int, parts: Sequence[LogPart]) -> str | None:
        """Judges an entry of parts by its time.

        Returns:
            ``""`` if this window may take it; None if it waits for a later one; or why it is left out.
        """
        if self.start is not None and at_us < self.start:
            return "outside window"
        if self.oldest is not None and at_us < self.oldest:
            return f"captured more than {self.lookback} windows before"
        if self.end is None or at_us < self.end:
            return ""
        return IN_THE_FUTURE if any(part.future_us is not None and at_us >= part.future_us for part in parts) else None


@dataclass(frozen=True)
class WindowRead(JsonFields):
    """The result of reading a window.

    Attributes:
        entries: Number of entries that it has taken.
        first_us: Time of the first one.
        last_us: Time of the last one.
        parts: The plan's parts, with the times of the entries that no window has taken.
    """

    entries: int
    first_us: int | None
    last_us: int | None
    parts: tuple[LogPart, ...]


@dataclass(frozen=True)
class LogWindow(JsonFields):
    """A window of a log.

    Attributes:
        number: Number of its plan.
        key: Name of the window; several plans of a window have one name until one of them is taken.
        end: As of the plan.
        horizon: Its end, or else the time of the plan.
        is_taken: Whether its step has succeeded.
        entries: As :class:`WindowRead`.
        first_us: As :class:`WindowRead`.
        last_us: As :class:`WindowRead`.
    """

    number: int
    key: str
    end: int | None
    horizon: int
    is_taken: bool = False
    entries: int = 0
    first_us: int | None = None
    last_us: int | None = None


@dataclass(frozen=True)
class LogState(JsonFields):
    """The windows of a log so far.

    Attributes:
        windows: The windows.
        number: Number of the next plan.
        first_start: Start of the earliest window; None for no start.
        forgotten: Horizon of the newest taken window that was dropped.
        files: The files as the newest plan found them.
        parts: Parts that were read, and have entries that no window has taken.
    """

    windows: tuple[LogWindow, ...] = ()
    number: int = 0
    first_start: int | None = None
    forgotten: int | None = None
    files: tuple[LogFile, ...] = ()
    parts: tuple[LogPart, ...] = ()

    def window(self, key: str, *, is_taken: bool = False) -> LogWindow | None:
        """Returns the newest plan of a window, or the one that was taken; None if there is none."""
        return next((each for each in reversed(self.windows) if each.key == key and each.is_taken >= is_taken), None)

    def known(self, plan: WindowPlan) -> tuple[int, ...]:
        """Returns the numbers of the taken windows that may have entries in common with a plan."""
        others = (each for each in self.windows if each.is_taken and each.key != plan.key)
        return tuple(each.number for each in others if plan.reaches(each))

    def found(self, files: Iterable[LogFile], key: str) -> LogState:
        """Returns the state with the files that a window finds; parts of files that are gone are dropped."""
        former = {(file.path, file.born): file for file in self.files}
        current = list[LogFile]()
        for file in files:
            finder = key if file.end > file.read else ""  # most files are read, and the state is short
            if (known := former.get((file.path, file.born))) is None:
                current.append(replace(file, born=self.number, finder=finder))
            else:
                seen = known.seen if known.finder == key else known.end
                current.append(replace(file, seen=seen, finder=finder))
        born = {(file.path, file.born) for file in current}
        return replace(
            self, files=tuple(current), parts=tuple(part for part in self.parts if (part.path, part.born) in born)
        )

    def lost(self, files: Sequence[LogFile], listed: Iterable[str]) -> str | None:
        """Returns what may be lost with a file that was replaced or removed; None if nothing is.

        A file that appears at the same time, as by rotation, may have the rest: entries tell what is new in it.
        """
        born, names = {(file.path, file.born) for file in files}, set(listed)
        new = {file.path: file.size for file in files if file.born == NEW}
        waiting = max((each.horizon for each in self.windows if each.is_taken), default=0)
        for file in self.files:
            is_written_again = file.format != "lines" and new.get(file.path, 0) >= file.size
            if (file.path, file.born) in born or is_written_again or new.keys() - {file.path}:
                continue
            if file.path in names and file.format == "lines":
                return f"{file.path}: the file was replaced; entries after its first {file.end} bytes may be lost"
            left = (p for p in self.parts if (p.path, p.born) == (file.path, file.born))
            if file.read < file.end or any(part.last_us is not None and part.last_us >= waiting for part in left):
                return f"{file.path}: the file was removed or replaced before a window had read all of it"
        return None

    def planned(
        self,
        key: str,
        start: int | None,
        end: int | None,
        *,
        now: int,
        lookback: int,
        deployed: tuple[int, ...] | None = None,
        folder: str = "",
    ) -> tuple[LogState, WindowPlan]:
        """Returns the state with one more plan, and the plan.

        Args:
            key: Name of the window.
            start: Its start, in microseconds since the epoch.
            end: Its end.
            now: The time.
            lookback: As of the source.
            deployed: As of :class:`WindowPlan`.
            folder: As of :class:`WindowPlan`.

        Raises:
            BadInput: the window is older than those that are remembered.
        """
        horizon = now if end is None else end
        ends = sorted((w.horizon for w in self.windows if w.is_taken and w.horizon < horizon), reverse=True)
        oldest, expires = (ends[index] if index < len(ends) else None for index in (lookback, lookback - 1))
        oldest = max((each for each in (oldest, self.forgotten) if each is not None), default=None)
        first = start if not self.windows or start is None or self.first_start is None else min(self.first_start, start)
        begin = start if start is not None else ends[0] if ends else None
        future = None if end is None or begin is None else end + lookback * (end - begin)
        plan = WindowPlan(self.number, key, end, lookback, first, oldest, expires, future, deployed, folder=folder)
        again = filter(plan.reaches, self.parts)
        parts = [*again, *(part for file in self.files for part in file.parts(self.number, future))]
        ordered = tuple(sorted(parts, key=lambda part: (part.number, part.path, part.start)))
        plan = replace(plan, parts=ordered, known=self.known(plan))
        window = LogWindow(self.number, key, end, horizon)
        state = replace(self, windows=(*self.windows, window), number=self.number + 1, first_start=first)
        state = state._without_oldest()
        if window not in state.windows or (state.forgotten is not None and horizon <= state.forgotten):
            raise BadInput(
                f"window {key}: what windows so long ago have taken is not remembered, so that this one could take "
                "entries twice; a snapshot that it has stays as it is"
            )
        return state, plan

    def is_current(self, plan: WindowPlan) -> bool:
        """Returns whether the bytes of a plan are there as they were, and no window was taken that it does not know."""
        ends = {(file.path, file.born): file.end for file in self.files}
        is_there = all(ends.get((part.path, part.born), 0) >= part.end for part in plan.parts)
        is_taken = any(each.number == plan.number and each.is_taken for each in self.windows)
        return is_there and (is_taken or set(self.known(plan)) <= set(plan.known))

    def planned_again(self, plan: WindowPlan) -> tuple[LogState, WindowPlan]:
        """Returns the state with one more plan of a taken window, of the same parts, and the plan."""
        parts = (replace(part, number=self.number) if part.number == plan.number else part for part in plan.parts)
        again = replace(plan, number=self.number, parts=tuple(parts), known=self.known(plan))
        (window,) = (each for each in self.windows if each.number == plan.number)
        windows = (*self.windows, replace(window, number=self.number, is_taken=False))
        return replace(self, windows=windows, number=self.number + 1)._without_oldest(), again

    def repeated(self, plan: WindowPlan) -> WindowPlan:
        """Returns a plan that finds the entries of a taken window in the files of now."""
        whole = (replace(file, read=0, quiet=0, seen=0) for file in self.files)
        parts = tuple(part for file in whole for part in file.parts(NEW, None))
        return replace(plan, start=None, oldest=None, expires=None, parts=parts, known=(), repeats=True)

    def committed(self, plan: WindowPlan, read: WindowRead | None) -> LogState:
        """Returns the state after a plan's step has succeeded; there is no ``read`` of a plan that was dropped.

        Raises:
            HopsError: another window was taken since the plan that may have the same entries; a retry plans again.
        """
        window = next((each for each in self.windows if each.number == plan.number), None)
        if window is not None and window.is_taken:
            return self
        if window is None or read is None or set(self.known(plan)) - set(plan.known):
            raise HopsError(
                f"window {plan.key}: another run has taken entries of the log in the meantime, and they must not be in "
                "two snapshots; a retry leaves them out. Give the DAG max_active_runs=1"
            )
        taken = replace(window, is_taken=True, entries=read.entries, first_us=read.first_us, last_us=read.last_us)
        others = tuple(each for each in self.windows if each.key != plan.key)
        ends = dict[tuple[str, int], int]()
        for part in read.parts:
            ends[part.path, part.born] = max(part.end, ends.get((part.path, part.born), 0))
        files = (replace(f, read=max(f.read, ends.get((f.path, f.born), 0))) for f in self.files)
        places = {part.place for part in read.parts}
        left = [part for part in read.parts if part.first_us is not None]
        parts = (*(part for part in self.parts if part.place not in places), *left)
        return replace(self, windows=(*others, taken), files=tuple(files), parts=parts)._without_oldest()

    def _without_oldest(self) -> LogState:
        windows, forgotten = sorted(self.windows, key=lambda each: (each.horizon, each.number)), self.forgotten
        entries = sum(each.entries for each in windows)
        while len(windows) > _WINDOWS_KEPT or (entries > _ENTRIES_KEPT and len(windows) > 1):
            oldest = windows.pop(0)
            entries -= oldest.entries
            forgotten = oldest.horizon if oldest.is_taken else forgotten
        return replace(self, windows=tuple(windows), forgotten=forgotten)
