"""Leases: who holds something that outlives a worker, whether the holder lives, and who takes over.

Holders are the process of a job (:mod:`airflow_hops.core.steps.jobs`), the worker that follows a pod, the search that
works on a study, the sharing daemon, and in an object store a task that changes a model server or collects garbage. The
protocol:

1. A lease is a folder of numbered files in the store. Each file is the record of one holder, and only one of several
   processes can create it. The greatest number has the lease.
2. The holder *beats*: every ``beat_s`` seconds it writes its record with the next beat. A watcher measures, by its own
   monotonic clock, for how long the record has not changed: after ``DEAD_BEATS`` beats the holder counts as dead. Times
   that another machine has written are never compared with a clock, so the clocks may differ by any amount.
3. Number n + 1 is free once n was released, or its holder is dead, or has the same name (:meth:`Lease.try_take`): a
   retry replaces its predecessor at once, and continues with its note. Then n is removed, while the last number stays,
   so numbers never repeat.
4. A lease that is held once, as by a job, has the holder's record as number 1. :meth:`Lease.take_over` creates another
   number while the holder works, and waits for its end.
5. A holder that finds a greater number has lost the lease (:class:`LeaseLost`), and stops.
6. A holder may be suspended, or cut off from the store. What must not run twice ends after ``FENCE_BEATS`` beats that
   could not be written (:attr:`Lease.is_overdue`), before others consider it dead.

Processes of one machine exclude each other by locks of the kernel instead (:mod:`airflow_hops.core.processes.files`):
the death of a holder releases them at once. Such are the lock and followers of a local job, leases of GPUs, and locks
of local stores.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from airflow_hops.core.errors import HopsError
from airflow_hops.core.processes.files import LockHeld
from airflow_hops.core.processes.periodic import calling_periodically
from airflow_hops.core.store.artifact_store import ArtifactStore

BEAT_S = 5.0
FENCE_BEATS = 8
DEAD_BEATS = 12
_POLL_S = 0.5

T = TypeVar("T")


class LeaseLost(LockHeld):
    """Another process has taken the lease from this one."""


@dataclass(frozen=True)
class LeaseRecord:
    """The record of one holder.

    Attributes:
        holder: Its name.
        beat: Increases with each beat.
        is_released: Whether the holder has ended in order.
        note: JSON value for others, such as the result of a job.
    """

    holder: str = ""
    beat: int = 0
    is_released: bool = False
    note: Any = None


class Watch(Generic[T]):
    """Measures how long something that a holder changes with each beat has stayed the same.

    Args:
        value: The first value read.
        beat_s: Seconds between two beats; ``BEAT_S`` by default.

    Attributes:
        has_changed: Whether it has changed since, so that the holder was alive after the watch began.
    """

    def __init__(self, value: T, beat_s: float | None = None) -> None:
        self._value, self._changed_at, self._beat_s = value, time.monotonic(), beat_s
        self.has_changed = False

    def see(self, value: T) -> None:
        """Compares the value just read with the previous one."""
        if value != self._value:
            self._value, self._changed_at, self.has_changed = value, time.monotonic(), True

    @property
    def silent_s(self) -> float:
        """Returns the seconds since the last change that was seen, or since the watch began."""
        return time.monotonic() - self._changed_at

    @property
    def is_dead(self) -> bool:
        """Returns whether the holder counts as dead."""
        return self.silent_s > DEAD_BEATS * (self._beat_s or BEAT_S)


class Lease:
    """A lease, or a process's attempts to get it.

    Args:
        store: The artifact store.
        folder: Address of the folder of its files.
        holder: Name of this process. A holder of the same name is replaced at once; an empty name equals no other.
        beat_s: Seconds between two beats; ``BEAT_S`` by default.
        what: What is held, for errors.
        advice: What to do if another process holds it, for errors.

    Attributes:
        note: The note of this process's record, written with the next beat; at first that of the holder before.
        other: Record of the holder that :meth:`try_take` met.
    """

    def __init__(
        self,
        store: ArtifactStore,
        folder: str,
        holder: str = "",
        *,
        beat_s: float | None = None,
        what: str = "",
        advice: str = "",
    ) -> None:
        self._store, self._folder, self._holder, self._beat_s = store, folder, holder, beat_s or BEAT_S
        self._what, self._advice = what or folder, advice and f"; {advice}"
        self._number = self._beats = self._met = 0
        self._beaten_at = time.monotonic()
        self._watch: Watch[LeaseRecord | None] | None = None
        self.note: Any = None
        self.other: LeaseRecord | None = None

    def read(self, *, first: bool = False) -> LeaseRecord | None:
        """Returns the record of the last number, or of number 1; None if there is none."""
        return self._read(1 if first else self._newest())

    def try_take(self) -> bool:
        """Takes the lease if it is free; returns success. A holder is watched over several calls."""
        number = self._newest()
        self.other = other = self._read(number)
        if self._watch is None or self._met != number:
            self._watch, self._met = Watch(other, self._beat_s), number
        self._watch.see(other)
        is_same = other is not None and self._holder != "" and other.holder == self._holder
        is_free = not number or is_same or (other is not None and other.is_released)
        self.note = other.note if self.note is None and other is not None else self.note
        if not (is_free or self._watch.is_dead) or not self._create(number + 1):
            return False
        if self._newest() != number + 1:  # too late: this number was taken and removed before
            self._store.remove_text(self._file(number + 1))
            return False
        self._number, self._beaten_at = number + 1, time.monotonic()
        self._store.remove_text(self._file(number))
        return True

    def take(self, timeout_s: float = 0.0) -> None:
        """Takes the lease, once its holder has released it or is dead.

        Raises:
            LockHeld: the holder lives, and has not released it for ``timeout_s`` seconds.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self.try_take():
            if time.monotonic() > deadline_s and self._watch is not None and self._watch.has_changed:
                name = self.other.holder if self.other is not None else ""
                raise LockHeld(f"{self._what}: {name or 'another task'} holds {self._file(self._met)}{self._advice}")
            time.sleep(min(_POLL_S, self._beat_s / 4))

    def take_over(self, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        """Asks the holder of number 1 to end, and returns once it has released the lease or counts as dead.

        Args:
            is_cancelled: Called regularly; ends the wait.
        """
        if (record := self._read(1)) is None:
            return
        self._create(self._newest() + 1)
        watch = Watch[LeaseRecord | None](record, self._beat_s)
        while not (record is None or record.is_released or watch.is_dead or is_cancelled()):
            time.sleep(min(1.0, self._beat_s))
            watch.see(record := self._read(1))

    @contextlib.contextmanager
    def held(self, timeout_s: float = 0.0) -> Iterator[None]:
        """Takes the lease, beats in a thread until the ``with`` block ends, and releases it; see :meth:`take`."""

        def beat() -> None:
            with contextlib.suppress(Exception):  # the next beat may succeed; otherwise another process takes over
                self.beat()

        self.take(timeout_s)
        try:
            with calling_periodically(beat, self._beat_s):
                yield
        finally:
            with contextlib.suppress(OSError, HopsError):  # it expires otherwise
                self.release()

    def beat(self) -> None:
        """Writes the record with the next beat.

        Raises:
            LeaseLost: another process has taken the lease.
        """
        self.check()
        self._write()

    def check(self) -> None:
        """Raises LeaseLost if another process has taken the lease."""
        if self._newest() > self._number:
            raise LeaseLost(f"{self._what}: another task has taken {self._folder} from this one{self._advice}")

    @property
    def is_overdue(self) -> bool:
        """Returns whether no beat was written for so long that others are about to consider this process dead."""
        return time.monotonic() - self._beaten_at > FENCE_BEATS * self._beat_s

    def release(self) -> None:
        """Releases the lease, unless the record was removed by another process that has taken it."""
        if self._number in self._numbers():
            self._write(is_released=True)

    def remove_first(self) -> None:
        """Removes number 1; a holder that comes back still sees from greater ones that it has lost."""
        self._store.remove_text(self._file(1))

    def _create(self, number: int) -> bool:
        try:
            self._store.create_text(self._file(number), self._text())
        except FileExistsError:
            return False
        return True

    def _write(self, *, is_released: bool = False) -> None:
        self._beats += 1
        self._store.write_text(self._file(self._number), self._text(is_released=is_released))
        self._beaten_at = time.monotonic()

    def _text(self, *, is_released: bool = False) -> str:
        return json.dumps(asdict(LeaseRecord(self._holder, self._beats, is_released, self.note)))

    def _read(self, number: int) -> LeaseRecord | None:
        with contextlib.suppress(FileNotFoundError):  # there is none (0), or the next holder has removed it
            return LeaseRecord(**self._store.read_json(self._file(number)))
        return None

    def _newest(self) -> int:
        return max(self._numbers(), default=0)

    def _numbers(self) -> list[int]:
        return sorted(int(name) for name in self._store.names(self._folder) if name.isdigit())

    def _file(self, number: int) -> str:
        return f"{self._folder}/{number}"


@contextlib.contextmanager
def exclusive(store: ArtifactStore, folder: str, what: str, timeout_s: float) -> Iterator[None]:
    """Holds the lock of a folder in a local store, or a lease in a store without locks.

    Args:
        store: The artifact store.
        folder: Address of the lock's or lease's folder.
        what: What is held, for errors.
        timeout_s: Seconds to wait for another process.

    Raises:
        LockHeld: another process has held it for ``timeout_s`` seconds, or has taken the lease from this one.
    """
    if store.is_local:
        with store.lock(folder, timeout_s):
            yield
        return
    lease = Lease(store, folder, what=what, advice="a retry waits again, and repairs what two have changed")
    with lease.held(timeout_s):
        yield
        lease.check()
