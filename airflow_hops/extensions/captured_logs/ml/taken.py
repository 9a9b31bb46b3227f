"""Decides which entries of a log a window takes, by the digests of those that windows have taken.

An entry takes 24 bytes of memory, about 60 while files are merged, so that a window can be compared with ten millions.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.extensions.captured_logs.core.records import LogRecords
from airflow_hops.extensions.captured_logs.core.windows import IN_THE_FUTURE, LogPart, WindowPlan, WindowRead
from airflow_hops.extensions.captured_logs.ml.entries import LogEntry
from airflow_hops.ml.step.context import current_step

_ENTRY = np.dtype([("id", "S16"), ("content", "<u8")])
_RECENT = 500_000
TWICE, OTHER = "delivered twice", "of an id with another content"
"""Reasons of entries whose id was taken before, with the same content or another one."""


class Entries:
    """Digests of the contents of entries, by those of their ids.

    Args:
        files: Contents of files, as :meth:`to_bytes` returns them.
    """

    def __init__(self, files: Iterable[bytes] = ()) -> None:
        self._recent: dict[bytes, int] = {}  # sorted into the arrays once they are many
        self._ids, self._contents = np.empty(0, "S16"), np.empty(0, "<u8")
        self._merge(np.load(io.BytesIO(file), allow_pickle=False) for file in files)

    def __len__(self) -> int:
        return len(self._ids) + len(self._recent)

    def get(self, digest: bytes) -> int | None:
        """Returns the content of the entry with an id; None if there is none."""
        if digest in self._recent or not len(self._ids):
            return self._recent.get(digest)
        index = int(np.searchsorted(self._ids, digest))
        # NumPy leaves out zeros at the end.
        is_there = index < len(self._ids) and self._ids[index] == digest.rstrip(b"\0")
        return int(self._contents[index]) if is_there else None

    def add(self, digest: bytes, content: int) -> None:
        """Adds an entry with a new id."""
        self._recent[digest] = content
        if len(self._recent) >= _RECENT:
            self._merge([])

    def to_bytes(self) -> bytes:
        """Returns the content of a file with the entries, sorted by their ids."""
        self._merge([])
        table = np.empty(len(self._ids), _ENTRY)
        table["id"], table["content"] = self._ids, self._contents
        sink = io.BytesIO()
        np.save(sink, table, allow_pickle=False)
        return sink.getvalue()

    def _merge(self, tables: Iterable[np.ndarray[Any, Any]]) -> None:
        columns = [(table["id"].copy(), table["content"].copy()) for table in tables]
        recent = np.array(list(self._recent.items()), _ENTRY)
        self._recent.clear()
        columns += [(self._ids, self._contents), (recent["id"], recent["content"])]
        ids, contents = (np.concatenate(each) for each in zip(*columns, strict=True))
        del columns
        order = np.argsort(ids, kind="stable")  # merges what is sorted
        self._ids, self._contents = ids[order], contents[order]


class Taking:
    """The entries that a window takes, and those that it leaves for others.

    Args:
        plan: The window. One without a folder takes all entries, and is not recorded.

    Raises:
        HopsError: what former windows have taken is not there any more.
    """

    def __init__(self, plan: WindowPlan) -> None:
        step = current_step()
        self.plan = plan
        self._records = LogRecords.of_plan(step.store, plan) if step is not None and plan.folder else None
        self._before = self._read(plan.known)
        self._again = self._read((plan.number,)) if plan.repeats else None
        self._own = Entries()
        self._times: tuple[int, int] | None = None
        self._left: dict[int, tuple[int, int]] = {}

    def due(self, entry: LogEntry) -> str | None:
        """Judges an entry by its time.

        Returns:
            ``""`` if the window takes it, unless another one has; None if another window does, or has counted it; or
            why it is left out.
        """
        parts = [self.plan.parts[part] for part in entry.parts]
        if self._again is not None:
            return ""
        reason = self.plan.judge(entry.at_us, parts)
        if reason != "" and reason != IN_THE_FUTURE:
            self.leave(entry)
        return reason if reason == "" or self.is_new(entry.parts) else None

    def take(self, entry: LogEntry) -> str | None:
        """Takes an entry that is due.

        Returns:
            ``""`` if it is taken; None if another window has taken it; or why it is left out.
        """
        key, content = _key(entry), _content(entry)
        former, own = self._before.get(key), self._own.get(key)
        if self._again is not None:
            is_taken = self._again.get(key) == content and own is None
            return self._take(entry, key, content) if is_taken else None
        if former is None and own is None:
            return self._take(entry, key, content)
        reason = TWICE if content in (former, own) else OTHER
        return reason if own is not None or self.is_new(entry.parts) else None

    def wait(self, event: LogEntry) -> str | None:
        """Judges an event that waits for another one.

        Returns:
            None if it is left, or its pair was taken; ``""`` if it has waited for long enough; or why it is left out.
        """
        if self._before.get(key := _key(event)) is not None or self._own.get(key) is not None:
            return None  # the part with its other one is not read again
        reason = self.plan.judge(event.at_us, [self.plan.parts[part] for part in event.parts])
        if reason:
            return reason if self.is_new(event.parts) else None
        if self.plan.expires is not None and event.at_us < self.plan.expires:
            return ""
        self.leave(event)
        return None

    def is_new(self, parts: Sequence[int]) -> bool:
        """Returns whether something is in a part that no taken window has read, so that this one counts it."""
        return any(self.plan.parts[part].number == self.plan.number for part in parts)

    def is_due_first(self, entry: LogEntry) -> bool:
        """Returns whether no window before has had to take an entry, so that this one counts it."""
        ends = [self.plan.parts[part].due_us for part in entry.parts]
        return self._again is None and any(end is None or entry.at_us >= end for end in ends)

    def is_seen(self, parts: Sequence[int]) -> bool:
        """Returns whether a window that has failed has said what cannot be read in parts."""
        return all(self.plan.parts[part].is_seen for part in parts)

    def leave(self, entry: LogEntry) -> None:
        """Leaves an entry to a window that reads its parts again."""
        for part in entry.parts:
            self._left[part] = _with(self._left.get(part), entry.at_us)

    def record(self) -> None:
        """Records what the window takes if its step succeeds.

        Raises:
            BadInput: the window was taken before, and some of its entries are in the log no longer.
        """
        if self._again is not None and len(self._own) < len(self._again):
            missing = len(self._again) - len(self._own)
            raise BadInput(
                f"window {self.plan.key}: {missing} of the {len(self._again)} entries that it has taken are not in the "
                "log any more; restore the files that were removed. Its snapshot has the rows"
            )
        if self._records is None or self._again is not None:
            return
        first, last = self._times or (None, None)
        parts = list[LogPart]()
        for index, part in enumerate(self.plan.parts):
            oldest, newest = self._left.get(index, (None, None))
            due = max(part.due_us or 0, 2**62 if self.plan.end is None else self.plan.end)
            parts.append(replace(part, due_us=due, first_us=oldest, last_us=newest))
        read = WindowRead(len(self._own), first, last, tuple(parts))
        self._records.store.files.write(self._records.uri(f"{self.plan.number}.npy"), self._own.to_bytes())
        self._records.store.write_text(self._records.uri(f"{self.plan.number}.read.json"), json.dumps(read.to_dict()))

    def _take(self, entry: LogEntry, key: bytes, content: int) -> str:
        self._own.add(key, content)
        self._times = _with(self._times, entry.at_us)
        return ""

    def _read(self, numbers: Iterable[int]) -> Entries:
        return Entries(self._file(number) for number in numbers if self._records is not None)

    def _file(self, number: int) -> bytes:
        assert self._records is not None
        uri = self._records.uri(f"{number}.npy")
        try:
            return self._records.store.files.read(uri)
        except FileNotFoundError:
            raise HopsError(
                f"{uri}: the file with the entries that a window has taken was removed, so that this window could take "
                "some of them again. If a run has taken that window anew, a retry plans without it; otherwise restore "
                "it, or remove its folder to begin again"
            ) from None


def _with(times: tuple[int, int] | None, at_us: int) -> tuple[int, int]:
    first, last = times or (at_us, at_us)
    return min(first, at_us), max(last, at_us)


def _key(entry: LogEntry) -> bytes:
    return hashlib.blake2b(f"{entry.row} {entry.request_id}".encode(), digest_size=16).digest()


def _content(entry: LogEntry) -> int:
    """Returns a digest of what is logged of a request, the same through JSON and Parquet."""
    value = [entry.version, *map(_without_types, (entry.inputs, entry.outputs, entry.labels))]
    text = json.dumps(value, sort_keys=True, default=repr)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _without_types(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _without_types(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_types(each) for each in value]
    return float(value) if isinstance(value, int) and abs(value) < 2**53 else value
