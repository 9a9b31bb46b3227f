"""Captured requests: every row once, whole files, in time order, whoever is killed."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from server_process import ServerProcess, Start, predict_request, write_models
from waiting import is_gone, wait_for

from airflow_hops.core.processes.files import lock_for_process
from airflow_hops.core.processes.programs import running_module
from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import Method, PredictRequest, PredictResponse
from airflow_hops.serving.capture import writer
from airflow_hops.serving.capture.batch import WaitingRecords, make_batch
from airflow_hops.serving.capture.capture import Capture
from airflow_hops.serving.capture.files import open_files
from airflow_hops.serving.capture.options import CaptureOptions
from airflow_hops.serving.capture.record import CapturedCall, pack, pack_label
from airflow_hops.serving.capture.routes import read_feedback
from airflow_hops.serving.capture.spool import OPTIONS_FILE, SERVER_LOCK, Spool, WriterState
from airflow_hops.serving.capture.writer import SpoolWriter
from airflow_hops.serving.request_kind import RequestKind
from tests.ml.conftest import Bucket


def rows_of(n: int, hour: int = 5) -> dict[str, Any]:
    return {"instances": [{"carrier": f"C{i}", "distance": [float(i)], "hour": hour} for i in range(n)]}


def captured(folder: Path) -> pa.Table:
    files = sorted(folder.glob("*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files])


def writers_of(spool_root: Path) -> list[int]:
    """Process ids of the writers of the spools below a folder."""
    commands = {process.pid: process.info["cmdline"] or [""] for process in psutil.process_iter(["cmdline"])}
    module, root = "airflow_hops.serving.capture.writer", str(spool_root)
    return [pid for pid, command in commands.items() if module in command and command[-1].startswith(root)]


def kill_writers(spool_root: Path) -> int:
    killed = 0
    for pid in writers_of(spool_root):
        try:
            os.kill(pid, signal.SIGKILL)
            killed += 1
        except ProcessLookupError:
            continue
    return killed


@pytest.fixture
def capture_path(tmp_path: Path) -> Path:
    return tmp_path / "captured"


@pytest.fixture
def start(start_server: Start, saved_models: Path, format_models: Path, capture_path: Path, tmp_path: Path) -> Start:
    folders = (saved_models / "flights", saved_models / "vectors", format_models / "examples")
    config = write_models(tmp_path, **{folder.name: folder for folder in folders})
    return lambda **flags: start_server(model_config_file=config, capture_base_path=capture_path, **flags)


class Recorder(Capture):
    """A capture without a server around it; its writer is a process."""

    def __init__(self, **options: Any) -> None:
        super().__init__(CaptureOptions(**options))
        self._number = 0

    def send(self, requests: int, rows: int = 1, models: int = 1) -> list[str]:
        """Offers requests ``r0``, ``r1``, …; returns the ids of those that are captured."""
        captured = []
        for number in range(self._number, self._number + requests):
            call = call_of(number, f"m{number % models}", rows)
            if self.offer(call):
                captured.append(call.request_id)
        self._number += requests
        return captured

    def label(self, **label: Any) -> int:
        return self.add_labels(read_feedback(json.dumps({"model": "m0", **label}).encode()))


def call_of(number: int, model: str = "m0", rows: int = 1) -> CapturedCall:
    request, response = PredictRequest(), PredictResponse()
    tensors.fill_proto(request.inputs["x"], np.full((rows, 3), number, np.float32))
    tensors.fill_proto(response.outputs["y"], np.full(rows, number, np.int64))
    kind = RequestKind(model, 1, "Predict", "GRPC")
    at_us, messages = 1_700_000_000_000_000 + number, (request.SerializeToString(), response.SerializeToString())
    return CapturedCall(kind, f"r{number}", at_us, 1.0, rows, *messages)


StartCapture = Callable[..., Recorder]


@pytest.fixture
def capture(capture_path: Path, tmp_path: Path) -> Iterator[StartCapture]:
    """Starts captures; they and their writers end with the test."""
    started: list[Recorder] = []

    def start_capture(**options: Any) -> Recorder:
        started.append(Recorder(**{"base_path": str(capture_path), "roll_seconds": 3600.0, **options}))
        return started[-1]

    yield start_capture
    for each in started:
        each.close(timeout_s=0.0)
    writers = writers_of(tmp_path)
    kill_writers(tmp_path)
    wait_for(lambda: all(map(is_gone, writers)), "the writers have ended")


def held_spool(capture_path: Path) -> tuple[Path, int]:
    """An empty spool that this process holds as its server, and the lock's descriptor."""
    (folder := capture_path / ".spool" / "0123456789ab").mkdir(parents=True)
    (folder / OPTIONS_FILE).write_text(json.dumps({"base_path": str(capture_path)}))
    WriterState.create(folder)
    server = lock_for_process(folder / SERVER_LOCK)
    assert server is not None
    return folder, server


@contextlib.contextmanager
def spooled(folder: Path, **options: Any) -> Iterator[tuple[Spool, SpoolWriter]]:
    """A spool and its writer in this process."""
    folder.mkdir(parents=True)
    (folder / OPTIONS_FILE).write_text(json.dumps(options))
    WriterState.create(folder)
    spool, own = Spool(folder, 2**20, 2**20), writer.take(folder)
    assert own is not None
    yield spool, own
    spool.close()
    own.finish()
    assert not folder.exists()


def test_flush_writes_each_row_with_features_and_outputs(start: Start, capture_path: Path, tmp_path: Path) -> None:
    monitoring = tmp_path / "monitoring.config"
    monitoring.write_text("prometheus_config { enable: true }")
    server = start(monitoring_config_file=monitoring)
    started_s = time.time()
    server.predict("flights", rows_of(2), headers={"x-request-id": "first"})
    assert (server.headers["x-request-id"], server.headers["x-captured"]) == ("first", "1")
    server.predict("vectors", {"instances": [[1, 2, 3], [4, 5, 6]]})
    raw = {"b64": base64.b64encode(b"\xff").decode()}
    server.predict("vectors", {"signature_name": "strings", "instances": ["text", raw]})
    examples = [{"x": 1.5, "bias": 0.5}, {"x": 2.5, "bias": 0.0}]
    assert server.call("/v1/models/examples:classify", {"examples": examples})[0] == 200
    # A feature of several values, or of some rows only, is no column.
    body = {"signature_name": "value", "examples": [{"x": 1.5}, {"x": 0.5, "n": [1, 2]}]}
    assert server.call("/v1/models/examples:regress", body)[0] == 200
    server.error("/v1/models/flights:predict", {"instances": [1]})
    inputs = {"carrier": np.array(["AA"], object), "distance": np.array([[7.5]], np.float32), "hour": [1]}
    request = predict_request("flights", **inputs)
    predict = grpc.insecure_channel(server.address).unary_unary(Method.PREDICT)
    answers = []
    for metadata in (), [("x-request-id", "")], [("x-request-id", "third")]:
        _, call = predict.with_call(request.SerializeToString(), metadata=metadata)
        answers.append({key: value for key, value in call.trailing_metadata() if key.startswith("x-")})
    unasked, made, values = answers
    assert unasked == {}, "a client that asks for nothing is told what TensorFlow Serving tells it"
    assert made["x-captured"] == values["x-captured"] == "1"
    assert values["x-request-id"] == "third"
    status, counts = server.call("/v1/capture:flush", b"")
    assert (status, counts["flushed"], counts["error"], counts["lag_seconds"]) == (200, True, None, 0.0)
    flights = counts["models"]["flights"]
    assert (flights["captured_rows"], flights["written_rows"], flights["dropped_rows"]) == (5, 5, 0)
    table = captured(capture_path / "flights")
    assert table.schema == pa.schema(
        {
            "request_id": pa.string(),
            "row": pa.int32(),
            "model": pa.string(),
            "version": pa.int64(),
            "signature": pa.string(),
            "api": pa.string(),
            "captured_at": pa.timestamp("us", "UTC"),
            "latency_ms": pa.float64(),
            "input.carrier": pa.string(),
            "input.distance": pa.float32(),
            "input.hour": pa.int64(),
            "output.carrier_id": pa.int64(),
            "output.score": pa.float32(),
        }
    )
    rows = table.to_pylist()
    # The one whose client did not ask is captured a moment later, under an id that nobody was told.
    ids = ("first", made["x-request-id"], "third")
    rows.sort(key=lambda row: row["request_id"] not in ids)
    assert [row["request_id"] for row in rows][:4] == ["first", "first", made["x-request-id"], "third"]
    assert [row["row"] for row in rows] == [0, 1, 0, 0, 0]
    assert [row["api"] for row in rows] == ["rest", "rest", "grpc", "grpc", "grpc"]
    assert [row["input.carrier"] for row in rows] == ["C0", "C1", "AA", "AA", "AA"]
    assert [row["output.score"] for row in rows] == [3005.0, 3006.0, 3008.5, 3008.5, 3008.5]
    assert {(row["model"], row["version"], row["signature"]) for row in rows} == {("flights", 3, "serving_default")}
    assert all(started_s <= row["captured_at"].timestamp() <= time.time() for row in rows)
    assert all(row["latency_ms"] > 0 for row in rows)

    vectors = {t["signature"][0].as_py(): t for t in map(pq.read_table, (capture_path / "vectors").glob("*.parquet"))}
    assert vectors["serving_default"]["input.x"].to_pylist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    assert vectors["serving_default"]["output.y"].to_pylist() == [[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]
    assert vectors["strings"]["input.text"].to_pylist() == [b"text", b"\xff"]

    results = {t["signature"][0].as_py(): t for t in map(pq.read_table, (capture_path / "examples").glob("*.parquet"))}
    classified, regressed = results["serving_default"], results["value"]
    assert (classified["input.x"].to_pylist(), classified["input.bias"].to_pylist()) == ([1.5, 2.5], [0.5, 0.0])
    assert classified["output.classes"].to_pylist() == [["up", "down"]] * 2
    assert [scores[0] for scores in classified["output.scores"].to_pylist()] == [3.5, 5.0]
    assert [name for name in regressed.column_names if name.startswith("input.")] == ["input.examples"]
    assert regressed["output.value"].to_pylist() == [3.0, 1.0]

    with urllib.request.urlopen(server.url + "/monitoring/prometheus/metrics") as response:
        metrics = response.read().decode()
    assert 'hops_serving_capture_rows_total{model_name="flights",outcome="written"} 5.0\n' in metrics


def test_modes_sampling_rolls_and_sigterm(start: Start, capture_path: Path) -> None:
    server = start(
        capture_mode="predictions", capture_sampling_percent=50, capture_roll_rows=10, capture_roll_seconds=0.5
    )
    acknowledged = []
    for hour in range(60):
        server.predict("flights", rows_of(4, hour))
        acknowledged += [hour] * (server.headers.get("x-captured") == "1")
        if hour == 40:
            wait_for(lambda: list(capture_path.rglob("*.parquet")), "a file for its age")
    # The rest is written as the server ends.
    assert server.terminate() == 0
    files = sorted((capture_path / "flights").glob("*.parquet"))
    assert len(files) >= 4
    assert max(pq.read_metadata(file).num_rows for file in files) <= 12
    table = captured(capture_path / "flights")
    assert not [name for name in table.column_names if name.startswith("input.")]
    assert 12 <= len(acknowledged) <= 48, "the binomial's bounds, all but once in 10^6"
    assert table["output.score"].to_pylist() == [3000.0 + hour + i for hour in acknowledged for i in range(4)]
    assert not [path for path in capture_path.rglob("*") if path.name.startswith(".")]


def test_unwritable_folder_delays_no_request_and_loses_no_row(start: Start, capture_path: Path) -> None:
    capture_path.mkdir()
    obstacle = capture_path / "flights"
    obstacle.write_text("a file where the folder should be")
    server = start(capture_spool_bytes=65536, capture_mode="inputs", capture_roll_seconds=3600)
    acknowledged = 0
    for _ in range(40):
        server.predict("flights", rows_of(400))
        acknowledged += server.headers["x-captured"] == "1"
    status, counts = server.call("/v1/capture:flush", b"")
    assert (status, counts["flushed"]) == (503, False)
    assert str(obstacle) in counts["error"]
    assert counts["spool_bytes"] <= 65536
    flights = counts["models"]["flights"]
    assert 0 < acknowledged < 40
    assert (flights["captured_rows"], flights["dropped_rows"]) == (400 * acknowledged, 16000 - 400 * acknowledged)
    assert flights["written_rows"] == 0
    assert str(obstacle) in server.log()
    obstacle.unlink()
    status, counts = server.call("/v1/capture:flush", b"")
    assert (status, counts["models"]["flights"]["written_rows"]) == (200, 400 * acknowledged)
    table = captured(capture_path / "flights")
    assert table.num_rows == 400 * acknowledged
    assert "output.score" not in table.column_names


def test_acknowledged_rows_survive_kill_9_of_server_and_writer(start: Start, capture_path: Path) -> None:
    acknowledged: set[str] = set()
    server = start(capture_roll_seconds=3600)
    for with_writer in (False, True):
        stop = threading.Event()

        def ask(name: str, server: ServerProcess = server, stop: threading.Event = stop) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                request = urllib.request.Request(
                    f"{server.url}/v1/models/flights:predict",
                    json.dumps(rows_of(1)).encode(),
                    {"x-request-id": f"{name}-{number}"},
                )
                try:
                    with urllib.request.urlopen(request, timeout=60) as response:
                        if response.headers["x-captured"] == "1":
                            acknowledged.add(response.headers["x-request-id"])
                except OSError:
                    return

        count = len(acknowledged)
        clients = [threading.Thread(target=ask, args=(f"{with_writer}-{i}",)) for i in range(4)]
        for client in clients:
            client.start()
        wait_for(lambda count=count: len(acknowledged) >= count + 50, "fifty answers")
        if with_writer:
            assert kill_writers(capture_path / ".spool") == 1
        server.process.kill()
        stop.set()
        for client in clients:
            client.join()
        if not with_writer:
            # The writer outlives the server, writes what it left, and ends.
            wait_for(lambda: not (capture_path / ".spool").exists(), "the spool is gone")
            wait_for(lambda: not writers_of(capture_path / ".spool"), "the writer has ended")
            result = set(captured(capture_path / "flights")["request_id"].to_pylist())
            assert acknowledged <= result
        server = start()
    # Here nobody was left but the next server, whose writer takes on what it finds; a flush waits for that.
    server.flush()
    found_ids = captured(capture_path / "flights")["request_id"].to_pylist()
    assert acknowledged <= set(found_ids)
    assert len(found_ids) == len(set(found_ids))


def test_restarts_share_one_spool_within_its_limit(capture_path: Path) -> None:
    limit, root, ids = 2**16, capture_path / ".spool", list[str]()
    capture_path.mkdir()
    (capture_path / "m0").write_text("not a folder, so that nothing can be written")
    for number, end in enumerate([signal.SIGKILL, None, signal.SIGTERM, None, signal.SIGKILL]):
        read, write = os.pipe()
        if (child := os.fork()) == 0:  # a server that begins where the last one ended, by a kill or in order
            with contextlib.suppress(BaseException):
                recorder = Recorder(base_path=str(capture_path), spool_bytes=limit, roll_seconds=0.1)
                recorder._number = 10_000 * number
                os.write(write, "\n".join(recorder.send(100 if number < 3 else 1000)).encode())
                if end is None:
                    recorder.close(timeout_s=3)
                else:
                    os.kill(os.getpid(), end)
            os._exit(1)
        os.close(write)
        with os.fdopen(read) as stream:
            ids += stream.read().split()
        os.waitpid(child, 0)
        (folder,) = root.iterdir()
        assert 0 < sum(path.stat().st_size for path in folder.glob("*.segment")) <= limit
        wait_for(lambda: len(writers_of(root)) <= 1, "the writer of the server before has ended")
    assert 300 < len(ids) < 1400

    def ended() -> bool:
        """Asks again, as a writer ignores it until it has seen that its server has ended."""
        for pid in (writers := writers_of(root)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        return not writers

    wait_for(ended, "a writer without a server ends when it is asked to")
    (capture_path / "m0").unlink()
    recorder = Recorder(base_path=str(capture_path), spool_bytes=limit, roll_seconds=0.1)
    assert recorder.flush() and recorder.send(1) == ["r0"] and recorder.flush()
    counts = recorder.status()["models"]["m0"]
    assert (counts["captured_rows"], counts["written_rows"]) == (1, len(ids) + 1)
    assert recorder.close() and not root.exists()
    assert Counter(captured(capture_path / "m0")["request_id"].to_pylist()) == Counter([*ids, "r0"])


def test_a_flush_is_not_answered_by_the_writer_of_another_server(capture: StartCapture, capture_path: Path) -> None:
    folder, unreadable = (capture_path / ".spool" / name for name in ("0123456789ab", "cut by a power failure"))
    for each, options in ((folder, json.dumps({"base_path": str(capture_path)})), (unreadable, "")):
        each.mkdir(parents=True)
        (each / OPTIONS_FILE).write_text(options)
    WriterState.create(folder)
    (starts, started), (answers, answered), (ends, end) = os.pipe(), os.pipe(), os.pipe()
    if (child := os.fork()) == 0:  # the writer of a server that died after it had asked for its first flush
        with contextlib.suppress(BaseException):
            os.close(started), os.close(end)  # so that it ends with this process
            own = writer.take(folder)
            assert own is not None
            os.write(answered, b"ready")
            os.read(starts, 1)
            own.answer_flush(1, done=True)
            os.write(answered, b"answered")
            os.read(ends, 1)
        os._exit(0)
    assert os.read(answers, 100) == b"ready"
    recorder = capture()
    os.write(started, b"!")
    assert os.read(answers, 100) == b"answered" and WriterState.load(folder).flushed == 1
    assert recorder.send(1) == ["r0"] and not recorder.flush(0.1)
    os.write(end, b"!")
    os.waitpid(child, 0)
    assert recorder.flush()
    restarts = recorder.status()["writer_restarts"]  # one may have met the other server's
    assert kill_writers(capture_path / ".spool") == 1
    assert recorder.send(1) == ["r1"] and recorder.flush(300)
    assert captured(capture_path / "m0")["request_id"].to_pylist() == ["r0", "r1"]
    assert recorder.status()["writer_restarts"] == restarts + 1 and (unreadable / OPTIONS_FILE).exists()
    for pipe in (starts, started, answers, answered, ends, end):
        os.close(pipe)


def test_flush_writes_what_another_server_and_its_writer_left(capture: StartCapture, capture_path: Path) -> None:
    recorder = capture()
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            other = Recorder(base_path=str(capture_path), roll_seconds=3600.0)
            if len(other.send(10)) == 10 and other._writer is not None:
                other._writer.kill()
                os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert recorder.flush()
    assert sorted(captured(capture_path / "m0")["request_id"].to_pylist()) == [f"r{number}" for number in range(10)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a PID namespace")
def test_spool_of_a_server_in_another_pid_namespace_is_its_own(capture_path: Path) -> None:
    _, server = held_spool(capture_path)
    program = (
        "import sys; from airflow_hops.serving.capture.capture import Capture, CaptureOptions; "
        "capture = Capture(CaptureOptions(sys.argv[1])); print(len(capture._others), capture.flush(), capture.close())"
    )
    command = ["unshare", "--pid", "--fork", sys.executable, "-c", program, str(capture_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "0 True True\n"
    os.close(server)


def test_writer_leaves_the_spool_if_its_server_ended_while_it_started(capture_path: Path) -> None:
    folder, next_server = held_spool(capture_path)
    with subprocess.Popen(["true"]) as killed:
        pass
    with running_module(writer.__name__, str(killed.pid), folder, grace_s=1) as started:
        assert started.wait() == 0
    os.close(next_server)


def test_undecodable_request_loses_no_other_row() -> None:

    model = "模" * 60  # 540 bytes as it is written in a URL, and a folder's name has 255 at most
    kind = RequestKind(model, 1, "Predict", "GRPC")

    def record(number, too_many=False, rows=2):
        request, response = PredictRequest(), PredictResponse()
        tensors.fill_proto(request.inputs["a"], np.full((2, 3), number, np.float32))
        tensors.fill_proto(request.inputs["b"], np.full(2, number, np.float32))
        if too_many:
            request.inputs["b"].float_val[:] = [1.0, 2.0, 3.0]
        tensors.fill_proto(response.outputs["y"], np.full(2, number, np.int64))
        messages = request.SerializeToString(), response.SerializeToString()
        return pack(CapturedCall(kind, f"r{number}", number, 1.0, rows, *messages))

    records = [record(0, True), record(1), record(2, True), record(3)]
    batch = make_batch(WaitingRecords.of(records), CaptureOptions(base_path="/b"))
    endless = make_batch(WaitingRecords.of([record(4, rows=10**12)]), CaptureOptions(base_path="/b"))
    files = [pa.BufferReader(part.encode()) for part in batch.parts]
    # Threads of pyarrow that are still starting when the program ends abort it.
    tables = [pq.read_table(file, use_threads=False) for file in files]
    assert not endless.parts
    assert endless.failed_rows == {model: 10**12}
    assert [table.select(["request_id", "input.b"]).to_pylist() for table in tables] == [
        [{"request_id": f"r{n}", "input.b": float(n)} for n in (1, 1, 3, 3)]
    ]
    assert batch.failed_rows[model] == 4
    assert batch.parts[0].folder.startswith("%E6%A8%A1%E6")
    assert len(batch.parts[0].folder) <= 255


def test_a_full_disk_drops_and_counts(small_folder: Path, capture: StartCapture, capture_path: Path) -> None:
    recorder = capture(spool_path=str(small_folder), spool_bytes=800_000)
    accepted = recorder.send(2000)
    counts = recorder.status()
    assert 0 < len(accepted) < 2000
    assert "No space left" in counts["error"]
    assert counts["models"]["m0"]["dropped_rows"] == 2000 - len(accepted)
    assert recorder.flush(300)
    assert captured(capture_path / "m0")["request_id"].to_pylist() == accepted
    # What is written makes room.
    wait_for(lambda: recorder.send(1), "a request is captured again")


def test_s3_files_appear_complete_and_old_ones_are_removed(bucket: Bucket, tmp_path: Path) -> None:
    fs, folder = bucket.fs, f"{bucket.url}/captured/m0"
    for name in ("29991231T235959.000000Z-v1-a-0-1.parquet", "notes.txt"):
        fs.pipe_file(f"{folder}/{name}", b"PAR1")
    with spooled(tmp_path / "spool" / "one", base_path=f"{bucket.url}/captured") as (spool, own):
        (label,) = read_feedback(b'{"model": "m0", "request_id": "r1", "label": true}')
        spool.append([*(pack(call_of(number)) for number in range(30)), pack_label(label)])
        own.step(everything=True)
    ahead, written = sorted(fs.glob(f"{folder}/*.parquet"))
    assert "/29991231T" in ahead, "a name that a clock ahead has made stays before the next one"
    with fs.open(written, "rb") as file:
        assert pq.read_table(file)["request_id"].to_pylist() == [f"r{number}" for number in range(30)]
    assert len(fs.glob(f"{folder}/_feedback/*.parquet")) == 1
    assert fs.exists(f"{folder}/notes.txt")


def test_capture_is_off_without_base_path(shared_server: ServerProcess) -> None:
    status = shared_server.call("/v1/capture")[1]
    assert (status["enabled"], status["base_path"]) == (False, None)
    code, error = shared_server.error("/v1/feedback", {"model": "flights", "request_id": "r", "label": 1})
    assert (code, "--capture_base_path" in error) == (400, True)


@pytest.mark.parametrize("mode", [None, 0o2750])
def test_new_capture_folder_is_private_and_existing_mode_is_unchanged(tmp_path: Path, mode: int | None) -> None:
    base = tmp_path / "captured"
    if mode is not None:
        base.mkdir()
        base.chmod(mode)
    open_files(str(base)).publish("model", "a.parquet", b"rows")
    assert stat.S_IMODE(base.stat().st_mode) == (mode or 0o700)
