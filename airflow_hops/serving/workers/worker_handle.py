"""A worker, as the first process sees it."""

from __future__ import annotations

import logging
import math
import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_hops.serving.monitoring.logs import BUFFER
from airflow_hops.serving.workers.counts import WorkerCounts
from airflow_hops.serving.workers.launcher import start_process, threads_each
from airflow_hops.serving.workers.peer import Peer, connection_pair
from airflow_hops.serving.workers.worker import ALIVE_EVERY_S, WorkerAssignment

if TYPE_CHECKING:
    from airflow_hops.serving.workers.supervisor import Workers

log = logging.getLogger(__name__)


class Worker:
    """A worker, as the first process sees it.

    Attributes:
        counts: Counts of the last poll.
        is_silent: Whether the worker was killed because its heartbeats stopped.
        is_ending: Whether the server has ended the worker.
    """

    def __init__(self, assignment: WorkerAssignment, workers: Workers) -> None:
        ours, theirs = connection_pair()
        self.counts = WorkerCounts()
        self.is_silent = self.is_ending = False
        self.started_s = time.monotonic()
        with theirs:
            try:
                threads = threads_each(assignment.processes)
                self.process = start_process(assignment, theirs, lambda: workers.on_end(self), threads)
            except BaseException:
                ours.close()
                raise
        self._alive = threading.Event()
        self.peer = Peer(ours, workers.methods, {"log": BUFFER.add, "alive": self._alive.set}, self.end)
        self._asked: Future[Any] | None = None
        self.peer.start()
        if timeout_s := assignment.flags.worker_timeout_seconds:
            threading.Thread(target=self._watch, args=(timeout_s,), name="worker-watch", daemon=True).start()

    def ask_for_counts(self) -> list[Future[Any]]:
        """Requests the counts, unless a request is still pending, so that a stuck worker delays only one poll."""
        self.take_counts()
        if self._asked is None:
            self._asked = self.peer.call("counts")
            return [self._asked]
        return []

    def take_counts(self) -> None:
        """Stores the counts if they have arrived; kinds of requests that they omit have not changed."""
        if self._asked is not None and self._asked.done():
            if self._asked.exception() is None:
                counts: WorkerCounts = self._asked.result()
                self.counts = replace(counts, requests={**self.counts.requests, **counts.requests})
            self._asked = None

    def end(self) -> None:
        """Kills the worker if it still runs."""
        self.process.kill()

    def _watch(self, timeout_s: float) -> None:
        """Kills the worker when it hangs: the kernel still gives it connections, whose clients would wait forever."""
        # Count intervals, since time also passes while the whole machine is suspended. Heartbeats begin after imports.
        silent_s = -math.inf
        while not self.process.ended.wait(ALIVE_EVERY_S):
            silent_s = 0.0 if self._alive.is_set() else silent_s + ALIVE_EVERY_S
            self._alive.clear()
            if silent_s >= timeout_s and not self.is_silent:
                self.is_silent = True
                log.error("worker %d did not respond for %g s and is killed", self.process.pid, timeout_s)
                self.end()
