"""Lets the requests of a quick model run one after the other.

TensorFlow gives up Python's global lock while it runs. Where a run takes microseconds, other threads take the lock in
between, and the one that comes back has to wait and to be woken for it: that costs several times what the run does. In
turns, who comes back finds the lock free.
"""

from __future__ import annotations

import threading
import time

_QUICK_S = 0.0001
"""CPU seconds. A model whose requests take longer runs in several threads at once, which several cores are good for."""
_PATIENCE_S = 0.005
"""Nobody waits longer for a turn: one slow request among quick ones holds up no other."""
_WEIGHT = 0.05
_LOOK_EVERY = 64


class Turns:
    """Turns of one model's requests; safe to use from every request thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mean_s = 0.0
        self._requests = 0

    def begin(self) -> float:
        """Waits for a turn where the model is a quick one.

        Returns:
            CPU seconds of this thread as the turn begins, 0 where it is none. For :meth:`end`.
        """
        if self._mean_s > _QUICK_S:
            # Now and then one request in its turn tells whether the model has become quick.
            self._requests += 1
            if self._requests % _LOOK_EVERY or not self._lock.acquire(blocking=False):
                return 0.0
        elif not self._lock.acquire(timeout=_PATIENCE_S):
            return 0.0
        return time.thread_time()

    def end(self, began_s: float) -> None:
        """Ends what :meth:`begin` began."""
        if began_s:
            self._mean_s += _WEIGHT * (time.thread_time() - began_s - self._mean_s)
            self._lock.release()
