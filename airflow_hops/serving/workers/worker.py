"""The worker process: opens versions for the first process, and answers requests at the shared ports."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from airflow_hops.serving.access import Right
from airflow_hops.serving.api.control import Percents
from airflow_hops.serving.endpoint import Endpoint
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.keras_import import without_keras
from airflow_hops.serving.lifecycle import Lifecycle
from airflow_hops.serving.models.catalog import Catalog, ModelView, VersionStatus
from airflow_hops.serving.models.formats import version_opener
from airflow_hops.serving.models.memory import give_back, set_imports_apart
from airflow_hops.serving.models.servable import Servable
from airflow_hops.serving.models.traffic import Split, TrafficTable
from airflow_hops.serving.monitoring import logs
from airflow_hops.serving.monitoring.metrics import REGISTRY
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes
from airflow_hops.serving.workers.counts import WorkerCounts
from airflow_hops.serving.workers.peer import Peer

ALIVE_EVERY_S = 1.0
"""Interval of a worker's heartbeats, in seconds."""


@dataclass(frozen=True)
class WorkerAssignment:
    """The input of a new worker.

    Attributes:
        flags: Flags of the worker.
        routes: REST routes, with their paths and rights, that the first process answers.
    """

    flags: Flags
    routes: tuple[tuple[str, str | None, Right | None], ...]


@dataclass(frozen=True)
class WorkerModel:
    """A model as requests see it; versions are identified by the keys with which they were opened."""

    keys: Mapping[int, int]
    labels: Mapping[str, int]
    split: Split | None


@dataclass(frozen=True)
class WorkerState:
    """The state that all workers must have.

    Attributes:
        models: Name to model, for models with available versions.
        shadow: Shares of shadow traffic by model.
        ready: Whether the server accepts requests.
        draining: Whether the server refuses requests.
        is_open: Whether the ports are open, which they are once the server was first ready.
        unavailable: Names of wanted models without an available version.
    """

    models: Mapping[str, WorkerModel] = field(default_factory=dict)
    shadow: Mapping[str, Mapping[int | str, int]] = field(default_factory=dict)
    ready: bool = False
    draining: bool = False
    is_open: bool = False
    unavailable: tuple[str, ...] = ()


def threads_each(processes: int) -> int:
    """Returns the number of threads for each of several processes."""
    return max(1, len(os.sched_getaffinity(0)) // processes)


def worker_flags(flags: Flags, grpc_port: int, rest_api_port: int | None) -> Flags:
    """Returns the flags of one worker: the shared ports, and its share of the limits."""
    workers = flags.workers
    memory = flags.request_memory_bytes // workers

    def share(limit: int) -> int:
        return math.ceil(limit / workers)

    return replace(
        flags,
        port=grpc_port,
        rest_api_port=rest_api_port,
        grpc_max_threads=share(flags.request_threads),
        rest_api_num_threads=share(flags.rest_api_num_threads or flags.request_threads),
        max_in_flight=share(flags.max_in_flight),
        max_request_memory_bytes=memory,
        max_request_bytes=min(flags.request_bytes, memory),
        tensorflow_intra_op_parallelism=flags.tensorflow_intra_op_parallelism or threads_each(workers),
        capture_spool_bytes=share(flags.capture_spool_bytes),
        ready_file="",
    )


def main(descriptor: int) -> None:
    """Runs a worker, and exits the process when the first process has ended."""
    # A service manager signals all processes of the server; a worker ends after the first process has drained it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # if memory runs out, the kernel should kill a worker, which is replaced
        Path("/proc/self/oom_score_adj").write_text("500")
    assignment: WorkerAssignment = pickle.load(sys.stdin.buffer)
    logs.configure(assignment.flags.log_file)
    with without_keras():
        import airflow_hops.serving.models.saved_model  # noqa: F401  # import early, so the first load is fast

    set_imports_apart()
    worker = _Worker(assignment, socket.socket(fileno=descriptor))
    logging.getLogger().addHandler(_ForwardingHandler(worker.peer))
    threading.Thread(target=_say_alive, args=(worker.peer,), name="alive", daemon=True).start()
    worker.peer.read()
    os._exit(0)


def _say_alive(peer: Peer) -> None:
    """Sends heartbeats, which show that the process runs and nothing blocks its interpreter."""
    with contextlib.suppress(OSError):
        while True:
            peer.tell("alive")
            time.sleep(ALIVE_EVERY_S)


class _Worker:
    def __init__(self, assignment: WorkerAssignment, control: socket.socket) -> None:
        methods = (self.open, self.close, self.serve, self.take, self.counts, self.flush, self.drain, self.finish)
        self.peer = Peer(control, {method.__name__: method for method in methods})
        self._assignment = assignment
        self._state = WorkerState()
        self._servables: dict[int, Servable] = {}
        self._catalog = _WorkerCatalog(self.peer)
        self._lifecycle = Lifecycle(self._catalog, lambda: self._state.unavailable)
        self._catalog.is_coming = self._is_coming
        flags = assignment.flags
        self._open_version = version_opener(flags)

    def open(self, key: int, model: str, version: int, folder: Path) -> None:
        """Opens a version."""
        self._servables[key] = self._open_version(model, version, folder)

    def close(self, key: int) -> None:
        """Closes a version after its last request, and frees its memory."""
        servable = self._servables.pop(key, None)
        if servable is not None:
            servable.close()
            del servable
            give_back()

    def serve(self, state: WorkerState) -> None:
        """Starts the endpoint, which accepts requests if the ports are open."""
        self._endpoint = Endpoint(self._assignment.flags, self._catalog, self._lifecycle, shared=True)
        routes = Routes()
        for route, path, right in self._assignment.routes:
            routes.add(route, self._hand_on, path, right)
        self._endpoint.start(_WorkerControls(self.peer), routes)
        self.take(state)

    def take(self, state: WorkerState) -> None:
        """Applies a new state."""
        before, self._state = self._state, state
        self._catalog.replace(
            {
                name: ModelView(
                    {version: self._servables[key] for version, key in model.keys.items()}, model.labels, model.split
                )
                for name, model in state.models.items()
            },
            state.shadow,
        )
        if state.ready != before.ready:
            self._lifecycle.set_ready(state.ready)
        if state.is_open and not before.is_open:
            self._endpoint.open_ports()
        if state.draining and not before.draining:
            self._lifecycle.drain()

    def counts(self) -> WorkerCounts:
        """Returns the current counts."""
        endpoint = self._endpoint
        return WorkerCounts(
            endpoint.stats.counts(),
            endpoint.part_counts(),
            endpoint.batches(),
            endpoint.capture.status(),
            [metric for metric in REGISTRY.collect() if not metric.name.startswith("process_")],
        )

    def flush(self, timeout_s: float) -> bool:
        return self._endpoint.capture.flush(timeout_s)

    def drain(self) -> None:
        self._endpoint.drain()

    def finish(self) -> None:
        """Writes captured requests and logs."""
        self._endpoint.close()

    def _is_coming(self, model: str, version: int | None, label: str | None) -> bool:
        if self._state.is_open and model in self._catalog.views:
            return False
        return bool(self.peer.ask("is_coming", model, version, label))

    def _hand_on(self, request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        response: HttpResponse = self.peer.ask("rest", replace(request, headers=dict(request.headers)))
        return response


class _WorkerCatalog(Catalog):
    """Versions that are open here; their states come from the first process."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(TrafficTable(None))
        self._peer = peer

    def statuses(self, model: str, version: int | None = None) -> list[VersionStatus]:
        result: list[VersionStatus] = self._peer.ask("statuses", model, version)
        return result


class _WorkerControls:
    """Forwards changes of config and traffic to the first process."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def reload(self, config: Any) -> None:
        self._peer.ask("reload", config.SerializeToString())

    def traffic(self, model: str) -> dict[str, Any]:
        result: dict[str, Any] = self._peer.ask("traffic", model)
        return result

    def set_traffic(self, model: str, percents: Percents | None) -> dict[str, Any]:
        result: dict[str, Any] = self._peer.ask("set_traffic", model, percents)
        return result


class _ForwardingHandler(logs.LogBuffer):
    """Sends log records to the first process, for ``GET /v1/logs``."""

    def __init__(self, peer: Peer) -> None:
        super().__init__()
        self._peer = peer

    def add(self, line: logs.LogLine) -> None:
        with contextlib.suppress(OSError):
            self._peer.tell("log", line)


if __name__ == "__main__":
    # Import the module by its full name, since pickles of the first process refer to it.
    from airflow_hops.serving.workers.worker import main as run

    run(int(sys.argv[1]))
