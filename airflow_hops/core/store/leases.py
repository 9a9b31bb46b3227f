"""Leases: files in the store by which a process on any machine sees whether another one lives.

The protocol:

1. The holder *beats*: every ``BEAT_S`` seconds it writes the lease's file, with another text each time.
2. A watcher measures, by its own monotonic clock, for how long the text has not changed. After ``DEAD_BEATS`` beats
   without a change, the holder counts as dead. Times that the holder or the store has written are never compared with
   a clock, so the clocks of the machines may differ by any amount.
3. A holder may be suspended, or cut off from the store. A job that could not beat for ``FENCE_BEATS`` beats ends,
   before others consider it dead; a holder of an exclusive lease fails when it finds that it has lost it.
4. An exclusive lease is a folder of numbered files. Number n + 1 may be created once n was released, or its holder is
   dead; only one of several processes succeeds. A holder that finds a greater number has lost the lease. The file of
   the last holder stays, marked as released, so that numbers never repeat.

Exclusive are, for example, the locks of model servers in stores without locks
(:mod:`airflow_hops.ml.model_server.locks`). A job beats in its record (:mod:`airflow_hops.core.store.jobs`).
"""

from __future__ import annotations

import contextlib
import json
import time
from typing import Generic, TypeVar

from airflow_hops.core.processes.periodic import calling_periodically
from airflow_hops.core.store.artifact_store import ArtifactStore

BEAT_S = 5.0
FENCE_BEATS = 8
DEAD_BEATS = 12

T = TypeVar("T")


class Watch(Generic[T]):
    """Measures how long something that another process changes has stayed the same.

    Args:
        value: The first value read.

    Attributes:
        has_changed: Whether it has changed since, so that its holder was alive after the watch began.
    """

    def __init__(self, value: T) -> None:
        self._value, self._changed_at = value, time.monotonic()
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
        """Returns whether a holder that beats every ``BEAT_S`` seconds counts as dead."""
        return self.silent_s > DEAD_BEATS * BEAT_S


class Lease:
    """An exclusive lease.

    Args:
        store: The artifact store.
        folder: Address of the folder of its files.
        holder: Name of this process, for others.

    Attributes:
        other: Name of the holder that :meth:`try_take` met.
        other_lives: Whether :meth:`try_take` has seen a beat of that holder.
        address: Address of that holder's file.
    """

    def __init__(self, store: ArtifactStore, folder: str, holder: str = "") -> None:
        self._store, self._folder, self._holder = store, folder, holder
        self._number = self._beats = 0
        self._watch: Watch[str] | None = None
        self.other, self.other_lives, self.address = "", False, ""

    def try_take(self, *, from_holder: str | None = None) -> bool:
        """Takes the lease if it is free, its holder is named ``from_holder``, or that counts as dead; returns success.

        A holder is watched over several calls.
        """
        number = self._newest()
        text = ""
        with contextlib.suppress(FileNotFoundError):  # the next holder has removed it meanwhile
            text = self._store.read_text(self._file(number)) if number else ""
        if self.address != self._file(number) or self._watch is None:
            self._watch, self.address = Watch(text), self._file(number)
        self._watch.see(text)
        facts = json.loads(text or "{}")
        self.other, self.other_lives = facts.get("holder", ""), self._watch.has_changed
        is_free = not number or facts.get("is_released") or (bool(text) and self.other == from_holder)
        if not (is_free or self._watch.is_dead):
            return False
        try:
            self._store.create_text(self._file(number + 1), self._text())
        except FileExistsError:
            return False
        if self._newest() != number + 1:  # too late: this number was taken and removed before
            self._store.remove_text(self._file(number + 1))
            return False
        self._number = number + 1
        self._store.remove_text(self._file(number))
        return True

    @property
    def is_lost(self) -> bool:
        """Returns whether another process has taken the lease."""
        return self._newest() > self._number

    def beating(self) -> contextlib.AbstractContextManager[None]:
        """Beats in a thread until the ``with`` block ends."""
        return calling_periodically(self._beat, BEAT_S)

    def release(self) -> None:
        """Releases the lease, unless another process has taken it."""
        if not self.is_lost:
            self._store.write_text(self._file(self._number), self._text(is_released=True))

    def _beat(self) -> None:
        with contextlib.suppress(Exception):  # the next heartbeat may succeed; otherwise another process takes over
            if not self.is_lost:
                self._beats += 1
                self._store.write_text(self._file(self._number), self._text())

    def _text(self, *, is_released: bool = False) -> str:
        return json.dumps({"holder": self._holder, "beat": self._beats, "is_released": is_released})

    def _newest(self) -> int:
        return max((int(name) for name in self._store.names(self._folder) if name.isdigit()), default=0)

    def _file(self, number: int) -> str:
        return f"{self._folder}/{number}"
