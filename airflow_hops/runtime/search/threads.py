"""Trials as threads of a Spark driver: their ranks are tasks of the cluster, so that nothing is forked here."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_hops.contract.artifacts import HopsError
from airflow_hops.runtime.gang import Channel, Crew, Event, Placement, RankLauncher, Work
from airflow_hops.runtime.search.processes import TrialEvent
from airflow_hops.runtime.search.trial import Assignment, TrialWork

_END_S = 10.0


class TrialThreads:
    """Starts and ends trials; the methods are those of :class:`~airflow_hops.runtime.search.processes.TrialProcesses`.

    Args:
        work: What they do.
    """

    def __init__(self, work: TrialWork) -> None:
        self._work = work
        self._events: queue.SimpleQueue[TrialEvent] = queue.SimpleQueue()
        self._threads: dict[int, tuple[threading.Thread, threading.Event]] = {}

    def start(self, given: Assignment) -> None:
        """Starts a trial."""
        ending = threading.Event()
        channel = _QueueChannel(given.number, self._events)

        def train() -> None:
            try:
                self._work.train(given, channel, through=lambda launcher: EndableRanks(launcher, ending))
            finally:
                self._events.put(TrialEvent(given.number, "ended", 0))

        thread = threading.Thread(target=train, name=f"trial-{given.number}", daemon=True)
        self._threads[given.number] = (thread, ending)
        thread.start()

    def end(self, number: int) -> None:
        """Ends a trial with all of its ranks; its ``ended`` comes soon."""
        if number in self._threads:
            self._threads[number][1].set()

    def events(self, timeout_s: float) -> Iterator[TrialEvent]:
        """What has come from trials; waits for the first for at most so many seconds."""
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return
        if event.kind == "ended":
            self._threads.pop(event.number)[0].join()
        yield event

    def close(self) -> None:
        """Ends all trials."""
        deadline = time.monotonic() + _END_S
        for _, ending in self._threads.values():
            ending.set()
        for thread, _ in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))


class EndableRanks:
    """Ranks that another thread may end.

    Args:
        launcher: What starts them.
        ending: Set when they are to end.
    """

    def __init__(self, launcher: RankLauncher, ending: threading.Event) -> None:
        self._launcher, self._ending = launcher, ending

    def place(self, np: int) -> list[Placement]:
        """Finds a slot for each rank."""
        return self._launcher.place(np)

    def start(self, placements: Sequence[Placement], work: Work, environment: Mapping[str, str]) -> Crew:
        """Starts the ranks."""
        return _EndableCrew(self._launcher.start(placements, work, environment), self._ending)


class _EndableCrew(Crew):
    def __init__(self, crew: Crew, ending: threading.Event) -> None:
        super().__init__(crew.placements)
        self._crew, self._ending = crew, ending

    def events(self, timeout_s: float) -> list[Event]:
        if self._ending.is_set():
            self._ending.clear()  # what the ranks said last is still taken in
            raise HopsError("the search has ended the trial")
        return self._crew.events(timeout_s)

    def ask_for_stack(self, rank: int) -> None:
        self._crew.ask_for_stack(rank)

    def end(self) -> None:
        self._crew.end()


class _QueueChannel(Channel):
    """A trial's line to the search in the same process."""

    def __init__(self, number: int, events: queue.SimpleQueue[TrialEvent]) -> None:
        super().__init__()
        self._number, self._events = number, events

    def send(self, kind: str, **fields: Any) -> None:
        """Hands a message on."""
        self._events.put(TrialEvent(self._number, kind, {"type": kind, **fields}))
