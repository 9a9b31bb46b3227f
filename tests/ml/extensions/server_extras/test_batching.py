"""Batching: requests run together, each gets its own rows, and TensorFlow Serving's refusals."""

from __future__ import annotations

import math
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from server_process import Publish, Start, write_models
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
from waiting import wait_for

from airflow_hops.extensions.server_extras.serving.batcher import Batcher
from airflow_hops.extensions.server_extras.serving.flags import ExtraFlags
from airflow_hops.extensions.server_extras.serving.parameters import BatchingOptions, read_batching_parameters
from airflow_hops.extensions.server_extras.serving.part import batching_options
from airflow_hops.serving.errors import ServingError, StartError, invalid_argument
from airflow_hops.serving.flag_parser import parse_flags
from airflow_hops.serving.models.servable import Signature

SIGNATURE = Signature("serving_default", "", {"x": "x:0"}, {"x": None}, {"y": "y:0"})
Answers = list[Any]


class Doubling:
    """A batcher of one slot over a model that doubles, which runs only while its gate is open."""

    def __init__(self, **options: Any) -> None:
        self.sizes: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.batcher = Batcher(self._double, BatchingOptions(**options), ThreadPoolExecutor(1))

    def _double(self, signature: Any, feeds: Any, aliases: Any, deadline_s: float) -> list[Any]:
        self.gate.wait()
        self.sizes.append(len(feeds[0]))
        if (feeds[0] == 13).any():
            raise invalid_argument("13 is refused")
        return [feeds[0] * 2]

    def ask(self, array: Any, deadline_s: float = math.inf) -> Any:
        return ask(self.batcher, array, deadline_s)

    def asking(self, array: Any, answers: Answers) -> threading.Thread:
        """Asks in a thread of its own, and returns once the request waits."""
        waiting = self._waiting()
        thread = threading.Thread(target=lambda: answers.append(self.ask(array)))
        thread.start()
        wait_for(lambda: self._waiting() == waiting + 1, "the request waits", poll_s=0.001)
        return thread

    def ask_together(self, arrays: list[Any]) -> tuple[Answers, list[int]]:
        """Answers, and sizes of the batches; all but the first wait for the slot, which that one holds until then."""
        self.gate.clear()
        answers: list[Answers] = [[] for _ in arrays]
        threads = [self.asking(array, answer) for array, answer in zip(arrays, answers, strict=True)]
        self.gate.set()
        for thread in threads:
            thread.join()
        return [answer for (answer,) in answers], self.sizes

    def _waiting(self) -> int:
        queues = self.batcher._queues.values()
        return sum(len(batch.tasks) for queue in queues for batch in queue) if self.batcher._queues else -1


def ask(batcher: Batcher, array: Any, deadline_s: float = math.inf) -> Any:
    try:
        return batcher.run(SIGNATURE, [np.array(array)], ("y",), deadline_s)[0].tolist()
    except ServingError as error:
        return [error.code.name, error.message]


def test_waiting_requests_are_batched_and_a_bad_one_fails_alone() -> None:
    assert Doubling().ask_together([[1], [2], [3, 4], [5]]) == ([[2], [4], [6, 8], [10]], [1, 4])
    bad = Doubling().ask_together([[1], [2], [13], [5]])
    assert bad == ([[2], [4], ["INVALID_ARGUMENT", "13 is refused"], [10]], [1, 3, 1, 1, 1])
    small = Doubling(max_batch_size=2).ask_together([[1], [2], [3], [4, 5]])
    assert small == ([[2], [4], [6], [8, 10]], [1, 2, 2])
    filled = Doubling(max_batch_size=8, allowed_batch_sizes=(4, 8)).ask_together([[1], [2], [3]])
    assert filled == ([[2], [4], [6]], [4, 4])
    shapes = [[[1]], [[2]], [[3, 4]]]
    assert Doubling().ask_together(shapes) == ([[[2]], [[4]], [[6, 8]]], [1, 1, 1])
    assert Doubling(pad_variable_length_inputs=True).ask_together(shapes) == ([[[2]], [[4, 4]], [[6, 8]]], [1, 2])


def test_full_queue_long_wait_and_outputs_without_rows_are_refused() -> None:
    full = Doubling(max_batch_size=1, max_enqueued_batches=1)
    full.gate.clear()
    threads = [full.asking([1], []), full.asking([1], [])]
    refused = full.ask([1])
    full.gate.set()
    for thread in threads:
        thread.join()

    slow = Doubling()
    slow.gate.clear()
    holder = slow.asking([1], [])
    late = slow.ask([2], time.monotonic() + 0.05)
    slow.gate.set()
    holder.join()

    patient = Doubling(batch_timeout_micros=10**9)
    given_up = patient.ask([2], time.monotonic() + 0.05)
    wait_for(lambda: patient._waiting() == 0, "the end of the batch")
    timed = Doubling(batch_timeout_micros=20_000, max_batch_size=4)
    scalar = ask(Batcher(lambda *call: [np.array(1)], BatchingOptions()), [1])
    short = ask(Batcher(lambda *call: [np.array([1])], BatchingOptions()), [1, 2])
    parts = Doubling(max_batch_size=6, enable_large_batch_splitting=True, max_execution_batch_size=2)
    assert refused == [
        "UNAVAILABLE",
        "The batch scheduling queue to which this task was submitted is full; currently 1 batches enqueued and "
        "max_enqueued_batches is 1",
    ]
    assert late == ["RESOURCE_EXHAUSTED", "Run() timeout exceeded while waiting in batching queue"]
    assert (given_up, patient.sizes) == (late, [])
    assert slow.ask([3]) == [6]
    assert (timed.ask([1]), timed.sizes) == ([2], [1])
    assert scalar == ["FAILED_PRECONDITION", "Batched output tensor has 0 dimensions"]
    assert short[1].startswith("Batched output tensor's 0th dimension does not equal the sum of the 0th dimension")
    assert (parts.ask([1, 2, 3, 4, 5]), parts.sizes) == ([2, 4, 6, 8, 10], [2, 2, 1])
    assert parts.ask([0] * 7) == ["INVALID_ARGUMENT", "Task size 7 is larger than maximum input batch size 6"]


def test_server_batches_clients_and_keeps_their_rows_apart(
    start_server: Start, saved_models: Path, tmp_path: Path
) -> None:
    parameters = tmp_path / "batching.config"
    parameters.write_text(
        """
        max_batch_size { value: 16 } batch_timeout_micros { value: 50000 } num_batch_threads { value: 2 }
        allowed_batch_sizes: 8 allowed_batch_sizes: 16 thread_pool_name { value: "batches" }
        """
    )
    (tmp_path / "monitoring.config").write_text("prometheus_config { enable: true }")
    config = write_models(tmp_path, flights=saved_models / "flights", vectors=saved_models / "vectors")
    server = start_server(
        model_config_file=config,
        enable_batching="true",
        batching_parameters_file=parameters,
        monitoring_config_file=tmp_path / "monitoring.config",
        enable_model_warmup="false",
        grpc_max_threads=16,
    )
    predict = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(server.address)).Predict

    def ask(model, signature, output_filter=(), **inputs):
        request = predict_pb2.PredictRequest(output_filter=output_filter)
        request.model_spec.name = model
        request.model_spec.signature_name = signature
        for alias, value in inputs.items():
            request.inputs[alias].CopyFrom(tf.make_tensor_proto(value))
        try:
            reply = predict(request, timeout=300)
        except grpc.RpcError as error:
            return [error.code().name, error.details()]
        return {alias: tf.make_ndarray(tensor).tolist() for alias, tensor in sorted(reply.outputs.items())}

    hours = tf.constant([0], tf.int64)
    wrong = []

    def client(number):
        for turn in range(6):
            value = float(number * 100 + turn)
            y = ask("vectors", "serving_default", x=[[value, value, value]])
            score = ask("flights", "", ["score"], carrier=["AA"], distance=[[value]], hour=hours)
            if y != {"y": [[2 * value] * 3]} or score != {"score": [[3000.0 + value]]}:
                wrong.append([value, y, score])

    threads = [threading.Thread(target=client, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    invalid = "INVALID_ARGUMENT"
    oversize = ask("vectors", "serving_default", x=[[1.0, 1.0, 1.0]] * 17)
    assert oversize == [invalid, "Task size 17 is larger than maximum input batch size 16"]
    unequal = ask("flights", "", carrier=["AA", "UA"], distance=[[1.0]], hour=hours)
    assert unequal == [invalid, "inputs differ in their 0th dimension: carrier 2, distance 1, hour 1"]
    scalar = ask("vectors", "slow", rounds=tf.constant(1, tf.int64))
    assert scalar == {"trace": pytest.approx(20.0, abs=1e-3)}, "a request without rows runs alone"
    assert ask("vectors", "strings", text=["a", "b"])["upper"] == [b"A", b"B"]
    with urllib.request.urlopen(f"{server.url}/monitoring/prometheus/metrics") as response:
        metrics = dict(line.rsplit(" ", 1) for line in response.read().decode().splitlines() if line[:1] == ":")
    waited = float(metrics[':tensorflow:serving:batching_session:queuing_latency_count{thread_pool_name="batches"}'])
    batches = float(metrics[":tensorflow:serving:batching_session:processed_batch_size_count"])
    rows = float(metrics[":tensorflow:serving:batching_session:processed_batch_size_sum"])
    assert waited == 16 * 6 * 2 + 1
    assert batches < waited / 2
    assert rows % 8 == 0


def test_versions_use_their_own_batching_parameters(start_server: Start, publish: Publish, tmp_path: Path) -> None:
    own = publish("vectors", 7, tmp_path / "own")
    (own / "batching_params.pbtxt").write_text("max_batch_size { value: 2 }")
    publish("vectors", 7, tmp_path / "none")
    (publish("vectors", 7, tmp_path / "wrong") / "batching_params.pbtxt").write_text("max_rows { value: 2 }")
    config = write_models(tmp_path, **{name: tmp_path / name for name in ("own", "none", "wrong")})
    server = start_server(
        model_config_file=config,
        enable_batching="true",
        enable_per_model_batching_parameters="true",
        max_num_load_retries=0,
    )
    rows = {"instances": [[1, 2, 3]] * 3}
    assert server.error("/v1/models/own:predict", rows) == (
        400,
        "Task size 3 is larger than maximum input batch size 2",
    )
    assert server.predict("own", {"instances": rows["instances"][:2]})["predictions"] == [[2.0, 4.0, 6.0]] * 2
    assert server.predict("none", rows)["predictions"] == [[2.0, 4.0, 6.0]] * 3
    status = server.call("/v1/models/wrong")[1]["model_version_status"][0]
    assert status["state"] == "END"
    assert status["status"]["error_code"] == "INVALID_ARGUMENT"
    assert f"Invalid protobuf file: '{tmp_path}/wrong/7/batching_params.pbtxt'" in status["status"]["error_message"]
    assert 'no field named "max_rows"' in status["status"]["error_message"]


def test_parameters_without_batching_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_flags(["--model_base_path=/m", "--batching_parameters_file=/b"])
    assert "batching_parameters_file is set without setting server_options.enable_batching" in capsys.readouterr().err


def test_invalid_parameters_are_named(tmp_path: Path) -> None:
    path = tmp_path / "batching.config"
    last = "Last entry in allowed_batch_sizes must match max_batch_size; last entry was 4; expected 8"
    for text, message in (
        ("max_batch_size { value: 0 }", "max_batch_size must be positive; was 0"),
        ("batch_timeout_micros { value: -1 }", "batch_timeout_micros must be non-negative; was -1"),
        ("max_batch_size { value: 8 } allowed_batch_sizes: 4", last),
        (
            "max_batch_size { value: 8 } allowed_batch_sizes: 8 allowed_batch_sizes: 8",
            "allowed_batch_sizes entries must be monotonically increasing; got (8, 8)",
        ),
    ):
        path.write_text(text)
        with pytest.raises(ServingError) as refused:
            read_batching_parameters(path)
        assert refused.value.message == f"{path}: {message}"
    path.write_text("pad_variable_length_inputs: true max_batch_size { value: 8 }")
    assert read_batching_parameters(path).pad_variable_length_inputs
    path.write_text("max_batch_size { value: }")
    flags, _ = parse_flags(["--model_base_path=/m", "--enable_batching", f"--batching_parameters_file={path}"])
    with pytest.raises(StartError, match=f"--batching_parameters_file: Invalid protobuf file: '{path}'"):
        batching_options(flags.of(ExtraFlags))
