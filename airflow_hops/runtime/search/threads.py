"""Trials as threads of a Spark driver: their ranks are tasks of the cluster, so that nothing is forked here."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

from airflow_hops.runtime.gang import Channel
from airflow_hops.runtime.search.endable import Ending
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
        self._threads: dict[int, tuple[threading.Thread, Ending]] = {}

    def start(self, given: Assignment) -> None:
        """Starts a trial."""
        ending = Ending()
        channel = _QueueChannel(given.number, self._events)

        def train() -> None:
            try:
                self._work.train(given, channel, ending)
            finally:
                self._events.put(TrialEvent(given.number, "ended", 0))

        thread = threading.Thread(target=train, name=f"trial-{given.number}", daemon=True)
        self._threads[given.number] = (thread, ending)
        thread.start()

    def stop(self, number: int) -> None:
        """Tells a trial to end; one whose function does not heed that is ended."""
        if number in self._threads:
            self._threads[number][1].asked = True

    def end(self, number: int) -> None:
        """Ends a trial with all of its ranks; its ``ended`` comes soon."""
        self.stop(number)
        if number in self._threads:
            self._threads[number][1].heeded = False

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
        for number in self._threads:
            self.end(number)
        for thread, _ in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))


class _QueueChannel(Channel):
    """A trial's line to the search in the same process."""

    def __init__(self, number: int, events: queue.SimpleQueue[TrialEvent]) -> None:
        super().__init__()
        self._number, self._events = number, events

    def send(self, kind: str, **fields: Any) -> None:
        """Hands a message on."""
        self._events.put(TrialEvent(self._number, kind, {"type": kind, **fields}))
