"""Ranks of a trial that the search may end."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.ml.training.gang import Crew, Event, Placement, RankLauncher, Work

_HEED_S = 0.5


@dataclass
class Ending:
    """Whether a trial is to end; a signal's handler or another thread may say so.

    Attributes:
        asked: Whether it is.
        heeded: Whether the user's function has called ``should_stop``, and so returns by itself when it is told.
    """

    asked: bool = False
    heeded: bool = False


@dataclass
class EndableRanks:
    """Ranks that are told to stop, or are ended if their function does not heed it.

    Attributes:
        launcher: What starts them.
        ending: Whether they are to end.
    """

    launcher: RankLauncher
    ending: Ending

    def place(self, np: int) -> list[Placement]:
        """Finds a slot for each rank."""
        return self.launcher.place(np)

    def start(self, placements: Sequence[Placement], work: Work, environment: Mapping[str, str]) -> Crew:
        """Starts the ranks."""
        return _EndableCrew(self.launcher.start(placements, work, environment), self.ending)


class _EndableCrew(Crew):
    def __init__(self, crew: Crew, ending: Ending) -> None:
        super().__init__(crew.placements)
        self._crew, self._ending, self._told_at = crew, ending, math.inf

    def events(self, timeout_s: float) -> list[Event]:
        if self._ending.asked and self._told_at == math.inf:
            self._told_at = time.monotonic()
            for placement in self.placements:
                self._crew.signal(placement.rank, signal.SIGUSR2)
        if not self._ending.heeded and time.monotonic() > self._told_at + _HEED_S:
            self._told_at = math.inf  # what the ranks said last is still taken in
            self._ending.asked = False
            raise HopsError("the search has ended the trial")
        return self._crew.events(timeout_s)

    def signal(self, rank: int, number: int) -> None:
        self._crew.signal(rank, number)

    def end(self) -> None:
        self._crew.end()
