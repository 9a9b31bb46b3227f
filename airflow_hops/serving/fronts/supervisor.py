"""The server's first process: starts fronts, tells them what to serve, replaces them, adds up what they count."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from airflow_hops.core.serving_api import protocol
from airflow_hops.core.serving_api.config import ConfigError
from airflow_hops.serving.api.control import Controls
from airflow_hops.serving.assembly import StartError
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.fronts.counts import FrontCounts, FrontStats, PastCounts, add_batches
from airflow_hops.serving.fronts.front import FrontAssignment, FrontModel, FrontState, front_flags
from airflow_hops.serving.fronts.front_handle import Front
from airflow_hops.serving.fronts.peer import PeerGone, error_of
from airflow_hops.serving.fronts.reports import FrontsCapture, FrontsCollector
from airflow_hops.serving.fronts.servable import FrontServable
from airflow_hops.serving.gateway.shadow import ShadowCounts
from airflow_hops.serving.lifecycle import Lifecycle
from airflow_hops.serving.listeners import PortError, hold_port, hold_shared_port
from airflow_hops.serving.models.catalog import Catalog, ModelView, State, VersionStatus
from airflow_hops.serving.models.opened_version import OpenedVersion
from airflow_hops.serving.models.servable import Servable
from airflow_hops.serving.monitoring.series import BatchTotals
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes, json_response

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_COUNTS_S = 2.0
_STATE_S = 30.0
_CLOSE_S = 70.0
_LONGEST_PAUSE_S = 3.0
_LIVED_S = 30.0
_OPEN_TRIES = 5


class Fronts:
    """Answers requests in fronts; has the same parts as :class:`airflow_hops.serving.endpoint.Endpoint`.

    Args:
        flags: How. Limits on what is under way at once are shared among the fronts.
        catalog: What requests are to see; every change is in effect in all fronts before who made it goes on.
        lifecycle: Whether requests are welcome.

    Attributes:
        stats: Counts of requests, over all fronts and those that have ended.
        capture: Has all fronts write what they captured.
        restarts: Fronts that ended by themselves, or were ended because they hung.
        hangs: Those of them that hung.

    Raises:
        PortError: A port is taken.
    """

    def __init__(self, flags: Flags, catalog: Catalog, lifecycle: Lifecycle) -> None:
        asked = {"port": flags.port, "rest_api_port": flags.rest_api_port}
        self._holders = {
            flag: hold_shared_port(flag, flags.host, port) for flag, port in asked.items() if port is not None
        }
        self.grpc_port, self.rest_api_port, *_ = *(holder.getsockname()[1] for holder in self._holders.values()), None
        self.restarts = self.hangs = 0
        self.stats = FrontStats(self.total)
        self.capture = FrontsCapture(self)
        self.methods: Mapping[str, Callable[..., Any]] = {}
        self._flags = flags
        self._catalog, self._lifecycle = catalog, lifecycle
        self._lock = threading.RLock()
        self._counting = threading.Lock()
        self._serving: list[Front] = []
        self._opened: dict[int, OpenedVersion] = {}
        self._refusals = Counter[int]()
        self._keys = itertools.count(1)
        self._past = PastCounts()
        self._pushed = FrontState()
        self._is_open = False
        self._last_end = ""
        self._closing = threading.Event()

    def start(self, controls: Controls, routes: Routes) -> None:
        """Starts the fronts.

        Raises:
            StartError: One cannot.
        """
        self.methods = {
            "is_coming": self._catalog.is_coming,
            "statuses": self._catalog.statuses,
            "reload": lambda config: controls.reload(protocol.ModelServerConfig.FromString(config)),
            "traffic": controls.traffic,
            "set_traffic": controls.set_traffic,
            "rest": lambda request: _answered(routes, request),
        }
        flags = front_flags(self._flags, self.grpc_port, self.rest_api_port)
        self._assignment = FrontAssignment(flags, flags.fronts, tuple(routes.added))
        try:
            with ThreadPoolExecutor(flags.fronts) as pool:
                for start in [pool.submit(self._start_front) for _ in range(flags.fronts)]:
                    start.result()
        except (ConfigError, PortError, ServingError, PeerGone, StartError) as error:
            self._end_all()
            raise StartError(str(error) or "a process that answers requests ended while it started") from error
        self._catalog.on_change = self._push
        self._lifecycle.watch(lambda ready: self._push())
        threading.Thread(target=self._look_after, name="fronts", daemon=True).start()

    def open_ports(self) -> None:
        """Has the fronts listen at the ports.

        Raises:
            PortError: Another program has taken a port since.
        """
        for flag, holder in self._holders.items():
            # Ports can be shared with any server of this user that shares them, too.
            hold_port(flag, self._flags.host, holder.getsockname()[1]).close()
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)  # keeps others out while no front listens
        self._is_open = True
        self._push()

    def open(self, model: str, version: int, folder: Path) -> Servable:
        """Opens a version in every front: first in one, so that a model that ends its process ends no more of them.

        Raises:
            ServingError: It does not load.
        """
        started_s = time.monotonic()
        with self._lock:
            if not self._serving:
                raise ServingError(grpc.StatusCode.UNAVAILABLE, "All fronts have ended, and none is back yet")
            first = self._serving[0]
        key = next(self._keys)
        opened = OpenedVersion(model, version, folder).as_it_is()
        try:
            definitions = first.peer.ask("open", key, model, version, folder)
        except PeerGone:
            first.process.ended.wait(_COUNTS_S)
            raise ServingError(
                grpc.StatusCode.INTERNAL, f"The front that was loading {folder} ended with {first.process.end}"
            ) from None
        with self._lock:
            self._opened[key] = opened
            others = [front.peer.call("open", key, model, version, folder) for front in self._serving if front != first]
        servable = FrontServable(model, version, folder, definitions, key, self._close)
        try:
            for other in others:
                with contextlib.suppress(PeerGone):  # the one that takes its place opens the version, too
                    other.result()
            opened.check()
        except BaseException:
            self._close(key)
            raise
        servable.load_s = time.monotonic() - started_s
        return servable

    def total(self) -> FrontCounts:
        """Returns what was counted so far, also by fronts that have ended; one that is stuck is a while behind."""
        fronts, past = self._counted()
        return FrontCounts.total([*(front.counts for front in fronts), past])

    def shadow_counts(self) -> dict[str, dict[str, ShadowCounts]]:
        """Returns the counts of copies of requests, by model and version."""
        return self.total().shadow

    def batches(self) -> BatchTotals | None:
        """Returns what was batched so far."""
        fronts, past = self._counted()
        return functools.reduce(add_batches, (front.counts.batches for front in fronts), past.batches)

    def ask_all(self, method: str, *arguments: Any, timeout_s: float | None = None) -> list[Any]:
        """Calls a method of every front at once; returns what each returned, None where it did not in time."""
        with self._lock:
            calls = {front.peer.call(method, *arguments): front for front in self._serving}
        wait(calls, timeout_s)
        for call, front in calls.items():
            error = error_of(call, timeout_s)
            if error is not None:
                log.error("front %d: %s failed: %r", front.process.pid, method, error)
        return [call.result() if call.done() and call.exception() is None else None for call in calls]

    def add_reports(self, routes: Routes, registry: CollectorRegistry) -> None:
        """Adds ``GET /v1/fronts``, and metrics of fronts."""

        def show(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
            return json_response(self.report())

        routes.add("GET /v1/fronts", show)
        registry.register(FrontsCollector(self))

    def report(self) -> dict[str, Any]:
        """Returns what ``GET /v1/fronts`` answers."""
        fronts = [
            {
                "pid": front.process.pid,
                "requests": sum(counts.requests for counts in front.counts.requests.values()),
                "age_s": round(time.monotonic() - front.started_s, 3),
            }
            for front in self._counted()[0]
        ]
        counts = {"restarts": self.restarts, "hangs": self.hangs}
        return {"fronts": fronts, **counts, "last_end": self._last_end or None}

    def metrics(self) -> Iterator[tuple[str, Metric]]:
        """Yields the other metrics of each front, with its process id."""
        for front in self._counted()[0]:
            for metric in front.counts.metrics:
                yield str(front.process.pid), metric

    def drain(self) -> None:
        """Answers what is in flight, and takes nothing more."""
        self._closing.set()
        self.ask_all("drain", timeout_s=self._flags.drain_seconds + 5.0)

    def close(self) -> None:
        """Writes what was captured and logged, and ends the fronts."""
        self.ask_all("finish", timeout_s=_CLOSE_S)
        self._end_all()

    def _end_all(self) -> None:
        with self._lock:
            fronts = list(self._serving)
        for front in fronts:
            front.is_ending = True
            front.end()
        for front in fronts:
            front.process.ended.wait()

    def on_end(self, front: Front) -> None:
        """Replaces a front that has ended."""
        with self._lock:
            if front not in self._serving:
                return
            if self._closing.is_set():
                if not front.is_ending:
                    log.error("front %d ended with %s while the server stops", front.process.pid, front.process.end)
                return
            self._serving.remove(front)
            self._past.add(front.counts)
            self.restarts += 1
            self.hangs += front.is_silent
            self._last_end = front.process.end + front.is_silent * ", as it gave no sign of life"
        log.error("front %d ended with %s; another takes its place", front.process.pid, front.process.end)
        lived = time.monotonic() - front.started_s > _LIVED_S
        threading.Thread(target=self._replace, args=(0.0 if lived else 0.1,), name="front-start", daemon=True).start()

    def _replace(self, pause_s: float) -> None:
        while not self._closing.wait(pause_s):
            try:
                self._start_front()
                return
            except PeerGone:
                log.error("a front ended while it started; another is started")
            except Exception as error:
                log.error("a front did not start: %s", error)
            pause_s = min(max(0.1, 2 * pause_s), _LONGEST_PAUSE_S)

    def _start_front(self) -> None:
        """Starts a front, has it open what the others have, and lets it take requests."""
        front = Front(self._assignment, self)
        opened: dict[int, OpenedVersion] = {}
        try:
            while True:
                with self._lock:
                    if not self._serving:  # as after a restart, what is there now is what the fronts will have open
                        self._opened = {key: version.as_it_is() for key, version in self._opened.items()}
                    missing = {key: version for key, version in self._opened.items() if opened.get(key) != version}
                    gone = opened.keys() - self._opened.keys()
                    if not missing:
                        # Under the lock, so that no change passes it by.
                        front.peer.ask("serve", self._state(), timeout_s=_STATE_S)
                        self._serving.append(front)
                        break
                for key, version in missing.items():
                    try:
                        version.check()
                        front.peer.ask("open", key, version.model, version.version, version.folder)
                        version.check()
                    except ServingError as error:
                        self._go_without(key, error)
                    opened[key] = version
        except BaseException:
            front.end()
            raise
        for key in gone:
            front.peer.call("close", key)

    def _go_without(self, key: int, error: ServingError) -> None:
        """Gives a version up that does not open any more: other models are not to wait for it, if no front is left."""
        with self._lock:
            if key not in self._opened:
                return
            self._refusals[key] += 1
            if self._serving or self._refusals[key] < _OPEN_TRIES:
                raise error
            gone = self._opened.pop(key)
        log.error(
            "model %s version %d does not open any more, and answers no requests: %s", gone.model, gone.version, error
        )
        self._catalog.set_status(gone.model, VersionStatus(gone.version, State.END, error))

    def _close(self, key: int) -> None:
        with self._lock:
            self._opened.pop(key, None)
        self.ask_all("close", key, timeout_s=_CLOSE_S)

    def _state(self) -> FrontState:
        report, views = self._lifecycle.report(), self._catalog.views
        models = {name: self._model(name, view) for name, view in views.items()}
        return FrontState(
            models={name: model for name, model in models.items() if model.keys},
            shadow=dict(self._catalog.traffic.shadow),
            ready=report["ready"],
            draining=self._lifecycle.draining,
            is_open=self._is_open,
            unavailable=(*report["unavailable"], *(name for name, model in models.items() if not model.keys)),
        )

    def _model(self, name: str, view: ModelView) -> FrontModel:
        keys = {
            version: servable.key
            for version, servable in view.servables.items()
            if isinstance(servable, FrontServable) and servable.key in self._opened
        }
        whole = len(keys) == len(view.servables)
        return FrontModel(keys, view.labels, view.split if whole else self._catalog.traffic.split(name, keys))

    def _push(self, even_if_equal: bool = True) -> None:
        """Tells all fronts what there is now, and waits until they are that way; one that does not get there ends."""
        with self._lock:
            state = self._state()
            if state == self._pushed and not even_if_equal:
                return
            self._pushed = state
            calls: dict[Future[Any], Front] = {front.peer.call("take", state): front for front in self._serving}
            wait(calls, _STATE_S)
        for call, front in calls.items():
            error = error_of(call, _STATE_S)
            if error is not None:
                log.error("front %d does not take what there is now, and is ended: %r", front.process.pid, error)
                front.end()

    def _counted(self) -> tuple[list[Front], FrontCounts]:
        """Asks what was counted; returns the fronts, and what those had counted that have ended.

        No sum goes down: one round follows another, and a front is either among the fronts or in the past.
        """
        with self._counting:
            with self._lock:
                fronts = list(self._serving)
            wait([call for front in fronts for call in front.ask_for_counts()], _COUNTS_S)
            with self._lock:
                for front in self._serving:
                    front.take_counts()
                return list(self._serving), self._past.total()

    def _look_after(self) -> None:
        """Keeps what is known of a front that ends no older than a second."""
        while not self._closing.wait(_LOOK_EVERY_S):
            try:
                self._counted()
                self._push(even_if_equal=False)
            except Exception:
                log.exception("a look at the fronts failed; the next goes on")


def _answered(routes: Routes, request: HttpRequest) -> HttpResponse:
    route = routes.find(request.method, request.path)
    return route.answer(request, route.match)
