"""Leases: files in the store by which a process on any machine sees whether another one lives.

The protocol, of which the uses at the end are cases:

1. The holder *beats*: every ``BEAT_S`` seconds it writes the lease's file, with another text each time.
2. A watcher measures, by its own monotonic clock, for how long the text has not changed. After ``DEAD_BEATS`` beats
   without a change, the holder counts as dead. Times that the holder or the store has written are never compared with
   a clock, so the clocks of the machines may differ by any amount.
3. A holder whose beats have failed for ``FENCE_BEATS`` beats ends its work, before others consider it dead.

A worker beats for the pod that it follows (:mod:`airflow_hops.launchers.kubernetes.process`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

BEAT_S = 5.0
FENCE_BEATS = 8
DEAD_BEATS = 12

T = TypeVar("T")


class Watch(Generic[T]):
    """Measures how long something that another process changes has stayed the same.

    Args:
        read: Reads it; called at once, and by :meth:`look`.

    Attributes:
        value: What was read last.
        has_changed: Whether it has changed since the watch began, so that its holder was alive then.
    """

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self.value, self.has_changed = read(), False
        self._changed_at = time.monotonic()

    def look(self) -> T:
        """Reads and returns the value."""
        value = self._read()
        if value != self.value:
            self.value, self.has_changed, self._changed_at = value, True, time.monotonic()
        return value

    @property
    def silent_s(self) -> float:
        """Returns the seconds since the last change that was seen, or since the watch began."""
        return time.monotonic() - self._changed_at
