"""Ends a training whose machine is taken away: all ranks at one step, with a checkpoint of it.

A notice is a SIGTERM: of a spot machine, a drained node, Slurm, Kubernetes, or of Airflow, which ends a task.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from types import FrameType

# Order: a SIGTERM reaches the step's process (sigterm_notice), whose supervisor passes it on to every rank, or a rank
# itself. The rank only notes it, and goes on. After a step, the ranks exchange their notes; if one has a note, all
# write a checkpoint of this step (a collective), and leave the user's code by PreemptedRank. Their results say so, so
# that rank 0's thread can finish the write; only then does the step's process raise Preempted. A training without
# steps (TrainOperator), or before its first or after its last one, dies of the SIGTERM, as it would without a note.
# An exchange takes some milliseconds, so it happens only once in EXCHANGE_S: all ranks count their calls alike, and
# take the next number from the exchanged times, so that all ask after the same step.

EXCHANGE_S = 0.5
"""Seconds between two exchanges; a notice is heeded at most this long plus a step later."""

Gather = Callable[[Sequence[float]], list[list[float]]]
"""Returns the numbers of each rank, by rank; every rank must call it."""


class PreemptedRank(BaseException):
    """Leaves the user's code. A ``BaseException``, so that no ``except Exception`` there catches it."""


class Preemption:
    """A rank's notice, and the ranks' agreement on the step at which they end.

    Attributes:
        is_noticed: Whether this rank was asked to end.
        is_heeded: Whether it checks for that; if not, a notice ends it at once.
        is_agreed: Whether all ranks have agreed to end.
    """

    def __init__(self, gather: Gather) -> None:
        self._gather = gather
        self.is_noticed = self.is_heeded = self.is_agreed = False
        self._calls, self._every, self._asked_at = 0, 1, time.monotonic()
        self._steps = 0

    def notice(self, number: int = signal.SIGTERM, frame: FrameType | None = None) -> None:
        """Handles a notice."""
        self.is_noticed = True
        if not self.is_heeded:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def agree(self) -> bool:
        """Returns whether the ranks end after this step; every rank must call it after each step."""
        self.is_heeded = True
        self._calls += 1
        if self._calls < self._every:
            return False
        seconds = time.monotonic() - self._asked_at
        by_rank = self._gather([self.is_noticed, seconds])
        self.is_agreed = any(noticed for noticed, _ in by_rank)
        longest = max(seconds for _, seconds in by_rank)
        if longest < EXCHANGE_S / 2:
            self._every *= 2
        elif longest > EXCHANGE_S:
            self._every = max(1, self._every // 2)
        self._calls, self._asked_at = 0, time.monotonic()
        return self.is_agreed

    def is_checkpoint_due(self, every: int) -> bool:
        """Returns whether to write a checkpoint after this step: by a notice, or since the last ``every`` steps."""
        self.end_if_agreed()
        self._steps += 1
        return self.agree() or (every > 0 and self._steps % every == 0)

    def end_if_agreed(self) -> None:
        """Leaves the user's code, after the checkpoint of a notice."""
        if self.is_agreed:
            raise PreemptedRank


@contextmanager
def sigterm_notice() -> Iterator[Event]:
    """Yields an event that a SIGTERM to this process sets, instead of ending it; for its main thread."""
    notice = Event()
    handler = signal.signal(signal.SIGTERM, lambda *_: notice.set())
    try:
        yield notice
    finally:
        signal.signal(signal.SIGTERM, handler)
