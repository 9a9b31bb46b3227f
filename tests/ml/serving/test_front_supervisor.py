"""The first process of several: what it makes of fronts that end, refuse or are stuck. The fronts here are threads."""

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

from airflow_hops.serving import assembly
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.flag_parser import parse_flags
from airflow_hops.serving.fronts import front_handle, supervisor
from airflow_hops.serving.fronts.counts import FrontCounts, PastCounts
from airflow_hops.serving.fronts.front import FrontState, _ForwardingHandler
from airflow_hops.serving.fronts.launcher import Process
from airflow_hops.serving.fronts.peer import Peer
from airflow_hops.serving.fronts.supervisor import Fronts
from airflow_hops.serving.lifecycle import Lifecycle
from airflow_hops.serving.models.catalog import Catalog, State
from airflow_hops.serving.models.traffic import TrafficTable
from airflow_hops.serving.monitoring.stats import RequestCounts
from airflow_hops.serving.request_kind import RequestKind
from airflow_hops.serving.routes import Routes

KIND = RequestKind("m", 1, "Predict", "GRPC")


class FrontThread:
    """Answers as a front does; the first two have counted five requests each."""

    def __init__(self, number: int, control: socket.socket, on_end: Callable[[], None]) -> None:
        self.process, self.control, self.on_end = Process(number, self.end), control, on_end
        self.counted = 5 if number < 2 else 0
        self.state = FrontState()
        self.asked = 0
        self.before_counts: Callable[[], object] = lambda: None
        self.refused: set[str] = set()

    def open(self, key: int, model: str, version: int, folder: Path) -> bytes:
        if model in self.refused:
            raise ServingError(grpc.StatusCode.NOT_FOUND, f"{folder} is gone")
        return b""

    def take(self, state: FrontState) -> None:
        self.state = state

    def counts(self) -> FrontCounts:
        self.asked += 1
        self.before_counts()
        return FrontCounts({KIND: RequestCounts({"OK": self.counted})} if self.counted else {})

    def end(self) -> None:
        if not self.process.ended.is_set():
            self.process.end = "the test"
            self.process.ended.set()
            self.on_end()
            self.control.shutdown(socket.SHUT_RDWR)
            self.control.close()


class FrontThreads:
    """Starts them in place of processes."""

    def __init__(self) -> None:
        self.fronts: list[FrontThread] = []
        self.refused: set[str] = set()
        self._lock = threading.Lock()

    def start(self, assignment: object, control: socket.socket, on_end: Callable[[], None], threads: int) -> Process:
        with self._lock:
            front = FrontThread(len(self.fronts), control.dup(), on_end)
            front.refused = self.refused
            self.fronts.append(front)
        methods = {"open": front.open, "take": front.take, "serve": front.take, "counts": front.counts}
        nothing = dict.fromkeys(("close", "drain", "finish"), lambda *_: None)
        Peer(control.dup(), {**methods, **nothing}).start()
        return front.process


@pytest.fixture
def catalog() -> Catalog:
    return Catalog(TrafficTable(None))


@pytest.fixture
def threads() -> FrontThreads:
    return FrontThreads()


@pytest.fixture
def fronts(catalog: Catalog, threads: FrontThreads, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fronts]:
    monkeypatch.setattr(front_handle, "start_process", threads.start)
    monkeypatch.setattr(supervisor, "_COUNTS_S", 0.2)
    flags, _ = parse_flags(["--fronts=2", "--model_config_file=c", "--port=0", "--front_timeout_seconds=0"])
    fronts = Fronts(flags, catalog, Lifecycle(lambda: {"unavailable": []}))
    controls: Any = type("Controls", (), {"reload": None, "traffic": None, "set_traffic": None})
    fronts.start(controls, Routes())
    yield fronts
    fronts.drain()
    fronts.close()


def requests(fronts: Fronts) -> int:
    return sum(counts.requests for counts in fronts.stats.counts().values())


def test_front_that_ends_while_it_is_asked_is_counted_once(threads: FrontThreads, fronts: Fronts) -> None:
    assert requests(fronts) == 10
    first = threads.fronts[0]
    first.before_counts = first.end
    assert [requests(fronts) for _ in range(3)] == [10, 10, 10]
    assert fronts.restarts == 1


def test_fronts_that_end_leave_no_descriptors(threads: FrontThreads, fronts: Fronts) -> None:
    def has_two_fronts() -> bool:
        return len(fronts.report()["fronts"]) == 2 and requests(fronts) == 0

    def held() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    launcher = threads
    for front in launcher.fronts:
        front.counted = 0
    wait_for(has_two_fronts, "two fronts")
    before = held()
    gc.disable()
    try:
        for number in range(6):
            launcher.fronts[number].end()
            wait_for(has_two_fronts, "two fronts")
        wait_for(lambda: held() == before, lambda: f"{before} descriptors: {held()}", 10)
    finally:
        gc.enable()


def test_front_that_is_stuck_is_asked_once_and_told_of_as_it_was(threads: FrontThreads, fronts: Fronts) -> None:
    assert requests(fronts) == 10
    stuck, release = threads.fronts[0], threading.Event()
    asked = stuck.asked
    stuck.before_counts = release.wait
    assert [requests(fronts) for _ in range(5)] == 5 * [10]
    assert stuck.asked == asked + 1
    stuck.counted = 7
    release.set()
    wait_for(lambda: requests(fronts) == 12, "what it counted meanwhile")


def test_kinds_of_requests_that_a_front_leaves_out_are_as_they_were(threads: FrontThreads, fronts: Fronts) -> None:
    assert requests(fronts) == 10
    first, second = threads.fronts
    first.counted, second.counted = 0, 7
    assert requests(fronts) == 12


def test_version_that_does_not_open_again_keeps_no_other_from_answering(
    threads: FrontThreads, fronts: Fronts, catalog: Catalog
) -> None:
    opened = {
        (model, version): fronts.open(model, version, Path(f"/{model}/{version}"))
        for model, version in (("a", 1), ("b", 1), ("b", 2))
    }
    catalog.publish("a", {1: opened["a", 1]}, {})
    catalog.publish("b", {version: opened["b", version] for version in (1, 2)}, {"stable": 1})
    catalog.set_split("b", {1: 50, 2: 50})
    launcher = threads
    launcher.refused.add("a")
    launcher.fronts[1].end()
    wait_for(lambda: len(launcher.fronts) > 3, "tries to replace it")
    assert launcher.fronts[0].state.models.keys() == {"a", "b"}  # as long as one has it, it is answered
    assert [len(front.state.models) for front in launcher.fronts[2:]] == [0] * len(launcher.fronts[2:])
    launcher.fronts[0].end()
    wait_for(lambda: len(fronts.report()["fronts"]) == 2, "fronts without it", 30)
    for front in (front for front in launcher.fronts if not front.process.ended.is_set()):
        assert front.state.models.keys() == {"b"}
        assert front.state.unavailable == ("a",)
    (status,) = catalog.statuses("a")
    assert (status.state, str(status.error)) == (State.END, "/a/1 is gone")


def test_split_leaves_out_a_version_that_does_not_open_again(fronts: Fronts, catalog: Catalog) -> None:
    catalog.publish("m", {version: fronts.open("m", version, Path(f"/{version}")) for version in (1, 2)}, {})
    catalog.set_split("m", {1: 50, 2: 50})
    key = max(fronts._opened)
    del fronts._opened[key]
    model = fronts._state().models["m"]
    assert list(model.keys) == [1]
    assert model.split is not None
    assert model.split.percents() == {1: 100.0}


def test_front_that_ends_while_the_server_stops_is_told_of_and_not_replaced(
    threads: FrontThreads, fronts: Fronts, caplog: pytest.LogCaptureFixture
) -> None:
    fronts.drain()
    threads.fronts[0].end()
    assert [record.getMessage() for record in caplog.records] == ["front 0 ended with the test while the server stops"]
    assert len(caplog.records) == 1
    assert len(threads.fronts) == 2


def test_port_is_kept_from_others_while_no_front_listens(fronts: Fronts) -> None:
    fronts.open_ports()
    with pytest.raises(OSError, match="in use"):  # a server that lets no other share its port, as most are
        socket.create_server(("127.0.0.1", fronts.grpc_port))


def test_channel_arguments_do_not_take_the_shared_port_from_the_fronts() -> None:
    flags, _ = parse_flags(["--fronts=2", "--model_config_file=c", "--grpc_channel_arguments=grpc.so_reuseport=0,x=1"])
    assert assembly.grpc_options(flags, shared_port=True).channel_arguments == {"grpc.so_reuseport": 1, "x": 1}


def test_log_record_whose_arguments_do_not_fit_ends_no_request(capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        record = logging.LogRecord("library", logging.INFO, "", 0, "%d rows", ("many",), None)
        _ForwardingHandler(Peer(ours, {})).handle(record)
    assert "Logging error" in capsys.readouterr().err


def test_what_a_front_leaves_in_its_spool_is_counted_as_written_once_it_is(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    names = ("captured_rows", "dropped_rows", "captured_labels", "dropped_labels", "written_rows", "failed_rows")
    zeros = dict.fromkeys((*names, "files", "written_labels", "removed_files", "removed_bytes"), 0)
    counts = {**zeros, "captured_rows": 40, "written_rows": 10, "failed_rows": 1, "captured_labels": 2}
    past = PastCounts()
    past.add(FrontCounts(capture={"spool_path": str(spool), "lag_seconds": 3.0, "models": {"m": counts}}))
    assert past.total().capture == {"models": {"m": counts}}
    spool.rmdir()  # as its writer does at the end
    for _ in itertools.repeat(None, 2):
        assert past.total().capture == {"models": {"m": {**counts, "written_rows": 39, "written_labels": 2}}}
