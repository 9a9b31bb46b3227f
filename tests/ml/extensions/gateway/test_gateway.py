"""The same program in front of other model servers.

No ``tensorflow_model_server`` can be had from a package registry: the bundled server, without a split and without
capture, stands in for one, and the gateway knows no more of it than TensorFlow Serving's own protocol.
"""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Any

import grpc
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from google.protobuf import text_format
from server_process import Publish, ServerProcess, Start, write_models
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)
from waiting import is_stopped, wait_for

from airflow_hops.core.serving_api.answers import ModelServerError
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.config import parse_config
from airflow_hops.serving.flag_parser import parse_flags
from airflow_hops.testing.server_parts import ServerPartContract
from tests.ml.serving.test_access import ROWS, folder, guarded  # noqa: F401
from tests.ml.serving.test_command_line import slow_model
from tests.ml.serving.test_predict import with_spec

ROW = {"instances": [{"carrier": "AA", "distance": [0.0], "hour": 0}]}
# None is the default of every client; gRPC reports it to servers as some 292 years.
DEADLINES_S = cycle([None, 10.0, 1e8, None, 7e9])


class TestContract(ServerPartContract):
    name = "gateway"

    @pytest.fixture
    def arguments(self) -> list[str]:
        return ["--upstream_token_file=/token"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--upstream=localhost", "argument --upstream: value is 'localhost'; expected host:port or unix:path"),
        ("--upstream=h:1,h:x", "argument --upstream: value is 'h:x'; expected host:port or unix:path"),
        ("--upstream=h:1 --model_base_path=/m", "--model_base_path and --upstream are both given"),
        ("--upstream=h:1 --feature_server=h:2", "--feature_server is set with --upstream"),
        ("--upstream=h:1 --upstream_key_file=/k", "--upstream_cert_file and --upstream_key_file go together"),
    ],
)
def test_wrong_flag_is_reported(flags: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_flags(flags.split())
    assert message in capsys.readouterr().err


@pytest.fixture(scope="module")
def gateway(runtime_python: Path, shared_server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A gateway in front of the shared server, with a split of flights and capture."""
    folder = tmp_path_factory.mktemp("gateway")  # noqa: F811
    traffic = folder / "traffic.json"
    traffic.write_text(json.dumps({"models": {"flights": {"1": 25, "2": 75}}}))
    flags = {
        "upstream": shared_server.address,
        "traffic_config_file": traffic,
        "traffic_config_file_poll_wait_seconds": 0.1,
        "capture_base_path": folder / "captured",
    }
    server = ServerProcess(runtime_python, folder, flags).start().wait_until_ready()
    yield server
    server.close()


def test_gateway_answers_as_its_upstream_does(gateway: ServerProcess, shared_server: ServerProcess) -> None:
    # A label may be the first that a gateway hears of a model.
    label = {"model": "vectors", "request_id": "r", "label": 1}
    assert gateway.call("/v1/feedback", label) == (200, {"accepted": 1, "dropped": 0})
    assert gateway.error("/v1/feedback", {**label, "model": "no-model"})[0] == 404
    gateway.call("/v1/models/flights:traffic", {"percents": None})
    addresses = [shared_server.address, gateway.address]

    # What every client of TensorFlow Serving may ask, with its own stubs: the answer, or code and message.
    def predict(target, inputs):
        return with_spec(predict_pb2.PredictRequest(), *target, **inputs)

    def answer(call, request):
        try:
            return text_format.MessageToString(call(request, timeout=next(DEADLINES_S)))
        except grpc.RpcError as error:
            return [error.code().name, error.details()]

    flights = {"carrier": ["AA", "??"], "distance": [[1.5], [2.5]], "hour": tf.constant([3, 4], tf.int64)}
    vector = {"x": [[1.0, 2.0, 3.0]]}
    predicts = [
        predict(("flights",), flights),
        predict(("flights", 1), flights),
        predict(("flights", None, "stable"), flights),
        predict(("flights", None, "canary"), flights),
        predict(("vectors",), vector),
        predict(("vectors", 7, None, "strings"), {"text": [b"a", b"\xff"]}),
        predict(("flights", None, "no-label"), flights),
        predict(("flights", 9), flights),
        predict(("no-model",), flights),
        predict(("flights",), {"carrier": ["AA"]}),
        predict(("vectors",), {"x": [[1.0, 2.0]]}),
        predict(("vectors", None, None, "no-signature"), vector),
        predict_pb2.PredictRequest(),
    ]
    metadata = [("flights",), ("flights", 1), ("flights", None, "canary"), ("no-model",)]
    states = [("flights",), ("flights", 2), ("vectors",), ("flights", 9), ("no-model",)]

    def ask_all(address):
        channel = grpc.insecure_channel(address)
        prediction = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        models = model_service_pb2_grpc.ModelServiceStub(channel)
        answers = [answer(prediction.Predict, request) for request in predicts]
        for target in metadata:
            request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
            answers.append(answer(prediction.GetModelMetadata, with_spec(request, *target)))
        for target in states:
            request = with_spec(get_model_status_pb2.GetModelStatusRequest(), *target)
            answers.append(answer(models.GetModelStatus, request))
        return answers

    direct, through = [ask_all(address) for address in addresses]
    assert through == direct
    flights_paths = ("flights", "flights/versions/1", "flights/labels/stable", "flights/labels/none")
    for path in (*flights_paths, "no-model", "vectors"):
        body = ROW if "vectors" not in path else {"inputs": [[1.0, 2.0, 3.0]]}
        verb = f"/v1/models/{path}:predict"
        assert gateway.call(verb, body) == shared_server.call(verb, body)
        for plain in (f"/v1/models/{path}", f"/v1/models/{path}/metadata"):
            assert gateway.call(plain) == shared_server.call(plain)


def test_gateway_forwards_classify_regress_and_multi_inference(
    start_server: Start, formats_server: ServerProcess
) -> None:
    gateway = start_server(upstream=formats_server.address)
    rows = {"examples": [{"x": 1.5}, {"x": [-0.25], "bias": 2.0}]}
    for verb, body in (("classify", rows), ("regress", {"signature_name": "value", **rows}), ("classify", {})):
        path = f"/v1/models/examples:{verb}"
        assert gateway.call(path, body) == formats_server.call(path, body)
    addresses = [formats_server.address, gateway.address]

    def request(*signatures, version=None):
        made = inference_pb2.MultiInferenceRequest()
        for signature, method in signatures:
            task = made.tasks.add(method_name=f"tensorflow/serving/{method}")
            with_spec(task, "examples", version, signature=signature)
        example = made.input.example_list.examples.add()
        example.features.feature["x"].float_list.value.append(1.5)
        return made

    both = [("", "classify"), ("value", "regress")]
    requests = [request(*both), request(*both, version=1), request(both[0], both[0]), request(*both, version=9)]

    def ask(address):
        stub = prediction_service_pb2_grpc.PredictionServiceStub(grpc.insecure_channel(address))
        answers = []
        for each in requests:
            try:
                answers.append(text_format.MessageToString(stub.MultiInference(each, timeout=next(DEADLINES_S))))
            except grpc.RpcError as error:
                answers.append([error.code().name, error.details()])
        return answers

    direct, through = [ask(address) for address in addresses]
    assert through == direct
    assert len(direct[0]) > 100
    counted = gateway.call("/v1/stats")[1]["models"]["examples"]["versions"]["1"]
    assert counted["codes"]["OK"] == 4
    assert counted["rows"] == 2 + 2 + 1 + 1


def test_gateway_does_not_import_tensorflow(gateway: ServerProcess) -> None:
    gateway.predict("flights", ROW)
    assert "tensorflow" not in Path(f"/proc/{gateway.process.pid}/maps").read_text()


def test_gateway_splits_counts_and_captures_by_version(gateway: ServerProcess) -> None:
    def answered() -> Counter[str]:
        versions = gateway.call("/v1/stats")[1]["models"]["flights"]["versions"]
        return Counter({version: result["codes"].get("OK", 0) for version, result in versions.items()})

    gateway.predict("flights", ROW)
    gateway.call("/v1/models/flights:traffic", {"percents": {"1": 25, "2": 75}})
    answers = answered()
    scores = Counter(gateway.predict("flights", ROW)["predictions"][0]["score"][0] for _ in range(100))
    assert scores.keys() == {1000.0, 2000.0} and 5 <= scores[1000.0] <= 50
    for _ in range(3):
        labelled = gateway.predict("flights/labels/stable", ROW, headers={"x-request-id": "labelled"})
        assert labelled["predictions"][0]["score"] == [1000.0]
    keyed = [gateway.predict("flights", ROW, headers={"x-sticky-key": f"k{n}"}) for n in (*range(20), *range(20))]
    assert keyed[:20] == keyed[20:]
    ones = sum(answer["predictions"][0]["score"] == [1000.0] for answer in keyed)
    assert answered() - answers == Counter({"1": scores[1000.0] + 3 + ones, "2": scores[2000.0] + 40 - ones})
    gateway.flush()
    files = (gateway.folder / "captured").glob("flights/*.parquet")
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]

    def score(row):
        return row["input.distance"] + row["input.hour"] + 1000 * row["version"]

    wrong = [row for row in rows if row["output.score"] != score(row)]
    assert len(rows) >= 143
    assert wrong == []
    assert {row["version"] for row in rows if row["request_id"] == "labelled"} == {1}


def test_gateway_follows_upstream_versions_and_forwards_reloads(
    start_server: Start, publish: Publish, tmp_path: Path
) -> None:
    publish("flights", 1, tmp_path / "flights")
    config = write_models(tmp_path, flights=tmp_path / "flights")
    upstream = start_server(model_config_file=config, file_system_poll_wait_seconds=0.2)
    gateway = start_server(upstream=upstream.address, model_config_file=config)
    gateway.wait_for_versions("flights", {1: "AVAILABLE"})
    # The upstream unloads version 1 once 2 is there, and the gateway learns of it later: no request fails for that.
    publish("flights", 2, tmp_path / "flights")

    def is_learnt() -> bool:
        answered = gateway.predict("flights", ROW)["predictions"][0]["score"]
        return answered == [2000.0] and len(upstream.versions("flights")) > 1

    wait_for(is_learnt, gateway.log, 30, 0)
    publish("vectors", 7, tmp_path / "vectors")
    assert gateway.error("/v1/models/vectors:predict", {"inputs": [[1.0, 2.0, 3.0]]})[0] == 404
    values = f'model_config_list {{ config {{ name: "vectors" base_path: "{tmp_path}/vectors" }} }}'
    labelled = values.replace(tmp_path.name, "nowhere").replace(
        " } }", ' version_labels { key: "stable" value: 5 } } }'
    )
    with ModelServerClient(gateway.address, timeout_s=60) as client:
        client.reload_config(parse_config(values, "given"))
        assert client.predict("vectors", {"x": [[1.0, 2.0, 3.0]]}).outputs["y"].tolist() == [[2.0, 4.0, 6.0]]
        with pytest.raises(ModelServerError, match="label stable to version 5") as refused:
            client.reload_config(parse_config(labelled, "given"))
    assert f"upstream {upstream.address}: " in str(refused.value)
    assert gateway.error("/v1/models/flights:predict", ROW) == (404, "Servable not found for request: Latest(flights)")


def test_upstreams_share_requests_and_a_dead_one_fails_none(start_server: Start, saved_models: Path) -> None:
    flights = {"model_name": "flights", "model_base_path": saved_models / "flights"}
    both = [start_server(wait=False, **flights) for _ in range(2)]
    first, second = (server.wait_until_ready() for server in both)
    gateway = start_server(upstream=f"{first.address},{second.address}")
    answers: list[Any] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            answers.append(gateway.call("/v1/models/flights:predict", ROW))

    clients = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    for client in clients:
        client.start()

    def wait_for_answers(count: int) -> None:
        expected = len(answers) + count
        wait_for(lambda: len(answers) >= expected, gateway.log, 60, 0.02)

    def counted(server: ServerProcess) -> int:
        return int(server.call("/v1/stats")[1]["models"]["flights"]["versions"]["3"]["requests"])

    # The one that is slow with its first request gets fewer until then.
    wait_for(lambda: min(counted(first), counted(second)) >= 10, gateway.log, 60)
    first.close()
    wait_for_answers(100)
    stop.set()
    for client in clients:
        client.join()
    assert {json.dumps(answer) for answer in answers} == {
        json.dumps((200, {"predictions": [{"carrier_id": 1, "score": [3000.0]}]}))
    }
    # One that hangs keeps no thread of the gateway for long, however many ask for what only it could know.
    second.process.send_signal(signal.SIGSTOP)
    wait_for(lambda: is_stopped(second.process.pid))
    with ThreadPoolExecutor(16) as executor:
        unknown = list(executor.map(gateway.error, [f"/v1/models/m{n}:predict" for n in range(16)], [ROW] * 16))
    assert {code for code, _ in unknown} == {503}
    second.process.send_signal(signal.SIGCONT)
    second.close()
    status, message = gateway.error("/v1/models/flights:predict", ROW)
    assert status == 503
    assert f"{first.address}: " in message
    assert f"{second.address}: " in message
    port = second.address.rpartition(":")[2]
    start_server(port=port, **flights)
    wait_for(lambda: gateway.call("/v1/models/flights:predict", ROW)[0] == 200, gateway.log)


def test_upstream_requests_use_tls_and_token(
    guarded: ServerProcess,  # noqa: F811
    folder: Path,  # noqa: F811
    start_server: Start,
) -> None:
    files = {"ca": "server.crt", "cert": "client.crt", "key": "client.key", "token": "control"}
    flags = {f"upstream_{name}_file": folder / file for name, file in files.items()}
    gateway = start_server(upstream=guarded.address, **flags)
    assert gateway.predict("vectors", {"instances": ROWS}) == {"predictions": [[2.0, 4.0, 6.0]]}
    refused = start_server(upstream=guarded.address, **{**flags, "upstream_token_file": folder / "feedback"})
    status, message = refused.error("/v1/models/vectors:predict", {"instances": ROWS})
    assert (status, "refused by it (--upstream_token_file)" in refused.log()) == (503, True)
    assert "No upstream can be reached for model vectors" in message


def test_gateway_opens_its_ports_after_its_upstream(start_server: Start, saved_models: Path, tmp_path: Path) -> None:
    config = write_models(tmp_path, vectors=slow_model(saved_models, tmp_path / "vectors", 200))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    gateway = start_server(wait=False, upstream=f"127.0.0.1:{port}", model_config_file=config)
    wait_for(lambda: "is away" in gateway.log(), gateway.log)
    start_server(wait=False, port=port, model_config_file=config)
    assert gateway.wait_until_ready().predict("vectors", {"inputs": [[1.0, 2.0, 3.0]]}) == {
        "outputs": [[2.0, 4.0, 6.0]]
    }
