"""Versions in worker processes: the same answers, and processes that may end without a failed request."""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import signal
import socket
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from server_process import ServerProcess
from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2, prediction_service_pb2_grpc

from airflow_hops.core.serving_api import protocol
from airflow_hops.core.serving_api.answers import ModelServerError
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.config import parse_config
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.flags import parse_flags
from airflow_hops.serving.models.servable import Call, Reply
from airflow_hops.serving.models.workers.autoscaling import Autoscaler, ScalingOptions, WorkerBounds
from airflow_hops.serving.models.workers.frames import PeerDied
from airflow_hops.serving.models.workers.launcher import Process
from airflow_hops.serving.models.workers.process import run_worker
from airflow_hops.serving.models.workers.servable import WorkerServable
from airflow_hops.serving.models.workers.zygote import Zygote

INPUTS = {"carrier": ["AA"], "distance": [[5.0]], "hour": [0]}
ROW = {"instances": [{"carrier": "AA", "distance": [5.0], "hour": 0}]}


def model(name: str, base_path: Path, rest: str = "") -> str:
    return f'config {{ name: "{name}" base_path: "{base_path}" model_platform: "tensorflow" {rest} }}\n'


def versions(*numbers: int) -> str:
    return "model_version_policy { specific { " + " ".join(f"versions: {number}" for number in numbers) + " } }"


def workers(server: ServerProcess, name: str, version: int) -> dict[str, Any]:
    status, report = server.call("/v1/workers")
    assert status == 200
    found: dict[str, Any] = report["models"].get(name, {}).get(str(version), {"workers": []})
    return found


def pids(server: ServerProcess, name: str, version: int) -> set[int]:
    return {worker["pid"] for worker in workers(server, name, version)["workers"]}


def processes(server: ServerProcess) -> set[int]:
    """All workers that the server knows."""
    models = server.call("/v1/workers")[1]["models"].values()
    return {worker["pid"] for found in models for version in found.values() for worker in version["workers"]}


def forked(server: ServerProcess) -> set[int]:
    """All workers that there are."""
    zygote = server.call("/v1/workers")[1]["zygote"]
    return {int(pid) for pid in Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()}


def alive(process: int) -> bool:
    """Whether it runs; a zombie that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], object], server: ServerProcess | None = None) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s, server.log() if server else "not within a minute"
        time.sleep(0.05)


@contextmanager
def load(server: ServerProcess, clients: int = 8) -> Iterator[Counter[tuple[int, float]]]:
    """Asks for flights from many clients at once; gives the answers' versions and scores, and raises what failed."""
    answers: Counter[tuple[int, float]] = Counter()
    failures: list[ModelServerError] = []
    stop = threading.Event()

    def ask() -> None:
        with ModelServerClient(server.address, timeout_s=60) as client:
            while not stop.is_set():
                try:
                    result = client.predict("flights", INPUTS)
                    answers[result.version, float(result.outputs["score"][0, 0])] += 1
                except ModelServerError as error:
                    failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]
    # No answer of a mixed version: the score tells whose weights it was.
    assert all(score == version * 1000.0 + 5.0 for version, score in answers), answers


@pytest.fixture(scope="module")
def server(
    runtime_python: Path, saved_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Two workers a version: flights (versions 1 and 2, half of the requests each), vectors, fragile (in batches)."""
    folder = tmp_path_factory.mktemp("workers")
    shutil.copytree(saved_models / "fragile", folder / "fragile")
    (folder / "fragile" / "1" / "batching_params.pbtxt").write_text("batch_timeout_micros { value: 1000 }")
    (folder / "models.config").write_text(f"model_config_list {{ {models(saved_models, folder)} }}")
    (folder / "traffic.json").write_text(json.dumps({"models": {"flights": {"1": 50, "2": 50}}}))
    (folder / "monitoring.config").write_text("prometheus_config { enable: true }")
    flags = {
        "workers": 2,
        "model_config_file": folder / "models.config",
        "traffic_config_file": folder / "traffic.json",
        "monitoring_config_file": folder / "monitoring.config",
        "enable_batching": True,
        "enable_per_model_batching_parameters": True,
    }
    started = ServerProcess(runtime_python, folder, flags, from_nothing=True).start().wait_until_ready()
    yield started
    started.close()


def models(saved_models: Path, folder: Path, flights: tuple[int, ...] = (1, 2), more: str = "") -> str:
    return (
        model("flights", saved_models / "flights", versions(*flights))
        + model("vectors", saved_models / "vectors")
        + model("fragile", folder / "fragile")
        + more
    )


def reload(server: ServerProcess, saved_models: Path, **changes: Any) -> None:
    """Sets the config that the server started with, or a change of it."""
    config = models(saved_models, server.ready_file.parent, **changes)
    with ModelServerClient(server.address, timeout_s=60) as client:
        client.reload_config(parse_config(f"model_config_list {{ {config} }}", "test"))


def metrics(server: ServerProcess) -> str:
    with urllib.request.urlopen(server.url + "/monitoring/prometheus/metrics") as response:
        text: str = response.read().decode()
    return text


def test_answers_and_errors_are_those_of_a_server_without_workers(
    server: ServerProcess, shared_server: ServerProcess
) -> None:
    addresses = [shared_server.address, server.address]

    def request(model="flights", version=1, signature="", output_filter=(), **inputs):
        made = predict_pb2.PredictRequest(output_filter=output_filter)
        made.model_spec.name, made.model_spec.signature_name = model, signature
        if version:
            made.model_spec.version.value = version
        for alias, value in inputs.items():
            made.inputs[alias].CopyFrom(tf.make_tensor_proto(value))
        return made

    def flights(rows):
        return {"carrier": ["AA"] * rows, "distance": np.ones([rows, 1], "f"), "hour": np.arange(rows)}

    few, many = flights(2), flights(20_000)  # more than a socket takes at once
    requests = [
        request(**few),
        request(**many),
        request(output_filter=["score"], **few),
        request("vectors", 7, x=np.ones([0, 3], "f")),
        request("vectors", None, "strings", text=[b"a", b"\xff\x00"]),
        request("vectors", 7, "slow", rounds=np.int64(2)),
        request(signature="odd", **few),
        request(carrier=["AA"]),
        request(output_filter=["odd"], **few),
        request("vectors", 7, x=[[1, 2, 3]]),
        request("vectors", 9, x=[[1, 2, 3]]),
    ]

    def answer(call, request):
        try:
            return call(request).SerializeToString(deterministic=True).hex()
        except grpc.RpcError as error:
            return [error.code().name, error.details()]

    answers = []
    for address in addresses:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(address))
        made = [answer(stub.Predict, request) for request in requests]
        metadata = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        metadata.model_spec.name = "vectors"
        made.append(str(stub.GetModelMetadata(metadata)))
        answers.append(made)
    alone, in_workers = answers
    assert in_workers == alone
    assert [type(answer) for answer in in_workers] == [str] * 6 + [list] * 5 + [str]
    path = "/v1/models/flights/versions/2:predict"
    for body in (ROW, {"instances": [1]}, {"inputs": {"hour": "x"}}):
        assert server.call(path, body) == shared_server.call(path, body)


def test_the_servers_own_process_never_imports_tensorflow_and_the_zygote_has_one_thread(server: ServerProcess) -> None:
    assert "tensorflow" not in Path(f"/proc/{server.process.pid}/maps").read_text()
    zygote = server.call("/v1/workers")[1]["zygote"]
    assert "tensorflow" in Path(f"/proc/{zygote}/maps").read_text()
    assert len(list(Path(f"/proc/{zygote}/task").iterdir())) == 1
    assert all(len(pids(server, name, version)) == 2 for name, version in (("flights", 1), ("vectors", 7)))


def test_no_request_fails_when_workers_are_killed(server: ServerProcess) -> None:
    before = {version: workers(server, "flights", version)["restarts"] for version in (1, 2)}
    with load(server) as answers:
        for version in (1, 2, 1):
            victims = pids(server, "flights", version)
            for victim in victims:
                os.kill(victim, signal.SIGKILL)
            wait_until(lambda v=version, gone=victims: len(pids(server, "flights", v) - gone) == 2, server)
        wait_until(lambda: answers[1, 1005.0] and answers[2, 2005.0], server)
    found = {version: workers(server, "flights", version) for version in (1, 2)}
    assert [found[1]["restarts"] - before[1], found[2]["restarts"] - before[2]] == [4, 2]
    assert found[1]["last_end"] == "signal 9 (SIGKILL)"
    shown = metrics(server)
    assert 'hops_serving_workers{model_name="flights",version="1"} 2\n' in shown
    assert f'hops_serving_worker_restarts_total{{model_name="flights",version="1"}} {found[1]["restarts"]}' in shown
    assert "ended with signal 9 (SIGKILL)" in server.log()


def test_request_that_ends_its_workers_is_refused_and_takes_no_other_with_it(server: ServerProcess) -> None:
    with ModelServerClient(server.address, timeout_s=60) as client, pytest.raises(ModelServerError) as poison:
        client.predict("fragile", {"x": [-1.0]})
    assert poison.value.code is grpc.StatusCode.INTERNAL
    assert "ended 3 workers one after another, the last with signal 6 (SIGABRT)" in str(poison.value)
    assert workers(server, "fragile", 1)["restarts"] == 3

    # Beside others, and again at once: these are answered, and it ends no more workers.
    failures: list[object] = []

    def ask(value: float, wanted: int) -> None:
        status, answer = server.call("/v1/models/fragile:predict", {"instances": [value]})
        if status != wanted or (wanted == 200 and answer != {"predictions": [value * 2]}):
            failures.append(answer)

    threads = [threading.Thread(target=ask, args=(float(n), 200)) for n in range(1, 9)]
    threads.append(threading.Thread(target=ask, args=(-2.0, 500)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    restarts = workers(server, "fragile", 1)["restarts"]
    ask(-2.0, 500)
    assert not failures
    assert workers(server, "fragile", 1)["restarts"] == restarts
    # What is counted in a worker is shown by the server, for as long as the worker lives.
    ask(1.0, 200)
    batches = (
        ':tensorflow:serving:batching_session:processed_batch_size_count{model_name="fragile",version="1",worker="'
    )
    assert batches in metrics(server)


def test_reload_under_load_ends_the_processes_of_an_unloaded_version(server: ServerProcess, saved_models: Path) -> None:
    gone = pids(server, "flights", 1)
    with load(server) as answers:
        wait_until(lambda: answers[1, 1005.0] and answers[2, 2005.0], server)
        reload(server, saved_models, flights=(2, 3))
        wait_until(lambda: not any(alive(pid) for pid in gone), server)
        so_far = answers[2, 2005.0]
        wait_until(lambda: answers[2, 2005.0] > so_far + 100, server)
    assert server.predict("flights/versions/3", ROW)["predictions"][0]["score"] == [3005.0]
    assert server.call("/v1/workers")[1]["models"]["flights"].keys() == {"2", "3"}
    reload(server, saved_models)


def test_version_that_does_not_load_says_why_and_leaves_no_process(
    server: ServerProcess, saved_models: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "broken" / "1"
    shutil.copytree(saved_models / "vectors" / "7", folder)
    (folder / "saved_model.pb").write_bytes(b"no model")
    with pytest.raises(ModelServerError, match=r"broken version: 1\} due to error: NOT_FOUND: Could not load"):
        reload(server, saved_models, more=model("broken", tmp_path / "broken"))
    status, answer = server.call("/v1/models/broken/versions/1")
    assert status == 200
    error = answer["model_version_status"][0]["status"]
    assert error["error_code"] == "NOT_FOUND"
    assert str(folder / "saved_model.pb") in error["error_message"]
    assert "broken" not in server.call("/v1/workers")[1]["models"]
    wait_until(lambda: forked(server) == processes(server), server)
    reload(server, saved_models)


def test_folder_that_is_changed_changes_no_answer_until_all_workers_have_ended(
    server: ServerProcess, saved_models: Path, tmp_path: Path
) -> None:
    shutil.copytree(saved_models / "flights" / "2", tmp_path / "copy" / "2")
    reload(server, saved_models, more=model("copy", tmp_path / "copy"))

    def scores() -> set[float]:
        answers = [server.predict("copy", ROW)["predictions"][0]["score"] for _ in range(10)]
        return {score for (score,) in answers}

    before = pids(server, "copy", 2)
    for file in (saved_models / "flights" / "3").rglob("*.*"):
        shutil.copyfile(file, tmp_path / "copy" / "2" / file.relative_to(saved_models / "flights" / "3"))
    os.kill(min(before), signal.SIGKILL)
    said = f"{tmp_path}/copy/2 has changed since model copy version 2 was loaded from it"
    wait_until(lambda: server.log().count(said) > 1, server)
    assert pids(server, "copy", 2) == {max(before)}
    assert scores() == {2005.0}
    os.kill(max(before), signal.SIGKILL)
    wait_until(lambda: len(pids(server, "copy", 2) - before) == 2, server)
    assert scores() == {3005.0}
    reload(server, saved_models)


def test_deadline_ends_a_request_and_its_worker_goes_on(server: ServerProcess) -> None:
    request = protocol.PredictRequest()
    request.model_spec.name = "vectors"
    request.model_spec.signature_name = "slow"
    request.inputs["rounds"].dtype = 9
    request.inputs["rounds"].tensor_shape.SetInParent()
    request.inputs["rounds"].int64_val.append(1_000)
    before = pids(server, "vectors", 7)
    with grpc.insecure_channel(server.address) as channel:
        with pytest.raises(grpc.RpcError) as late:
            channel.unary_unary(protocol.Method.PREDICT)(request.SerializeToString(), timeout=0.2)
        assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: workers(server, "vectors", 7)["in_flight"] == 0, server)
    assert server.predict("vectors", {"instances": [[1, 2, 3]]}) == {"predictions": [[2.0, 4.0, 6.0]]}
    assert pids(server, "vectors", 7) == before


def test_a_worker_that_lives_and_answers_no_more_is_replaced(server: ServerProcess) -> None:
    server.predict("vectors", {"instances": [[1, 2, 3]]})
    victims = pids(server, "vectors", 7)
    for victim in victims:
        # Whatever asks it for more memory fails: the thread that takes a large request ends, and not the process.
        pages = int(Path(f"/proc/{victim}/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + (32 << 20)
        resource.prlimit(victim, resource.RLIMIT_AS, (limit, limit))
    with ModelServerClient(server.address, timeout_s=60) as client:
        result = client.predict("vectors", {"x": np.ones([8_000_000, 3], np.float32)})
    assert result.outputs["y"].shape == (8_000_000, 3)
    wait_until(lambda: not any(alive(victim) for victim in victims), server)
    wait_until(lambda: len(pids(server, "vectors", 7)) == 2, server)


def test_a_fork_that_the_system_refuses_ends_no_other_worker(monkeypatch: pytest.MonkeyPatch) -> None:

    def no_room():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = signal.getsignal(signal.SIGCHLD)
    monkeypatch.setattr(os, "fork", no_room)
    control = socket.socketpair()
    socket.send_fds(ours, [pickle.dumps(("fork", 1, b""))], [control[1].fileno()])
    control[1].close()
    ours.shutdown(socket.SHUT_WR)
    try:
        Zygote(theirs, run_worker).serve()
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, before)
    assert pickle.loads(ours.recv(65536)) == ("refused", 1, "fork: Resource temporarily unavailable")
    assert control[0].recv(1) == b"", "nobody holds the worker's end any more"


def test_a_request_is_not_to_blame_for_workers_that_end_with_the_zygote() -> None:

    class EndsFiveTimes:  # a worker and its pool, which dies each time that it is asked
        signature_defs, tries = b"", 0

        def __init__(self, with_zygote):
            self.process = Process()
            self.process.with_zygote = with_zygote
            self.process.ends("signal 9 (SIGKILL)")

        def take(self, deadline_s, alone):
            return self

        def give(self, worker):
            self.tries += 1

        def answer(self, call):
            if self.tries < 5:
                raise PeerDied
            return Reply(b"answer", 1)

    def ask(with_zygote):
        servable = WorkerServable("m", 1, Path("/m"), EndsFiveTimes(with_zygote), None)
        try:
            return servable.answer(Call(Method.PREDICT, b"")).message.decode()
        except ServingError as error:
            return error.message

    assert ask(with_zygote=True) == "answer"
    assert "The request ended 3 workers one after another" in ask(with_zygote=False)


def test_no_request_fails_when_the_process_that_workers_are_forked_from_is_killed(server: ServerProcess) -> None:
    before = server.call("/v1/workers")[1]["zygote"]
    with load(server, clients=2) as answers:
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: server.call("/v1/workers")[1]["zygote"] not in (None, before), server)
        wait_until(lambda: len(pids(server, "flights", 1)) == len(pids(server, "flights", 2)) == 2, server)
        so_far = answers.total()
        wait_until(lambda: answers.total() > so_far + 100, server)


def test_no_process_outlives_a_killed_server(server: ServerProcess) -> None:
    wait_until(lambda: len(processes(server)) == 8, server)
    running = {server.call("/v1/workers")[1]["zygote"], *processes(server)}
    assert all(alive(process) for process in running)
    server.process.kill()
    wait_until(lambda: not any(alive(process) for process in running))


def test_workers_follow_the_load_and_end_when_the_server_has_drained(
    start_server: Callable[..., ServerProcess], saved_models: Path
) -> None:
    server = start_server(
        workers="1:2",
        worker_scale_in_seconds=1,
        model_name="vectors",
        model_base_path=saved_models / "vectors",
    )
    assert len(pids(server, "vectors", 7)) == 1
    body = {"signature_name": "slow", "inputs": 20}
    answers: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            answers.append(server.call("/v1/models/vectors:predict", body)[0])

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(pids(server, "vectors", 7)) == 2, server)
    stop.set()
    for thread in threads:
        thread.join()
    scaled_out = pids(server, "vectors", 7)
    wait_until(lambda: len(pids(server, "vectors", 7)) == 1, server)
    kept = pids(server, "vectors", 7)
    assert kept < scaled_out
    assert workers(server, "vectors", 7)["restarts"] == 0
    assert set(answers) == {200}

    # SIGTERM to all processes, as a service manager sends it: what is in flight is answered, then workers end.
    long_one = threading.Thread(target=lambda: answers.append(server.call("/v1/models/vectors:predict", body)[0]))
    answers.clear()
    body["inputs"] = 2_000
    long_one.start()
    wait_until(lambda: workers(server, "vectors", 7)["in_flight"] == 1, server)
    os.killpg(server.process.pid, signal.SIGTERM)
    assert server.process.wait(60) == 0
    long_one.join()
    assert answers == [200]
    assert not any(alive(pid) for pid in kept)


def test_autoscaler_adds_within_a_second_and_takes_away_after_its_window() -> None:
    scaler = Autoscaler(ScalingOptions(WorkerBounds(1, 4), target_in_flight=2, scale_in_s=10))
    assert scaler.observe(0, 0.0) == 1
    assert [scaler.observe(6, 0.1 * n) for n in range(11, 14)] == [3, 3, 3]
    assert scaler.observe(100, 1.4) == 4
    assert scaler.observe(0, 5.0) == 4
    assert scaler.observe(0, 11.3) == 4
    assert scaler.observe(0, 11.5) == 1


@pytest.mark.parametrize(("text", "bounds"), [("0", (0, 0)), ("3", (3, 3)), ("1:4", (1, 4)), ("2:2", (2, 2))])
def test_bounds_are_read(text: str, bounds: tuple[int, int]) -> None:
    assert WorkerBounds.parse(text) == WorkerBounds(*bounds)


@pytest.mark.parametrize("text", ["", "x", "-1", "3:2", "0:2", ":2", "1:", "1:2:3", "1.5"])
def test_wrong_bounds_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_flags(["--model_base_path=/models", f"--workers={text}"])
    assert f"--workers: value is {text!r}; expected a number of processes, as 4, or MIN:MAX" in capsys.readouterr().err


def test_a_gateway_has_no_workers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_flags(["--upstream=localhost:8500", "--workers=2"])
    assert "--workers and --upstream are both given" in capsys.readouterr().err
