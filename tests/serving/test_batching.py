"""Batching: requests run together, each gets its own rows, and TensorFlow Serving's refusals."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.serving.conftest import Server

pytestmark = pytest.mark.runtime

BATCHER = """
import threading, time
import grpc
import numpy as np
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.batching import Batcher, BatchSlots
from airflow_hops.serving.models.batching_options import BatchingOptions
from airflow_hops.serving.models.servable import Signature

signature = Signature("serving_default", "", {"x": "x:0"}, {"x": None}, {"y": "y:0"})
sizes = []
gate = threading.Event()
gate.set()

def double(signature, feeds, aliases, deadline_s):
    gate.wait(20)
    sizes.append(len(feeds[0]))
    if (feeds[0] == 13).any():
        raise invalid_argument("13 is refused")
    return [feeds[0] * 2]

def ask(batcher, array, deadline_s=float("inf")):
    try:
        return batcher.run(signature, [np.array(array)], ("y",), deadline_s)[0].tolist()
    except ServingError as error:
        return [error.code.name, error.message]

def ask_together(batcher, arrays):
    # All but the first wait for the one slot, which the first holds until they are there.
    gate.clear()
    sizes.clear()
    answers = [None] * len(arrays)
    def client(index):
        answers[index] = ask(batcher, arrays[index])
    threads = [threading.Thread(target=client, args=(index,)) for index in range(len(arrays))]
    for index, thread in enumerate(threads):
        thread.start()
        while waiting(batcher) != index:
            time.sleep(0.001)
    gate.set()
    for thread in threads:
        thread.join(20)
    return answers

def waiting(batcher):
    return sum(len(batch.tasks) for queue in batcher._queues.values() for batch in queue) if batcher._queues else -1

def batcher(**options):
    return Batcher(double, BatchingOptions(num_batch_threads=1, **options), BatchSlots(1))
"""


def test_requests_that_wait_run_as_one_and_a_bad_one_fails_alone(in_runtime: Callable[..., Any]) -> None:
    result = in_runtime(
        BATCHER
        + """
plain = ask_together(batcher(), [[1], [2], [3, 4], [5]]), list(sizes)
bad = ask_together(batcher(), [[1], [2], [13], [5]]), list(sizes)
small = ask_together(batcher(max_batch_size=2), [[1], [2], [3], [4, 5]]), list(sizes)
filled = ask_together(batcher(max_batch_size=8, allowed_batch_sizes=(4, 8)), [[1], [2], [3]]), list(sizes)
shapes = ask_together(batcher(), [[[1]], [[2]], [[3, 4]]]), list(sizes)
padded = ask_together(batcher(pad_variable_length_inputs=True), [[[1]], [[2]], [[3, 4]]]), list(sizes)
result = [plain, bad, small, filled, shapes, padded]
"""
    )
    plain, bad, small, filled, shapes, padded = result
    assert plain == [[[2], [4], [6, 8], [10]], [1, 4]]
    assert bad == [[[2], [4], ["INVALID_ARGUMENT", "13 is refused"], [10]], [1, 3, 1, 1, 1]]
    assert small == [[[2], [4], [6], [8, 10]], [1, 2, 2]]
    assert filled == [[[2], [4], [6]], [4, 4]]
    assert shapes == [[[[2]], [[4]], [[6, 8]]], [1, 1, 1]]
    assert padded == [[[[2]], [[4, 4]], [[6, 8]]], [1, 2]]


def test_full_queue_long_wait_and_outputs_without_rows_are_refused(in_runtime: Callable[..., Any]) -> None:
    result = in_runtime(
        BATCHER
        + """
full = batcher(max_batch_size=1, max_enqueued_batches=1)
gate.clear()
first = threading.Thread(target=ask, args=(full, [1]))
first.start()
while waiting(full) != 0:
    time.sleep(0.001)
second = threading.Thread(target=ask, args=(full, [1]))
second.start()
while waiting(full) != 1:
    time.sleep(0.001)
refused = ask(full, [1])
second_done = gate.set() or [first.join(20), second.join(20)]

gate.clear()
slow = batcher()
holder = threading.Thread(target=ask, args=(slow, [1]))
holder.start()
while waiting(slow) != 0:
    time.sleep(0.001)
late = ask(slow, [2], time.monotonic() + 0.05)
gate.set()
holder.join(20)
after = ask(slow, [3])

timed = batcher(batch_timeout_micros=20_000, max_batch_size=4)
sizes.clear()
alone = ask(timed, [1]), list(sizes)
scalar = Batcher(lambda *call: [np.array(1)], BatchingOptions(), BatchSlots(1))
short = Batcher(lambda *call: [np.array([1])], BatchingOptions(), BatchSlots(1))
parts = batcher(max_batch_size=6, enable_large_batch_splitting=True, max_execution_batch_size=2)
sizes.clear()
split = ask(parts, [1, 2, 3, 4, 5]), list(sizes), ask(parts, [0] * 7)
result = [refused, late, after, alone, ask(scalar, [1]), ask(short, [1, 2]), split]
"""
    )
    refused, late, after, alone, scalar, short, split = result
    assert refused == [
        "UNAVAILABLE",
        "The batch scheduling queue to which this task was submitted is full; currently 1 batches enqueued and "
        "max_enqueued_batches is 1",
    ]
    assert late == ["RESOURCE_EXHAUSTED", "Run() timeout exceeded while waiting in batching queue"]
    assert after == [6]
    assert alone == [[2], [1]]
    assert scalar == ["FAILED_PRECONDITION", "Batched output tensor has 0 dimensions"]
    assert short[1].startswith("Batched output tensor's 0th dimension does not equal the sum of the 0th dimension")
    assert split == [
        [2, 4, 6, 8, 10],
        [2, 2, 1],
        ["INVALID_ARGUMENT", "Task size 7 is larger than maximum input batch size 6"],
    ]


def test_server_batches_clients_and_keeps_their_rows_apart(
    start_server: Callable[..., Server],
    publish: Callable[..., Path],
    saved_models: Path,
    in_runtime: Callable[..., Any],
    tmp_path: Path,
) -> None:
    parameters = tmp_path / "batching.config"
    parameters.write_text(
        """
        max_batch_size { value: 16 } batch_timeout_micros { value: 50000 } num_batch_threads { value: 2 }
        allowed_batch_sizes: 8 allowed_batch_sizes: 16 thread_pool_name { value: "batches" }
        """
    )
    (tmp_path / "monitoring.config").write_text("prometheus_config { enable: true }")
    config = tmp_path / "models.config"
    config.write_text(
        f"""
        model_config_list {{
          config {{ name: "flights" base_path: "{saved_models}/flights" model_platform: "tensorflow" }}
          config {{ name: "vectors" base_path: "{saved_models}/vectors" model_platform: "tensorflow" }}
        }}
        """
    )
    server = start_server(
        model_config_file=config,
        enable_batching="true",
        batching_parameters_file=parameters,
        monitoring_config_file=tmp_path / "monitoring.config",
        enable_model_warmup="false",
        grpc_max_threads=16,
    )
    result = in_runtime(
        """
        import threading
        import grpc
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
        predict = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(address)).Predict

        def ask(model, signature, output_filter=(), **inputs):
            request = predict_pb2.PredictRequest(output_filter=output_filter)
            request.model_spec.name = model
            request.model_spec.signature_name = signature
            for alias, value in inputs.items():
                request.inputs[alias].CopyFrom(tf.make_tensor_proto(value))
            try:
                reply = predict(request, timeout=30)
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
        result = [
            wrong,
            ask("vectors", "serving_default", x=[[1.0, 1.0, 1.0]] * 17),
            ask("flights", "", carrier=["AA", "UA"], distance=[[1.0]], hour=hours),
            ask("vectors", "slow", rounds=tf.constant(1, tf.int64)),
            str(ask("vectors", "strings", text=["a", "b"])["upper"]),
        ]
        """,
        address=server.address,
    )
    wrong, oversize, unequal, scalar, strings = result
    assert wrong == []
    assert oversize == ["INVALID_ARGUMENT", "Task size 17 is larger than maximum input batch size 16"]
    assert unequal == ["INVALID_ARGUMENT", "Batching Run() input tensors must have equal 0th-dimension size"]
    assert scalar == ["INVALID_ARGUMENT", "Batching Run() input tensors must have at least one dimension"]
    assert strings == "[b'A', b'B']"
    with urllib.request.urlopen(f"{server.url}/monitoring/prometheus/metrics") as response:
        metrics = dict(line.rsplit(" ", 1) for line in response.read().decode().splitlines() if line[:1] == ":")
    waited = float(metrics[':tensorflow:serving:batching_session:queuing_latency_count{thread_pool_name="batches"}'])
    batches = float(metrics[":tensorflow:serving:batching_session:processed_batch_size_count"])
    rows = float(metrics[":tensorflow:serving:batching_session:processed_batch_size_sum"])
    assert waited == 16 * 6 * 2 + 1
    assert batches < waited / 2
    assert rows % 8 == 0


def test_version_with_parameters_of_its_own_is_batched_by_them_and_one_without_not_at_all(
    start_server: Callable[..., Server], publish: Callable[..., Path], tmp_path: Path
) -> None:
    own = publish("vectors", 7, tmp_path / "own")
    (own / "batching_params.pbtxt").write_text("max_batch_size { value: 2 }")
    publish("vectors", 7, tmp_path / "none")
    (publish("vectors", 7, tmp_path / "wrong") / "batching_params.pbtxt").write_text("max_rows { value: 2 }")
    config = tmp_path / "models.config"
    models = "".join(
        f'config {{ name: "{name}" base_path: "{tmp_path}/{name}" model_platform: "tensorflow" }}\n'
        for name in ("own", "none", "wrong")
    )
    config.write_text(f"model_config_list {{\n{models}}}\n")
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


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({}, "batching_parameters_file is set without setting server_options.enable_batching to true."),
        ({"enable_batching": "true"}, "Invalid protobuf file: '{path}'"),
    ],
)
def test_parameters_that_cannot_be_taken_are_one_line_and_no_start(
    start_server: Callable[..., Server], saved_models: Path, tmp_path: Path, flags: dict[str, str], message: str
) -> None:
    path = tmp_path / "batching.config"
    path.write_text("max_batch_size { value: }")
    base_path = saved_models / "flights"
    server = start_server(model_base_path=base_path, batching_parameters_file=path, wait=False, **flags)
    assert server.process.wait(60) != 0
    assert message.format(path=path) in server.log()
    assert "Traceback" not in server.log()


def test_parameters_that_do_not_fit_are_named(in_runtime: Callable[..., Any], tmp_path: Path) -> None:
    messages = in_runtime(
        """
        from pathlib import Path
        from airflow_hops.serving.errors import ServingError
        from airflow_hops.serving.models.batching_options import read_batching_parameters

        def read(text):
            Path(path).write_text(text)
            try:
                read_batching_parameters(path)
            except ServingError as error:
                return error.message

        result = [
            read("max_batch_size { value: 0 }"),
            read("batch_timeout_micros { value: -1 }"),
            read("max_batch_size { value: 8 } allowed_batch_sizes: 4"),
            read("max_batch_size { value: 8 } allowed_batch_sizes: 8 allowed_batch_sizes: 8"),
            read("pad_variable_length_inputs: true max_batch_size { value: 8 }"),
        ]
        """,
        path=tmp_path / "batching.config",
    )
    named = f"{tmp_path}/batching.config: "
    assert messages == [
        named + "max_batch_size must be positive; was 0",
        named + "batch_timeout_micros must be non-negative; was -1",
        named + "Last entry in allowed_batch_sizes must match max_batch_size; last entry was 4; expected 8",
        named + "allowed_batch_sizes entries must be monotonically increasing; got (8, 8)",
        None,
    ]
