"""The first process of several: what it does about workers that end, refuse or are stuck. Here they are threads."""

from __future__ import annotations

import gc
import itertools
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from waiting import wait_for

from airflow_hops.serving.api.grpc_service import channel_arguments
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.flag_parser import parse_flags
from airflow_hops.serving.lifecycle import Lifecycle
from airflow_hops.serving.models.catalog import Catalog, State
from airflow_hops.serving.models.traffic import TrafficTable
from airflow_hops.serving.monitoring.stats import RequestCounts
from airflow_hops.serving.request_kind import RequestKind
from airflow_hops.serving.routes import Routes
from airflow_hops.serving.workers import supervisor, worker_handle
from airflow_hops.serving.workers.counts import PastCounts, WorkerCounts
from airflow_hops.serving.workers.peer import Peer
from airflow_hops.serving.workers.supervisor import Workers
from airflow_hops.serving.workers.worker import WorkerState, _ForwardingHandler
from airflow_hops.serving.workers.worker_handle import Process

KIND = RequestKind("m", 1, "Predict", "GRPC")


class WorkerThread:
    """Answers as a worker does; the first two have counted five requests each."""

    def __init__(self, number: int, control: socket.socket, on_end: Callable[[], None]) -> None:
        self.process, self.control, self.on_end = Process(number, self.end), control, on_end
        self.counted = 5 if number < 2 else 0
        self.state = WorkerState()
        self.asked = 0
        self.before_counts: Callable[[], object] = lambda: None
        self.refused: set[str] = set()

    def open(self, key: int, model: str, version: int, folder: Path) -> None:
        if model in self.refused:
            raise ServingError(grpc.StatusCode.NOT_FOUND, f"{folder} is gone")

    def take(self, state: WorkerState) -> None:
        self.state = state

    def counts(self) -> WorkerCounts:
        self.asked += 1
        self.before_counts()
        return WorkerCounts({KIND: RequestCounts({"OK": self.counted})} if self.counted else {})

    def end(self) -> None:
        if not self.process.ended.is_set():
            self.process.end = "the test"
            self.process.ended.set()
            self.on_end()
            self.control.shutdown(socket.SHUT_RDWR)
            self.control.close()


class WorkerThreads:
    """Starts them in place of processes."""

    def __init__(self) -> None:
        self.workers: list[WorkerThread] = []
        self.refused: set[str] = set()
        self._lock = threading.Lock()

    def start(self, assignment: object, control: socket.socket, on_end: Callable[[], None], threads: int) -> Process:
        with self._lock:
            worker = WorkerThread(len(self.workers), control.dup(), on_end)
            worker.refused = self.refused
            self.workers.append(worker)
        methods = {"open": worker.open, "take": worker.take, "serve": worker.take, "counts": worker.counts}
        nothing = dict.fromkeys(("close", "drain", "finish"), lambda *_: None)
        Peer(control.dup(), {**methods, **nothing}).start()
        return worker.process


@pytest.fixture
def catalog() -> Catalog:
    return Catalog(TrafficTable(None))


@pytest.fixture
def threads() -> WorkerThreads:
    return WorkerThreads()


@pytest.fixture
def workers(catalog: Catalog, threads: WorkerThreads, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    monkeypatch.setattr(worker_handle, "start_process", threads.start)
    monkeypatch.setattr(supervisor, "_COUNTS_S", 0.2)
    flags, _ = parse_flags(["--workers=2", "--model_config_file=c", "--port=0", "--worker_timeout_seconds=0"])
    workers = Workers(flags, catalog, Lifecycle(catalog, tuple))
    controls: Any = type("Controls", (), {"reload": None, "traffic": None, "set_traffic": None})
    workers.start(controls, Routes())
    yield workers
    workers.drain()
    workers.close()


def requests(workers: Workers) -> int:
    return sum(counts.requests for counts in workers.stats.counts().values())


def test_worker_ending_during_a_query_is_counted_once(threads: WorkerThreads, workers: Workers) -> None:
    assert requests(workers) == 10
    first = threads.workers[0]
    first.before_counts = first.end
    assert [requests(workers) for _ in range(3)] == [10, 10, 10]
    assert workers.restarts == 1


def test_ended_workers_leave_no_descriptors(threads: WorkerThreads, workers: Workers) -> None:
    def has_two_workers() -> bool:
        return len(workers.report()["workers"]) == 2 and requests(workers) == 0

    def held() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    launcher = threads
    for worker in launcher.workers:
        worker.counted = 0
    wait_for(has_two_workers, "two workers")
    before = held()
    gc.disable()
    try:
        for number in range(6):
            launcher.workers[number].end()
            wait_for(has_two_workers, "two workers")
        wait_for(lambda: held() == before, lambda: f"{before} descriptors: {held()}", 10)
    finally:
        gc.enable()


def test_stuck_worker_is_queried_once_and_shown_with_old_values(threads: WorkerThreads, workers: Workers) -> None:
    assert requests(workers) == 10
    stuck, release = threads.workers[0], threading.Event()
    asked = stuck.asked
    stuck.before_counts = release.wait
    assert [requests(workers) for _ in range(5)] == 5 * [10]
    assert stuck.asked == asked + 1
    stuck.counted = 7
    release.set()
    wait_for(lambda: requests(workers) == 12, "what it counted meanwhile")


def test_version_failing_to_reopen_affects_no_other(threads: WorkerThreads, workers: Workers, catalog: Catalog) -> None:
    opened = {
        (model, version): workers.open(model, version, Path(f"/{model}/{version}"))
        for model, version in (("a", 1), ("b", 1), ("b", 2))
    }
    catalog.publish("a", {1: opened["a", 1]}, {})
    catalog.publish("b", {version: opened["b", version] for version in (1, 2)}, {"stable": 1})
    catalog.set_split("b", {1: 50, 2: 50})
    launcher = threads
    launcher.refused.add("a")
    launcher.workers[1].end()
    wait_for(lambda: len(launcher.workers) > 3, "tries to replace it")
    assert launcher.workers[0].state.models.keys() == {"a", "b"}  # as long as one has it, it is answered
    assert [len(worker.state.models) for worker in launcher.workers[2:]] == [0] * len(launcher.workers[2:])
    launcher.workers[0].end()
    wait_for(lambda: len(workers.report()["workers"]) == 2, "workers without it", 30)
    for worker in (worker for worker in launcher.workers if not worker.process.ended.is_set()):
        assert worker.state.models.keys() == {"b"}
        assert worker.state.unavailable == ("a",)
    (status,) = catalog.statuses("a")
    assert (status.state, str(status.error)) == (State.END, "/a/1 is gone")


def test_split_omits_a_version_failing_to_reopen(workers: Workers, catalog: Catalog) -> None:
    catalog.publish("m", {version: workers.open("m", version, Path(f"/{version}")) for version in (1, 2)}, {})
    catalog.set_split("m", {1: 50, 2: 50})
    key = max(workers._opened)
    del workers._opened[key]
    model = workers._state().models["m"]
    assert list(model.keys) == [1]
    assert model.split is not None
    assert model.split.percents() == {1: 100.0}


def test_worker_ending_during_shutdown_is_reported_not_replaced(
    threads: WorkerThreads, workers: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    workers.drain()
    threads.workers[0].end()
    assert [record.getMessage() for record in caplog.records] == ["worker 0 ended with the test while the server stops"]
    assert len(caplog.records) == 1
    assert len(threads.workers) == 2


def test_port_stays_reserved_without_workers(workers: Workers) -> None:
    workers.open_ports()
    with pytest.raises(OSError, match="in use"):  # a server that lets no other share its port, as most are
        socket.create_server(("127.0.0.1", workers.grpc_port))


def test_channel_arguments_keep_the_shared_port() -> None:
    flags, _ = parse_flags(["--workers=2", "--model_config_file=c", "--grpc_channel_arguments=grpc.so_reuseport=0,x=1"])
    assert channel_arguments(flags, shared=True).items() >= {"grpc.so_reuseport": 1, "x": 1}.items()


def test_malformed_log_record_fails_no_request(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        record = logging.LogRecord("library", logging.INFO, "", 0, "%d rows", ("many",), None)
        _ForwardingHandler(Peer(ours, {})).handle(record)
    assert "Logging error" in capsys.readouterr().err


def test_spooled_rows_of_a_worker_count_once_written(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    names = ("captured_rows", "dropped_rows", "captured_labels", "dropped_labels", "written_rows", "failed_rows")
    zeros = dict.fromkeys((*names, "files", "written_labels", "removed_files"), 0)
    counts = {**zeros, "captured_rows": 40, "written_rows": 10, "failed_rows": 1, "captured_labels": 2}
    past = PastCounts()
    past.add(WorkerCounts(capture={"spool_path": str(spool), "lag_seconds": 3.0, "models": {"m": counts}}))
    assert past.total().capture == {"models": {"m": counts}}
    spool.rmdir()  # as its writer does at the end
    for _ in itertools.repeat(None, 2):
        assert past.total().capture == {"models": {"m": {**counts, "written_rows": 39, "written_labels": 2}}}
