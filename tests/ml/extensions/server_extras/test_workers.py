"""Several processes at one port: one server to its clients, its operators and its files."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import signal
import socket
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from scipy.stats import binom
from server_process import ServerProcess, Start
from tensorflow_serving.apis import predict_pb2
from waiting import is_gone, is_stopped, wait_for

from airflow_hops.core.serving_api.answers import ModelServerError
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.config import parse_config
from airflow_hops.extensions.server_extras.serving.counts import PastCounts, WorkerCounts
from airflow_hops.extensions.server_extras.serving.shared import common_statuses
from airflow_hops.extensions.server_extras.serving.supervisor import hold_shared_port
from airflow_hops.extensions.server_extras.serving.worker import worker_flags
from airflow_hops.serving.api.grpc_service import channel_arguments
from airflow_hops.serving.flag_parser import parse_flags
from airflow_hops.serving.models.catalog import State, VersionStatus
from airflow_hops.serving.models.traffic import Split, deal_slots
from airflow_hops.serving.monitoring.stats import RequestStats
from airflow_hops.serving.request_kind import RequestKind
from airflow_hops.testing.server_parts import ServerPartContract
from tests.ml.model_servers import running_server

INPUTS = {"carrier": ["AA"], "distance": [[5.0]], "hour": [0]}
ROW = {"instances": [{"carrier": "AA", "distance": [5.0], "hour": 0}]}
CONNECTIONS = 24
"""So many that each of two workers gets some: all but one time in eight million."""


class TestContract(ServerPartContract):
    name = "server_extras"

    @pytest.fixture
    def arguments(self) -> list[str]:
        return ["--workers=2", "--enable_batching", "--request_series", "--model_cache_path=/var/cache/hops"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--upstream=h:1 --workers=2", "--workers=2 and --upstream are both given"),
        ("--model_base_path=/m --workers=0", "value is '0'; expected a whole number, 1 or more"),
    ],
)
def test_wrong_flag_is_reported(flags: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_flags(flags.split())
    assert message in capsys.readouterr().err


def config(base: Path, *versions: int) -> str:
    policy = f"model_version_policy {{ specific {{ {' '.join(f'versions: {number}' for number in versions)} }} }}"
    return (
        f'model_config_list {{ config {{ name: "flights" base_path: "{base}/flights" '
        f'model_platform: "tensorflow" {policy} }} config {{ name: "fragile" base_path: "{base}/fragile" }} '
        f'config {{ name: "vectors" base_path: "{base}/vectors" }} }}'
    )


def flags_in(folder: Path, saved_models: Path) -> dict[str, Any]:
    """Flags of a server of two workers with ``flights`` (1 and 2), ``fragile`` and ``vectors``."""
    (folder / "models.config").write_text(config(saved_models, 1, 2))
    (folder / "monitoring.config").write_text("prometheus_config { enable: true }")
    return {
        "workers": 2,
        "worker_timeout_seconds": 5,
        "model_config_file": folder / "models.config",
        "model_config_file_poll_wait_seconds": 1,
        "monitoring_config_file": folder / "monitoring.config",
        "capture_base_path": folder / "captured",
        "capture_roll_seconds": 3600,
        "max_num_load_retries": 0,
    }


@pytest.fixture(scope="module")
def server(
    runtime_python: Path, saved_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server that tests may change, as they leave it with two workers that answer for the same models."""
    folder = tmp_path_factory.mktemp("workers")
    with running_server(runtime_python, folder, flags_in(folder, saved_models)) as server:
        yield server


def cpu_s(pid: int) -> float:
    """Seconds of a core that a process has taken."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def each(ask: Callable[[], Any]) -> list[Any]:
    """Returns the answers over many new connections, which the kernel deals to the workers."""
    return [ask() for _ in range(CONNECTIONS)]


def predict(server: ServerProcess, **keywords: Any) -> Any:
    with ModelServerClient(server.address, timeout_s=60) as client:
        return client.predict("flights", INPUTS, **keywords)


def workers(server: ServerProcess) -> dict[int, int]:
    """Process of each worker, and its requests until at most a second ago."""
    return {worker["pid"]: worker["requests"] for worker in server.get("/v1/workers")["workers"]}


def report(server: ServerProcess) -> None:
    """Has all workers report: each does so once its captured requests are written."""
    server.flush()


def wait_in_spite_of_ends(server: ServerProcess, condition: Callable[[], Any]) -> None:
    """Waits for what is asked of a server, whose worker may end with the question."""

    def is_so() -> Any:
        try:
            return condition()
        except (OSError, http.client.HTTPException):
            return False

    wait_for(is_so, server.log, poll_s=0.1)


def wait_for_two(server: ServerProcess, without: set[int]) -> None:
    """Waits until each worker knows of two workers, none of these."""

    def are_two() -> bool:
        pids = workers(server).keys()
        return len(pids) == 2 and not pids & without and all(workers(server).keys() == pids for _ in range(CONNECTIONS))

    wait_in_spite_of_ends(server, are_two)


def kill_one(server: ServerProcess) -> int:
    """Kills a worker; returns its process id."""
    killed = min(workers(server))
    os.kill(killed, signal.SIGKILL)
    return killed


def test_workers_share_requests_and_give_equal_answers(server: ServerProcess) -> None:
    report(server)
    counts_before = workers(server)
    answers = each(lambda: predict(server))
    assert {(answer.version, float(answer.outputs["score"][0, 0])) for answer in answers} == {(2, 2005.0)}
    over_rest = each(lambda: server.predict("flights/versions/1", ROW))
    assert all(answer == {"predictions": [{"score": [1005.0], "carrier_id": 1}]} for answer in over_rest)
    report(server)
    asked = [requests - counts_before[pid] for pid, requests in workers(server).items()]
    assert (len(asked), sum(asked), all(asked)) == (2, 2 * CONNECTIONS, True)


def test_errors_and_states_match_a_single_process(server: ServerProcess) -> None:
    for path, body, status, message in (
        ("/v1/models/unknown:predict", ROW, 404, "Servable not found for request: Latest(unknown)"),
        ("/v1/models/flights/versions/9:predict", ROW, 404, "Servable not found for request: Specific(flights, 9)"),
        ("/v1/models/flights/labels/new:predict", ROW, 400, "Unrecognized servable version label: new"),
        ("/v1/models/unknown", None, 404, "Could not find any versions of model unknown"),
        ("/v1/models/flights:traffic", {"percents": {"9": 100}}, 404, "Could not find version 9 of model flights"),
        ("/v1/models/flights:unknown", ROW, 400, "Malformed request: POST /v1/models/flights:unknown"),
    ):
        assert set(each(lambda path=path, body=body: server.error(path, body))) == {(status, message)}
    assert each(lambda: server.available("flights")) == CONNECTIONS * [[1, 2]]
    ready = each(lambda: server.get("/readyz"))
    models = {"flights": [1, 2], "fragile": [1], "vectors": [7]}
    assert all(report == {"ready": True, "models": models, "unavailable": []} for report in ready)


def test_reload_is_seen_by_all_workers_before_its_call_returns(server: ServerProcess, saved_models: Path) -> None:
    with ModelServerClient(server.address, timeout_s=60) as client:
        for versions in ((1, 3), (2,), (1, 2)):
            client.reload_config(parse_config(config(saved_models, *versions), "the test"))
            client.wait_until_available("flights", max(versions), timeout_s=60)
            assert {answer.version for answer in each(lambda: predict(server))} == {max(versions)}
    assert {report["source"] for report in each(lambda: server.get("/v1/config"))} == {"HandleReloadConfigRequest"}


def test_split_is_in_effect_in_all_workers_on_return_and_keys_stick(server: ServerProcess) -> None:
    for version in (1, 2):
        server.post("/v1/models/flights:traffic", {"percents": {str(version): 100}})
        assert {answer.version for answer in each(lambda: predict(server))} == {version}
    server.post("/v1/models/flights:traffic", {"percents": {"1": 30, "2": 70}})
    counted = Counter(answer.version for _ in range(2) for answer in each(lambda: predict(server)))
    low, high = binom.interval(1 - 1e-6, 2 * CONNECTIONS, 0.3)
    assert low <= counted[1] <= high
    server.post("/v1/models/flights:traffic", {"percents": {"1": 50, "2": 50}})
    slots = deal_slots({1: 50, 2: 50}, deal_slots({1: 30, 2: 70}, deal_slots({2: 100}, deal_slots({1: 100}))))
    split = Split.among({1: 50, 2: 50}, {1: None, 2: None}, slots)
    assert split is not None
    for key in ("a", "b", "c"):
        versions = {answer.version for answer in each(lambda key=key: predict(server, sticky_key=key))}
        assert versions == {split.of_key("flights", key)}
    server.post("/v1/models/flights:traffic", {"percents": None})


def test_any_worker_reports_totals_of_all(server: ServerProcess) -> None:
    def counts(stats: Any) -> tuple[int, int]:
        version = stats["models"]["flights"]["versions"]["2"]
        return version["requests"], version["client_errors"]

    report(server)
    requests, errors = counts(server.get("/v1/stats"))
    each(lambda: predict(server))
    each(lambda: server.error("/v1/models/flights:predict", {"instances": []}))
    wanted = requests + 2 * CONNECTIONS, errors + CONNECTIONS
    report(server)
    assert {counts(stats) for stats in each(lambda: server.get("/v1/stats"))} == {wanted}
    shown = set()
    for _ in range(4):
        text = urllib.request.urlopen(f"{server.url}/monitoring/prometheus/metrics").read().decode()
        assert "hops_serving_workers 2.0" in text.splitlines()
        lines = [line for line in text.splitlines() if ":request_count{" in line and 'version="2"' in line]
        shown.add(sum(float(line.split()[-1]) for line in lines if 'model_name="flights"' in line))
    assert shown == {wanted[0]}
    # What ends a worker is told by the supervisor; whoever is asked shows it.
    restarts = server.get("/v1/workers")["restarts"]
    with ModelServerClient(server.address, timeout_s=60) as client, pytest.raises(ModelServerError):
        client.predict("fragile", {"x": [-1.0]})
    wait_in_spite_of_ends(server, lambda: server.get("/v1/workers")["restarts"] == restarts + 1)
    wait_for_two(server, set())
    assert "ended with signal 6 (SIGABRT)" in server.log()


def test_captured_rows_are_written_once_after_a_worker_kill(server: ServerProcess) -> None:
    def counts() -> Counter[str]:
        return Counter(server.get("/v1/capture")["models"].get("flights"))

    report(server)
    base = counts()
    asked = [f"{turn}-{number}" for turn in range(2) for number in range(CONNECTIONS)]
    for request_id in asked[:CONNECTIONS]:
        assert predict(server, request_id=request_id).request_id == request_id
    # What a worker has not reported yet, within a second, is not counted if it is killed.
    wait_for(lambda: counts()["captured_rows"] - base["captured_rows"] == CONNECTIONS, server.log)
    wait_for_two(server, {kill_one(server)})
    for request_id in asked[CONNECTIONS:]:
        assert predict(server, request_id=request_id).request_id == request_id
    label = {"model": "flights", "request_id": asked[0], "label": 1.0}
    assert all(each(lambda: server.post("/v1/feedback", label)["accepted"]))
    report(server)
    rows = Counter(
        request_id
        for file in (Path(server.flags["capture_base_path"]) / "flights").glob("*.parquet")
        for request_id in pq.read_table(file, columns=["request_id"])["request_id"].to_pylist()
        if request_id in asked
    )
    assert rows == Counter(asked)
    after = counts()
    assert after["captured_rows"] - base["captured_rows"] == len(asked)
    assert after["written_rows"] == after["captured_rows"]  # also those of the worker that was killed
    assert after["captured_labels"] - base["captured_labels"] == CONNECTIONS


def test_killed_worker_fails_only_its_requests_and_is_replaced(server: ServerProcess) -> None:
    stop, failures, answered = threading.Event(), Counter[int](), Counter[int]()

    def ask(number: int) -> None:
        address, body = server.url.removeprefix("http://"), json.dumps(ROW)
        connection = http.client.HTTPConnection(address, timeout=60)
        while not stop.wait(0.01):
            try:
                connection.request("POST", "/v1/models/flights:predict", body)
                response = connection.getresponse()
                answer = json.loads(response.read())
            except (ConnectionError, http.client.HTTPException):
                failures[number] += 1
                connection.close()  # the next request opens it again
                continue
            assert (response.status, answer["predictions"][0]["score"]) == (200, [2005.0])
            answered[number] += 1
        connection.close()

    with ThreadPoolExecutor(CONNECTIONS) as executor:
        asking = [executor.submit(ask, number) for number in range(CONNECTIONS)]
        try:
            wait_for(lambda: len(answered) == CONNECTIONS, server.log)
            requests = sum(workers(server).values())
            wait_for_two(server, {kill_one(server)})
        finally:
            stop.set()
        for each_asking in asking:
            each_asking.result()
    # A connection has one request in flight, and those to the other worker have none that fails. A client that is
    # quicker than the kernel, which closes what the worker had open one by one, finds it listening still.
    assert 0 < len(failures) < CONNECTIONS
    assert max(failures.values()) <= 2
    assert server.get("/v1/stats")["models"]["flights"]["versions"]["2"]["requests"] >= requests
    assert {answer.version for answer in each(lambda: predict(server))} == {2}


def test_hanging_worker_fails_only_its_requests_and_is_replaced(server: ServerProcess) -> None:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "vectors"
    request.inputs["x"].CopyFrom(tf.make_tensor_proto([[1.0, 2.0, 3.0]]))
    report = server.get("/v1/workers")
    with contextlib.ExitStack() as stack:
        calls = [
            stack.enter_context(
                grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)])
            ).unary_unary("/tensorflow.serving.PredictionService/Predict", predict_pb2.PredictRequest.SerializeToString)
            for _ in range(CONNECTIONS)
        ]
        for call in calls:
            call(request, timeout=60)
        stopped = min(worker["pid"] for worker in report["workers"])
        os.kill(stopped, signal.SIGSTOP)
        wait_for(lambda: is_stopped(stopped))
        codes = Counter(answer.code() for answer in [call.future(request, timeout=60) for call in calls])
        assert codes.keys() == {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
        wait_for_two(server, {stopped})
        for call in calls:
            call(request, timeout=60, wait_for_ready=True)
    after = server.get("/v1/workers")
    assert (after["restarts"], after["hangs"]) == (report["restarts"] + 1, report["hangs"] + 1)
    assert after["last_end"] == "signal 9 (SIGKILL), as it did not respond"
    assert f"worker {stopped} did not respond for 5 s and is killed" in server.log()


def test_replaced_worker_serves_the_config_and_split_in_effect(server: ServerProcess, saved_models: Path) -> None:
    with ModelServerClient(server.address, timeout_s=60) as client:
        client.reload_config(parse_config(config(saved_models, 1, 3), "the test"))
    server.post("/v1/models/flights:traffic", {"percents": {"1": 100}})
    assert {answer["persisted"] for answer in each(lambda: server.get("/v1/models/flights:traffic"))} == {False}
    wait_for_two(server, {kill_one(server)})
    assert {answer.version for answer in each(lambda: predict(server))} == {1}
    assert each(lambda: server.available("flights")) == CONNECTIONS * [[1, 3]]
    server.post("/v1/models/flights:traffic", {"percents": None})
    assert {answer.version for answer in each(lambda: predict(server))} == {3}
    file = Path(server.flags["model_config_file"])
    file.write_text(config(saved_models, 1, 2) + "\n")  # the file as changed last is the truth again
    server.wait_for_versions("flights", {1: "AVAILABLE", 2: "AVAILABLE", 3: "END"})
    assert {answer.version for answer in each(lambda: predict(server))} == {2}
    assert {report["source"] for report in each(lambda: server.get("/v1/config"))} == {str(file)}


def test_port_in_use_is_reported_before_start(server: ServerProcess, start_server: Start, tmp_path: Path) -> None:
    values = {**server.flags, "capture_base_path": None}
    for flag, port in (("port", server.ports["port"]), ("rest_api_port", server.ports["rest_api_port"])):
        second = start_server(wait=False, **{**values, flag: port})
        assert second.process.wait() == 1
        assert f"--{flag}={port}: port {port} of 127.0.0.1 is taken by another program" in second.log()
    (tmp_path / "file").write_text("")
    refused = start_server(wait=False, **{**values, "capture_base_path": tmp_path / "file"})
    assert refused.process.wait() == 1
    assert f"--capture_base_path={tmp_path / 'file'}" in refused.log()


@pytest.mark.last(1)
def test_workers_drain_on_sigterm_and_end_with_the_server(server: ServerProcess) -> None:
    pids = list(workers(server))
    slow, began_s = {"signature_name": "slow", "inputs": 100}, sum(map(cpu_s, pids))
    with ThreadPoolExecutor(8) as executor:
        asking = [executor.submit(server.call, "/v1/models/vectors:predict", slow) for _ in range(8)]
        wait_for(lambda: sum(map(cpu_s, pids)) > began_s + 0.2, "the requests are under way")
        for pid in pids:  # as a service manager and a terminal do
            os.kill(pid, signal.SIGTERM)
        assert server.terminate() == 0
        assert [answer.result()[0] for answer in asking] == 8 * [200]
    wait_for(lambda: all(map(is_gone, pids)), "the end of the workers")
    assert "while the server stops" not in server.log()
    server.start().wait_until_ready()  # at the same ports
    pids = list(workers(server))
    server.process.kill()
    wait_for(lambda: all(map(is_gone, pids)), "the end of the workers")


def test_limits_are_shared_among_workers() -> None:
    limits = {"max_in_flight": 10, "grpc_max_threads": 8, "max_request_memory_bytes": 3000}
    values = {"workers": 3, "model_config_file": "c", **limits, "capture_spool_bytes": 300_000}
    flags, _ = parse_flags([f"--{name}={value}" for name, value in values.items()])
    share = worker_flags(flags, 1, 2)
    assert (share.port, share.rest_api_port) == (1, 2)
    assert (share.max_in_flight, share.grpc_max_threads, share.rest_api_num_threads) == (4, 3, 3)
    assert (share.max_request_memory_bytes, share.request_bytes) == (1000, 750)
    assert share.capture_spool_bytes == 100_000
    assert worker_flags(parse_flags(["--workers=3", "--model_config_file=c"])[0], 1, None).max_in_flight == 0


def test_worker_counts_add_up() -> None:
    generator = np.random.default_rng(0)
    whole, parts = RequestStats(), [RequestStats() for _ in range(3)]
    for number in range(300):
        kind = RequestKind("m", int(generator.integers(1, 3)), "Predict", "GRPC")
        latency_s = float(generator.exponential(0.01))
        for stats in (whole, parts[number % 3]):
            if number % 10:
                stats.record(kind, 2, latency_s, latency_s / 2)
            else:
                stats.record_error(kind, "UNAVAILABLE")
    batches = [{"batches": 3, "wait_s": 0.5, 1.0: 2, math.inf: 1}, {"batches": 6, "wait_s": 0.5, 1.0: 1, 4.0: 5}, {}]
    statuses = [
        {"models": {"m": {"captured_rows": rows}}, "lag_seconds": lag, "error": None, "spool_bytes": rows}
        for rows, lag in ((1, 0.5), (2, 1.5), (4, 0.0))
    ]
    total = WorkerCounts.total(
        WorkerCounts(part.counts(), batch, status) for part, batch, status in zip(parts, batches, statuses, strict=True)
    )
    assert {kind: (c.by_code, c.rows, c.latency.buckets) for kind, c in total.requests.items()} == {
        kind: (c.by_code, c.rows, c.latency.buckets) for kind, c in whole.counts().items()
    }
    assert total.batches == {"batches": 9, "wait_s": 1.0, 1.0: 3, 4.0: 5, math.inf: 1}
    assert total.capture == {"models": {"m": {"captured_rows": 7}}, "lag_seconds": 1.5, "error": None, "spool_bytes": 7}
    assert total.past().capture == {"models": {"m": {"captured_rows": 7}}}


def test_worker_counts_go_on_from_those_of_an_ended_one(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    names = ("captured_rows", "dropped_rows", "captured_labels", "dropped_labels", "written_rows", "failed_rows")
    zeros = dict.fromkeys((*names, "files", "written_labels"), 0)
    counts = {**zeros, "captured_rows": 40, "written_rows": 10, "failed_rows": 1, "captured_labels": 2}
    past = PastCounts()
    past.add(WorkerCounts(capture={"spool_path": str(spool), "lag_seconds": 3.0, "models": {"m": counts}}))
    assert past.total().capture == {"models": {"m": counts}}
    spool.rmdir()  # as its writer does at the end
    for _ in range(2):
        assert past.total().capture == {"models": {"m": {**counts, "written_rows": 39, "written_labels": 2}}}


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([State.AVAILABLE, State.AVAILABLE], State.AVAILABLE),
        ([State.AVAILABLE, None], State.LOADING),
        ([State.AVAILABLE, State.LOADING], State.LOADING),
        ([State.LOADING, State.END], State.LOADING),
        ([State.AVAILABLE, State.UNLOADING], State.UNLOADING),
        ([State.END, State.AVAILABLE], State.UNLOADING),
        ([State.END, None], State.END),
    ],
)
def test_version_is_available_once_it_is_in_all_workers(states: list[State | None], expected: State) -> None:
    for ordered in (states, states[::-1]):
        processes = [{} if state is None else {1: VersionStatus(1, state)} for state in ordered]
        assert common_statuses(processes)[1].state is expected


def test_port_stays_reserved_without_workers() -> None:
    holder = hold_shared_port("port", "127.0.0.1", 0)
    with holder, pytest.raises(OSError, match="in use"):  # a server that lets no other share its port, as most are
        socket.create_server(holder.getsockname())


def test_channel_arguments_keep_the_shared_port() -> None:
    flags, _ = parse_flags(["--workers=2", "--model_config_file=c", "--grpc_channel_arguments=grpc.so_reuseport=0,x=1"])
    assert channel_arguments(flags, shared=True).items() >= {"grpc.so_reuseport": 1, "x": 1}.items()
