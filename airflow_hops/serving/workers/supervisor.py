"""The server's first process: starts and replaces workers, sends them the state to serve, and sums their counts."""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from airflow_hops.core.serving_api import protocol
from airflow_hops.core.serving_api.config import ConfigError
from airflow_hops.serving.api.control import Controls
from airflow_hops.serving.errors import ServingError, StartError
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.lifecycle import Lifecycle
from airflow_hops.serving.listeners import PortError, hold_port, hold_shared_port
from airflow_hops.serving.models.catalog import Catalog, ModelView, State, VersionStatus
from airflow_hops.serving.models.servable import Servable
from airflow_hops.serving.models.storage import Fingerprint
from airflow_hops.serving.monitoring.series import BatchTotals
from airflow_hops.serving.parts import PartCounts
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes, json_response
from airflow_hops.serving.workers.counts import PastCounts, WorkerCounts, WorkersCapture, WorkersCollector, WorkerStats
from airflow_hops.serving.workers.peer import PeerGone, error_of
from airflow_hops.serving.workers.worker import WorkerAssignment, WorkerModel, WorkerState, worker_flags
from airflow_hops.serving.workers.worker_handle import Worker, WorkerServable

# Protocol between the first process and its workers (calls over airflow_hops.serving.workers.peer, one socket each).
# - Ports: the first process binds them with SO_REUSEPORT and never listens; each worker binds and listens once the
#   state says `is_open`. The kernel distributes connections.
# - A version: open it in one worker; only if that survives, enter it in _opened and open it in the others; then the
#   catalog changes, and `take` sends the complete state to all. A change returns when all have applied it.
# - A state is always sent completely, so repeating it does no harm. A worker that does not apply it
#   within 30 s is killed, because it would serve old versions.
# - A new worker opens what _opened lists, and gets the state under _lock, together with joining _serving: it cannot
#   miss a change, and it listens only after that.
# - Files that changed since a version was opened are refused, so that all workers serve the same bytes. Only if no
#   worker is left do the next ones open the current files.
# - _lock guards _serving, _opened, _refusals and what is sent; _counting serializes polls of counts. Take _counting
#   first. A worker's counts move to _past when it has ended; a kill loses at most the last second.

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_COUNTS_S = 2.0
_STATE_S = 30.0
_CLOSE_S = 70.0
_LONGEST_PAUSE_S = 3.0
_LIVED_S = 30.0
_OPEN_TRIES = 5


class Workers:
    """Answers requests in workers; has the interface of :class:`airflow_hops.serving.endpoint.Endpoint`.

    Args:
        flags: The server's flags; limits on concurrent work are divided among the workers.
        catalog: The models; a change returns when it is in effect in all workers.
        lifecycle: Whether the server accepts requests.

    Attributes:
        stats: Counts of requests over all workers, including those that have ended.
        capture: Captured requests of all workers.
        restarts: Number of workers that crashed, or were killed because they hung.
        hangs: Number of workers that hung.

    Raises:
        PortError: A port is in use.
    """

    def __init__(self, flags: Flags, catalog: Catalog, lifecycle: Lifecycle) -> None:
        asked = {"port": flags.port, "rest_api_port": flags.rest_api_port}
        self._holders = {
            flag: hold_shared_port(flag, flags.host, port) for flag, port in asked.items() if port is not None
        }
        self.grpc_port, self.rest_api_port, *_ = *(holder.getsockname()[1] for holder in self._holders.values()), None
        self.restarts = self.hangs = 0
        self.stats = WorkerStats(self.total)
        self.capture = WorkersCapture(self.total, self.ask_all)
        self.methods: Mapping[str, Callable[..., Any]] = {}
        self._flags = flags
        self._catalog, self._lifecycle = catalog, lifecycle
        self._lock = threading.RLock()
        self._counting = threading.Lock()
        self._serving: list[Worker] = []
        self._opened: dict[int, WorkerServable] = {}
        self._refusals = Counter[int]()
        self._keys = itertools.count(1)
        self._past = PastCounts()
        self._pushed = WorkerState()
        self._is_open = False
        self._last_end = ""
        self._closing = threading.Event()

    def start(self, controls: Controls, routes: Routes) -> None:
        """Starts the workers.

        Raises:
            StartError: A worker cannot be started.
        """
        self.methods = {
            "is_coming": self._catalog.is_coming,
            "statuses": self._catalog.statuses,
            "reload": lambda config: controls.reload(protocol.ModelServerConfig.FromString(config)),
            "traffic": controls.traffic,
            "set_traffic": controls.set_traffic,
            "rest": lambda request: _answered(routes, request),
        }
        flags = worker_flags(self._flags, self.grpc_port, self.rest_api_port)
        self._assignment = WorkerAssignment(flags, tuple(routes.added))
        try:
            with ThreadPoolExecutor(flags.workers) as pool:
                for start in [pool.submit(self._start_worker) for _ in range(flags.workers)]:
                    start.result()
        except (ConfigError, PortError, ServingError, PeerGone, StartError) as error:
            self._end_all()
            raise StartError(str(error) or "a process that answers requests ended while it started") from error
        self._catalog.on_change = self._push
        self._lifecycle.watch(lambda ready: self._push())
        threading.Thread(target=self._look_after, name="workers", daemon=True).start()

    def open_ports(self) -> None:
        """Makes the workers listen at the ports.

        Raises:
            PortError: Another program has taken a port meanwhile.
        """
        for flag, holder in self._holders.items():
            # Other servers of this user could share the port with SO_REUSEPORT, too.
            hold_port(flag, self._flags.host, holder.getsockname()[1]).close()
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # excludes others while no worker listens
        self._is_open = True
        self._push()

    def open(self, model: str, version: int, folder: Path) -> Servable:
        """Opens a version in one worker first, then in the rest: a model that crashes its process ends only one.

        Raises:
            ServingError: The version does not load.
        """
        with self._lock:
            if not self._serving:
                raise ServingError(grpc.StatusCode.UNAVAILABLE, "All workers have ended, and none has restarted yet")
            first = self._serving[0]
        key = next(self._keys)
        opened = WorkerServable(model, version, folder, key, self._close)
        try:
            first.peer.ask("open", key, model, version, folder)
        except PeerGone:
            first.process.ended.wait(_COUNTS_S)
            raise ServingError(
                grpc.StatusCode.INTERNAL, f"The worker that was loading {folder} ended with {first.process.end}"
            ) from None
        with self._lock:
            self._opened[key] = opened
            others = [worker for worker in self._serving if worker != first]
            calls = [worker.peer.call("open", key, model, version, folder) for worker in others]
        try:
            for call in calls:
                with contextlib.suppress(PeerGone):  # the worker's replacement opens the version, too
                    call.result()
            opened.check()
        except BaseException:
            self._close(key)
            raise
        return opened

    def total(self) -> WorkerCounts:
        """Returns the counts of all workers, including those that have ended; those of a stuck worker are outdated."""
        workers, past = self._counted()
        return WorkerCounts.total([*(worker.counts for worker in workers), past])

    def part_counts(self) -> dict[str, PartCounts]:
        """Returns the counts of the observers by part."""
        return self.total().parts

    def batches(self) -> BatchTotals:
        """Returns the totals of batches."""
        return self.total().batches

    def ask_all(self, method: str, *arguments: Any, timeout_s: float | None = None) -> list[Any]:
        """Calls a method of all workers in parallel; returns their results, None for those that failed or timed out."""
        with self._lock:
            calls = {worker.peer.call(method, *arguments): worker for worker in self._serving}
        wait(calls, timeout_s)
        for call, worker in calls.items():
            error = error_of(call, timeout_s)
            if error is not None:
                log.error("worker %d: %s failed: %r", worker.process.pid, method, error)
        return [call.result() if call.done() and call.exception() is None else None for call in calls]

    def add_reports(self, routes: Routes, registry: CollectorRegistry) -> None:
        """Adds ``GET /v1/workers`` and the metrics of workers."""

        def show(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
            return json_response(self.report())

        routes.add("GET /v1/workers", show)
        registry.register(WorkersCollector(self.report, self.metrics))

    def report(self) -> dict[str, Any]:
        """Returns the response to ``GET /v1/workers``."""
        workers = [
            {
                "pid": worker.process.pid,
                "requests": sum(counts.requests for counts in worker.counts.requests.values()),
                "age_s": round(time.monotonic() - worker.started_s, 3),
            }
            for worker in self._counted()[0]
        ]
        counts = {"restarts": self.restarts, "hangs": self.hangs}
        return {"workers": workers, **counts, "last_end": self._last_end or None}

    def metrics(self) -> dict[str, list[Metric]]:
        """Returns the other metrics of each worker by its process id."""
        return {str(worker.process.pid): worker.counts.metrics for worker in self._counted()[0]}

    def drain(self) -> None:
        """Answers the requests in flight, and refuses further ones."""
        self._closing.set()
        self.ask_all("drain", timeout_s=self._flags.drain_seconds + 5.0)

    def close(self) -> None:
        """Writes captured requests and logs, and ends the workers."""
        self.ask_all("finish", timeout_s=_CLOSE_S)
        self._end_all()

    def _end_all(self) -> None:
        with self._lock:
            workers = list(self._serving)
        for worker in workers:
            worker.is_ending = True
            worker.end()
        for worker in workers:
            worker.process.ended.wait()

    def on_end(self, worker: Worker) -> None:
        """Replaces a worker that has ended."""
        with self._lock:
            if worker not in self._serving:
                return
            if self._closing.is_set():
                if not worker.is_ending:
                    log.error("worker %d ended with %s while the server stops", worker.process.pid, worker.process.end)
                return
            self._serving.remove(worker)
            self._past.add(worker.counts)
            self.restarts += 1
            self.hangs += worker.is_silent
            self._last_end = worker.process.end + worker.is_silent * ", as it did not respond"
        log.error("worker %d ended with %s; starting another", worker.process.pid, worker.process.end)
        lived = time.monotonic() - worker.started_s > _LIVED_S
        threading.Thread(target=self._replace, args=(0.0 if lived else 0.1,), name="worker-start", daemon=True).start()

    def _replace(self, pause_s: float) -> None:
        while not self._closing.wait(pause_s):
            try:
                self._start_worker()
                return
            except PeerGone:
                log.error("a worker ended while it started; another is started")
            except Exception as error:
                log.error("a worker did not start: %s", error)
            pause_s = min(max(0.1, 2 * pause_s), _LONGEST_PAUSE_S)

    def _start_worker(self) -> None:
        """Starts a worker, opens the versions that the others have open, and lets it accept requests."""
        worker = Worker(self._assignment, self.methods, self.on_end)
        opened: dict[int, Fingerprint] = {}
        try:
            while True:
                with self._lock:
                    if not self._serving:  # as after a restart, workers open the current files
                        for version in self._opened.values():
                            version.fingerprint = version.current_fingerprint()
                    versions = self._opened.values()
                    missing = [version for version in versions if opened.get(version.key) != version.fingerprint]
                    gone = opened.keys() - self._opened.keys()
                    if not missing:
                        # Hold the lock, so that the worker does not miss a change.
                        worker.peer.ask("serve", self._state(), timeout_s=_STATE_S)
                        self._serving.append(worker)
                        break
                for version in missing:
                    opened[version.key] = version.fingerprint
                    try:
                        version.check()
                        worker.peer.ask("open", version.key, version.model, version.version, version.folder)
                        version.check()
                    except ServingError as error:
                        self._go_without(version.key, error)
        except BaseException:
            worker.end()
            raise
        for key in gone:
            worker.peer.call("close", key)

    def _go_without(self, key: int, error: ServingError) -> None:
        """Drops a version that no longer opens if all workers have ended, so that it does not block other models."""
        with self._lock:
            if key not in self._opened:
                return
            self._refusals[key] += 1
            if self._serving or self._refusals[key] < _OPEN_TRIES:
                raise error
            gone = self._opened.pop(key)
        log.error("model %s version %d no longer opens, and is not served: %s", gone.model, gone.version, error)
        self._catalog.set_status(gone.model, VersionStatus(gone.version, State.END, error))

    def _close(self, key: int) -> None:
        with self._lock:
            self._opened.pop(key, None)
        self.ask_all("close", key, timeout_s=_CLOSE_S)

    def _state(self) -> WorkerState:
        report, views = self._lifecycle.report(), self._catalog.views
        models = {name: self._model(name, view) for name, view in views.items()}
        return WorkerState(
            models={name: model for name, model in models.items() if model.keys},
            shadow=dict(self._catalog.traffic.shadow),
            ready=report["ready"],
            draining=self._lifecycle.draining,
            is_open=self._is_open,
            unavailable=(*report["unavailable"], *(name for name, model in models.items() if not model.keys)),
        )

    def _model(self, name: str, view: ModelView) -> WorkerModel:
        keys = {
            version: servable.key
            for version, servable in view.servables.items()
            if isinstance(servable, WorkerServable) and servable.key in self._opened
        }
        whole = len(keys) == len(view.servables)
        return WorkerModel(keys, view.labels, view.split if whole else self._catalog.traffic.split(name, keys))

    def _push(self, even_if_equal: bool = True) -> None:
        """Sends the state to all workers, and waits until it is in effect; kills workers that fail to apply it."""
        with self._lock:
            state = self._state()
            if state == self._pushed and not even_if_equal:
                return
            self._pushed = state
            calls: dict[Future[Any], Worker] = {worker.peer.call("take", state): worker for worker in self._serving}
            wait(calls, _STATE_S)
        for call, worker in calls.items():
            error = error_of(call, _STATE_S)
            if error is not None:
                log.error("worker %d does not apply the new state, and is killed: %r", worker.process.pid, error)
                worker.end()

    def _counted(self) -> tuple[list[Worker], WorkerCounts]:
        """Polls the counts; returns the workers, and the counts of those that have ended.

        Sums never decrease: polls do not overlap, and a worker counts either as running or as ended.
        """
        with self._counting:
            with self._lock:
                workers = list(self._serving)
            wait([call for worker in workers for call in worker.ask_for_counts()], _COUNTS_S)
            with self._lock:
                for worker in self._serving:
                    worker.take_counts()
                return list(self._serving), self._past.total()

    def _look_after(self) -> None:
        """Polls the counts every second, so that at most one second of counts is lost with a worker."""
        while not self._closing.wait(_LOOK_EVERY_S):
            try:
                self._counted()
                self._push(even_if_equal=False)
            except Exception:
                log.exception("polling the workers failed; trying again")


def _answered(routes: Routes, request: HttpRequest) -> HttpResponse:
    route = routes.find(request.method, request.path)
    return route.answer(request, route.match)
