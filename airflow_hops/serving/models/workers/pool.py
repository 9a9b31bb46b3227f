"""The workers of one version: which of them gets a request, and what happens when one ends."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.opened_version import OpenedVersion
from airflow_hops.serving.models.workers.autoscaling import Autoscaler, ScalingOptions
from airflow_hops.serving.models.workers.worker import Worker

log = logging.getLogger(__name__)

# The first worker that ends is replaced at once; should its replacements end, too, then ever later, up to the longest.
_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 3.0
_DEATHS_WINDOW_S = 30.0

StartWorker = Callable[[Callable[[Worker], None]], Worker]


class WorkerPool:
    """The workers of one version.

    Args:
        version: What they open; while one of them serves, it is opened as that one has it, or not at all.
        start: Starts a worker, and returns when it has opened the version; takes what to call when it has ended.
        scaling: How many there are.

    Attributes:
        restarts: Workers that ended by themselves.
        signature_defs: Of the version, a serialized ``SignatureDefMap``.

    Raises:
        ServingError: The version does not load.
    """

    def __init__(self, version: OpenedVersion, start: StartWorker, scaling: ScalingOptions) -> None:
        self.restarts = 0
        self._name = f"model {version.model} version {version.version}"
        self._version = version.as_it_is()
        self._start = start
        self._scaling = scaling
        self._autoscaler = Autoscaler(scaling)
        self._changed = threading.Condition()
        self._workers: list[Worker] = []
        self._wanted = scaling.bounds.minimum
        self._starting = 0
        self._waiting = 0
        self._deaths: deque[float] = deque()
        self._last_end = ""
        self._failure = ""
        self._closed = False
        self._open()

    def take(self, deadline_s: float, alone: bool = False) -> Worker:
        """Chooses the worker with the fewest requests in flight, for one more; ``give`` ends that.

        Args:
            deadline_s: When the client gives up, as of ``time.monotonic()``.
            alone: Whether the request must share it with no other.

        Raises:
            ServingError: The deadline has passed, or there is no worker and none can be started.
        """
        with self._changed:
            while True:
                worker = self._choose()
                if worker is None:
                    self._wait(deadline_s)
                    continue
                worker.in_flight += 1
                worker.requests += 1
                worker.alone = alone
                try:
                    while alone and worker.in_flight > 1:
                        self._wait(deadline_s)
                except ServingError:
                    self.give(worker)
                    raise
                return worker

    def give(self, worker: Worker) -> None:
        """Ends what ``take`` began."""
        with self._changed:
            worker.in_flight -= 1
            if worker.alone:
                # The request that wants it alone is in flight, too: at none, that has been answered.
                worker.alone = worker.in_flight > 0
                self._changed.notify_all()
            self._end_if_drained(worker)

    def scale(self) -> None:
        """Looks at the requests in flight, and adds or takes away workers."""
        with self._changed:
            wanted = self._autoscaler.observe(self._in_flight(), time.monotonic())
            if self._closed or wanted == self._wanted:
                return
            log.info("%s: from %d to %d workers", self._name, self._wanted, wanted)
            self._wanted = wanted
            serving = sorted(self._serving(), key=_load)
            for worker in serving[: max(0, len(serving) - wanted)]:
                worker.draining = True
                self._end_if_drained(worker)
            self._fill()

    def abandon(self) -> None:
        """Starts no more worker, whatever becomes of those there are."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the workers, and waits until they are no more and their memory is given back."""
        self.abandon()
        with self._changed:
            workers = list(self._workers)
        _end(workers)
        with self._changed:
            self._changed.wait_for(lambda: not self._starting)

    def report(self) -> dict[str, Any]:
        """Returns what ``GET /v1/workers`` says of the version."""
        with self._changed:
            workers = [
                {
                    "pid": worker.process.pid,
                    "state": "draining" if worker.draining else "ready",
                    "in_flight": worker.in_flight,
                    "requests": worker.requests,
                    "age_s": round(time.monotonic() - worker.started_s, 3),
                }
                for worker in self._workers
            ]
            return {
                "workers": workers,
                "starting": self._starting,
                "wanted": self._wanted,
                "minimum": self._scaling.bounds.minimum,
                "maximum": self._scaling.bounds.maximum,
                "in_flight": self._in_flight(),
                "restarts": self.restarts,
                "last_end": self._last_end or None,
            }

    @property
    def workers(self) -> list[Worker]:
        """Those that serve."""
        with self._changed:
            return list(self._workers)

    def _open(self) -> None:
        count = self._wanted
        with ThreadPoolExecutor(count, "worker-start") as executor:
            starts = [executor.submit(self._start_with, self._version) for _ in range(count)]
        failed = next((start for start in starts if start.exception()), None)
        workers = [start.result() for start in starts if not start.exception()]
        if failed is not None:
            _end(workers)
            failed.result()
        self.signature_defs = workers[0].signature_defs
        with self._changed:
            for worker in workers:
                self._add(worker)

    def _serving(self) -> list[Worker]:
        return [worker for worker in self._workers if not worker.draining]

    def _choose(self) -> Worker | None:
        free = [worker for worker in self._workers if not (worker.alone or worker.draining or worker.gone)]
        return min(free, key=_load) if free else None

    def _in_flight(self) -> int:
        return self._waiting + sum(worker.in_flight for worker in self._workers)

    def _wait(self, deadline_s: float) -> None:
        if self._closed:
            raise ServingError(grpc.StatusCode.UNAVAILABLE, f"{self._name} is being unloaded")
        if self._failure and not self._workers:
            raise ServingError(
                grpc.StatusCode.UNAVAILABLE, f"{self._name} has no worker; the last did not start: {self._failure}"
            )
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise ServingError(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        self._waiting += 1
        self._changed.wait(None if left_s == math.inf else left_s)
        self._waiting -= 1

    def _end_if_drained(self, worker: Worker) -> None:
        if worker.draining and not worker.in_flight:
            worker.close()

    def _on_end(self, worker: Worker) -> None:
        with self._changed:
            worker.gone = True
            if worker in self._workers:
                self._remove(worker)

    def _add(self, worker: Worker) -> None:
        self._workers.append(worker)
        if worker.process.ended.is_set():
            self._remove(worker)
        self._changed.notify_all()

    def _remove(self, worker: Worker) -> None:
        self._workers.remove(worker)
        worker.forget()
        if not worker.draining and not self._closed:
            log.error("%s: worker %d ended with %s", self._name, worker.process.pid, worker.process.end)
            self.restarts += 1
            self._last_end = worker.process.end
            self._deaths.append(time.monotonic())
            self._fill()
        self._changed.notify_all()

    def _fill(self) -> None:
        """Starts the workers that are missing, each in a thread of its own."""
        for _ in range(self._wanted - len(self._serving()) - self._starting):
            # It waits for the lock that is held here, and finds itself counted.
            threading.Thread(target=self._start_one, name="worker-start", daemon=True).start()
            self._starting += 1

    def _start_one(self) -> None:
        while self._may_start():
            version = self._version_to_open()
            try:
                worker = self._start_with(version)
            except Exception as error:
                log.error("%s: a worker did not start: %s", self._name, error)
                with self._changed:
                    self._failure = str(error)
                    self._deaths.append(time.monotonic())
                    self._changed.notify_all()
                continue
            with self._changed:
                self._failure = ""
                if not self._closed and version == self._version:
                    self._starting -= 1
                    self._add(worker)
                    return
            _end([worker])
        with self._changed:
            self._starting -= 1
            self._changed.notify_all()

    def _version_to_open(self) -> OpenedVersion:
        """Returns the version as the workers have it, or as it is now if none of them is left."""
        with self._changed:
            if not self._serving() and (version := self._version.as_it_is()) != self._version:
                self._version, self._failure = version, ""
            return self._version

    def _start_with(self, version: OpenedVersion) -> Worker:
        version.check()
        worker = self._start(self._on_end)
        try:
            version.check()
        except ServingError:
            _end([worker])
            raise
        return worker

    def _may_start(self) -> bool:
        """Waits for as long as the last ends ask for; False when no more worker is wanted."""
        with self._changed:
            while self._deaths and self._deaths[0] < time.monotonic() - _DEATHS_WINDOW_S:
                self._deaths.popleft()
            again = len(self._deaths) - 2
            delay_s = min(_FIRST_DELAY_S * 2.0**again, _LONGEST_DELAY_S) if again >= 0 else 0.0
            self._changed.wait_for(lambda: self._closed, delay_s)
            return not self._closed and len(self._serving()) + self._starting <= self._wanted


def _load(worker: Worker) -> int:
    return worker.in_flight


def _end(workers: Sequence[Worker]) -> None:
    for worker in workers:
        worker.close()
    for worker in workers:
        worker.wait()
