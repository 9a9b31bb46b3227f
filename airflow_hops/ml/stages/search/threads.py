"""Trials as threads of a Spark driver: their ranks are tasks of the cluster, so that nothing is forked here."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

from airflow_hops.ml.stages.search.endable import Ending
from airflow_hops.ml.stages.search.trial import Assignment, TrialEvent, TrialWork

_END_S = 10.0


class TrialThreads:
    """Starts and ends trials, with the methods of :class:`~airflow_hops.ml.stages.search.processes.TrialProcesses`."""

    def __init__(self, work: TrialWork) -> None:
        self._work = work
        self._events: queue.SimpleQueue[TrialEvent] = queue.SimpleQueue()
        self._threads: dict[int, tuple[threading.Thread, Ending]] = {}

    def start(self, given: Assignment) -> None:
        """Starts a trial."""
        ending = Ending()

        def say(**event: Any) -> None:
            self._events.put({"number": given.number, **event})

        def train() -> None:
            try:
                self._work.train(given, say, ending)
            finally:
                say(type="ended", code=0)

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
        if event["type"] == "ended":
            self._threads.pop(event["number"])[0].join()
        yield event

    def close(self) -> None:
        """Ends all trials."""
        deadline = time.monotonic() + _END_S
        for number in self._threads:
            self.end(number)
        for thread, _ in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
