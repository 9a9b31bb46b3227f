"""Predictions, status and metadata over both APIs, and the errors of wrong requests."""

from __future__ import annotations

import base64
import json
import re
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import numpy as np
import pytest
import tensorflow as tf
from server_process import ServerProcess
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from airflow_hops.core.serving_api import protocol
from airflow_hops.core.serving_api.tensors import STRING
from airflow_hops.serving.api.rest import write_outputs
from airflow_hops.serving.api.rest_tensors import Format, parse_body, read_tensors
from airflow_hops.serving.errors import ServingError

ROWS = [{"carrier": "AA", "distance": [100.0], "hour": 5}, {"carrier": "ZZ", "distance": [0.5], "hour": 23}]
COLUMNS = {"carrier": ["AA", "ZZ"], "distance": [[100.0], [0.5]], "hour": [5, 23]}


def test_rest_rows_and_columns_use_the_latest_version(shared_server: ServerProcess) -> None:
    rows = shared_server.predict("flights", {"instances": ROWS})
    columns = shared_server.predict("flights", {"inputs": COLUMNS})
    assert rows == {"predictions": [{"carrier_id": 1, "score": [2105.0]}, {"carrier_id": -1, "score": [2023.5]}]}
    assert columns == {"outputs": {"carrier_id": [1, -1], "score": [[2105.0], [2023.5]]}}


def test_null_is_a_missing_number_or_text(shared_server: ServerProcess) -> None:
    divided = shared_server.predict("vectors", {"signature_name": "divide", "instances": [None, 2]})["predictions"]
    assert divided[0] != divided[0] and divided[1] == 0.5
    rows = [{"carrier": None, "distance": [None], "hour": 5}, {"carrier": "AA", "distance": [2], "hour": 5}]
    missing, whole = shared_server.predict("flights", {"instances": rows})["predictions"]
    assert missing["carrier_id"] == -1 and missing["score"][0] != missing["score"][0]
    assert whole == {"carrier_id": 1, "score": [2007.0]}
    columns = {name: [row[name] for row in rows] for name in ROWS[0]}
    assert shared_server.predict("flights", {"inputs": columns})["outputs"]["carrier_id"] == [-1, 1]
    texts = shared_server.predict("vectors", {"signature_name": "strings", "inputs": [None, "a"]})["outputs"]
    assert texts["upper"] == ["", "A"]


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ({"instances": [{"tail": "N1"}, {"tail": None}]}, {"tail": STRING}),
        ({"inputs": {"tail": ["N1", None]}}, {"tail": STRING}),
        ({"inputs": {"tail": None}}, {"tail": STRING}),
        ({"instances": [None]}, {"tail": STRING}),
    ],
)
def test_null_key_of_a_look_up_is_refused(body: dict[str, Any], inputs: dict[str, Any]) -> None:
    with pytest.raises(ServingError, match="input 'tail' is null; expected the key by which features are looked up"):
        read_tensors(parse_body(json.dumps(body).encode()), inputs, keys=["tail"])


@pytest.mark.parametrize(("path", "offset"), [("versions/1", 1000), ("labels/stable", 1000), ("labels/canary", 2000)])
def test_explicit_version_or_label_is_used(shared_server: ServerProcess, path: str, offset: int) -> None:
    answer = shared_server.predict(f"flights/{path}", {"instances": ROWS[:1]})
    assert answer["predictions"][0]["score"] == [offset + 105.0]


def test_single_input_and_output_need_no_names(shared_server: ServerProcess) -> None:
    assert shared_server.predict("vectors", {"instances": [[1, 2, 3.5]]}) == {"predictions": [[2.0, 4.0, 7.0]]}
    assert shared_server.predict("vectors", {"inputs": [[1, 2, 3.5]]}) == {"outputs": [[2.0, 4.0, 7.0]]}


def test_base64_inputs_and_bytes_outputs_are_supported(shared_server: ServerProcess) -> None:
    raw = base64.b64encode(b"\xff\x00ab").decode()
    answer = shared_server.predict("vectors", {"signature_name": "strings", "instances": [{"b64": raw}, "plain"]})
    assert answer["predictions"][0]["raw_bytes"] == {"b64": raw}
    assert answer["predictions"][1] == {"raw_bytes": {"b64": base64.b64encode(b"plain").decode()}, "upper": "PLAIN"}


def test_nan_and_infinity_are_unquoted_in_json(shared_server: ServerProcess) -> None:
    body = b'{"signature_name": "divide", "instances": [0.0, -0.0, NaN, Infinity, 10]}'
    values = shared_server.predict("vectors", body)["predictions"]
    assert values[0] == float("inf")
    assert values[1] == float("-inf")
    assert values[2] != values[2]
    assert values[3:] == [0.0, 0.1]


@pytest.mark.parametrize(
    ("outputs", "body_format", "text"),
    [
        ({"y": np.array(np.nan, np.float32)}, "columnar", '{"outputs": NaN}'),
        ({"y": np.array(-np.inf)}, "columnar", '{"outputs": -Infinity}'),
        ({"y": np.array(np.inf, np.float16), "z": np.array(b"a", object)}, "columnar", '{"y": Infinity, "z": "a"}'),
        ({"y": np.array(0.1, np.float32), "z": np.array(7)}, "columnar", '{"y":0.1,"z":7}'),
        ({"y": np.array(np.nan), "z": np.array(0.1, np.float32)}, "columnar", '{"y": NaN, "z": 0.1}'),
        ({"y": np.array([b"a", b"\xff", "é".encode()], object)}, "columnar", '["a",{"b64":"/w=="},"é"]'),
        ({"y": np.array(b"\xff", object)}, "columnar", '{"outputs":{"b64":"/w=="}}'),
        (
            {"y": np.array([np.nan, 1.0]), "z": np.array([[0.1], [0.2]], np.float32)},
            "row",
            '[{"y": NaN, "z": [0.1]}, {"y": 1.0, "z": [0.2]}]',
        ),
    ],
)
def test_output_is_not_truncated(outputs: dict[str, np.ndarray], body_format: Format, text: str) -> None:
    assert text in write_outputs(outputs, body_format).decode()


def test_status_and_metadata_match_tensorflow_serving(shared_server: ServerProcess) -> None:
    assert shared_server.call("/v1/models/flights/versions/1")[1] == {
        "model_version_status": [
            {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
        ]
    }
    assert shared_server.versions("flights") == {1: "AVAILABLE", 2: "AVAILABLE"}
    metadata = shared_server.call("/v1/models/flights/labels/stable/metadata")[1]
    assert metadata["model_spec"] == {"name": "flights", "signature_name": "", "version": "1"}
    signature = metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["inputs"]["carrier"]["dtype"] == "DT_STRING"
    assert signature["inputs"]["distance"]["tensor_shape"]["dim"] == [
        {"size": "-1", "name": ""},
        {"size": "1", "name": ""},
    ]


ROW = ROWS[0]
TOO_BIG = "JSON Parse error: Number too big to be stored in double. at offset: "
NO_INTEGER = (
    "Failed to process element: 1 key: hour of 'instances' list. Error: INVALID_ARGUMENT: "
    "JSON Value: 1.5 Type: Number is not of expected type: int64"
)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("nope", {"instances": [1]}, "Servable not found for request: Latest(nope)"),
        ("flights/versions/9", {"instances": [ROW]}, "Servable not found for request: Specific(flights, 9)"),
        ("flights/labels/odd", {"instances": [ROW]}, "Unrecognized servable version label: odd"),
        ("flights", {"signature_name": "odd", "instances": [ROW]}, 'Serving signature name: "odd" not found in'),
        ("flights", b"", "JSON Parse error: The document is empty"),
        ("flights", b'{"instances": [', "JSON Parse error: "),
        ("vectors", b'{"instances": [1e400]}', TOO_BIG),
        ("vectors", b'{"instances": [-1e400, NaN]}', TOO_BIG),
        ("vectors", b'{"instances": [' + b"9" * 1_000_000 + b"]}", TOO_BIG),
        ("vectors", b'{"instances": [' + b"9" * 400 + b"]}", TOO_BIG),
        ("flights", b"[" * 100_000, "JSON Parse error: "),
        ("flights", [1], "Is not object"),
        ("flights", {}, "Missing 'inputs' or 'instances' key"),
        ("flights", {"inputs": {}, "instances": []}, "expecting only one of 'inputs' or 'instances'"),
        ("flights", {"instances": 1}, "Excepting 'instances' to be an list/array"),
        ("flights", {"instances": []}, "No values in 'instances' array"),
        ("flights", {"instances": [1]}, "instances is a plain list, but expecting list of objects"),
        ("flights", {"instances": [ROW, 1]}, "Expecting object but got list at item 1 of input list"),
        ("flights", {"instances": [{"hour": 5}]}, "keys must be equal to: carrier,distance,hour"),
        ("flights", {"instances": [{**ROW, "odd": 1}]}, "JSON object: does not have named input: odd"),
        ("flights", {"instances": [ROW, {**ROW, "hour": 1.5}]}, NO_INTEGER),
        ("flights", {"instances": [{**ROW, "hour": None}]}, "No int64 can be missing: only floats and texts can"),
        ("flights", {"instances": [{**ROW, "hour": 2**63}]}, "is not of expected type: int64"),
        ("flights", {"instances": [ROW, {**ROW, "distance": [1.0, 2.0]}]}, "Expecting tensor size: 1 but got: 2"),
        ("flights", {"inputs": {"hour": [1]}}, "Missing named input: carrier in 'inputs' object."),
        ("vectors", {"instances": [[16777217, 0, 0]]}, "to float without loss of precision."),
        ("vectors", {"instances": [[1, 2, 3], [1, 2]]}, "Expecting tensor size: 3 but got: 2"),
        ("vectors", {"signature_name": "strings", "instances": [{"b64": "?"}]}, "Unable to base64 decode"),
        ("vectors", {"signature_name": "strings", "inputs": [{"b64": "YQ==", "x": 1}]}, "correctly for base64 data"),
        ("flights", {"signature_name": 1, "instances": [ROW]}, "'signature_name' key must be a string value."),
        ("flights", {"inputs": [1]}, "inputs is a plain value/list, but expecting an object"),
        ("flights", {"inputs": {**COLUMNS, "hour": [1, 2, 3]}}, "inputs differ in their 0th dimension: carrier 2"),
        ("vectors", {"inputs": [[1, 2, 3], [1, 2]]}, "Encountered list at unexpected size: 2 at level: 1"),
        ("vectors", {"inputs": [[1, 2, 3], 1]}, "JSON Value: 1 found at incorrect level: 2 in the JSON DOM."),
        ("vectors", {"inputs": [1, [2]]}, "Encountered list at unexpected level: 1 expected < 1"),
        ("vectors", b'{"inputs": ' + b"[" * 900 + b"1" + b"]" * 900 + b"}", "JSON Value of 900 levels cannot be"),
        ("vectors", b'{"instances": {"a": ' + b"[" * 1000 + b"]" * 1000 + b"}}", 'JSON Value: {\n    "instances": {'),
    ],
    ids=lambda value: str(value)[:60],
)
def test_wrong_rest_request_gets_tensorflow_servings_message(
    shared_server: ServerProcess, path: str, body: object, message: str
) -> None:
    status, result = shared_server.error(f"/v1/models/{path}:predict", body)
    assert status == (404 if message.startswith("Servable not found") else 400)
    assert message in result


def test_paths_and_verbs_are_case_insensitive(shared_server: ServerProcess) -> None:
    assert shared_server.call("/V1/Models/vectors:PREDICT", {"instances": [[1, 2, 3]]})[0] == 200
    assert shared_server.call("/V1/MODELS/flights/Versions/1/MetaData")[1]["model_spec"]["version"] == "1"


def test_numbers_are_written_in_their_shortest_form_and_whole_floats_with_a_decimal_point(
    shared_server: ServerProcess,
) -> None:
    body = b'{"inputs": [[0.1, 3e20, 1e-7], [2, -0.0, 16777215]], "signature_name": "serving_default"}'
    request = urllib.request.Request(f"{shared_server.url}/v1/models/vectors:predict", body)
    with urllib.request.urlopen(request, timeout=60) as response:
        text = response.read().decode()
        assert response.headers["Content-Type"].startswith("application/json")
    written = re.findall(r"[-+0-9.eE]+(?=[,\]])", text)
    assert [float(number) for number in written] == [0.2, 6e20, 2e-7, 4.0, 0.0, 33554430.0]
    assert all("." in number or "e" in number for number in written)
    assert written[0] == "0.2"
    answer = shared_server.predict("flights", {"instances": ROWS[:1]})["predictions"][0]
    assert (answer["carrier_id"], type(answer["carrier_id"])) == (1, int)


def test_each_status_code_has_its_http_status() -> None:
    results = {code.name: ServingError(code, "").http_status for code in grpc.StatusCode}
    others = dict.fromkeys(["CANCELLED", "UNKNOWN", "INTERNAL", "DATA_LOSS"])
    assert {code: status for code, status in results.items() if code not in others} == {
        "OK": 200,
        "INVALID_ARGUMENT": 400,
        "FAILED_PRECONDITION": 400,
        "OUT_OF_RANGE": 400,
        "UNAUTHENTICATED": 401,
        "PERMISSION_DENIED": 403,
        "NOT_FOUND": 404,
        "ALREADY_EXISTS": 409,
        "ABORTED": 409,
        "RESOURCE_EXHAUSTED": 429,
        "UNIMPLEMENTED": 501,
        "UNAVAILABLE": 503,
        "DEADLINE_EXCEEDED": 504,
    }
    assert all(results[code] >= 499 for code in others)


def test_messages_are_cut_at_1024_characters(shared_server: ServerProcess) -> None:
    status, message = shared_server.error("/v1/models/flights:predict", {"instances": 1, "pad": "x" * 5000})
    assert status == 400
    assert len(message) <= 1024


def with_spec(
    request: Any, name: str, version: int | None = None, label: str | None = None, signature: str = "", **inputs: Any
) -> Any:
    """Fills a request of TensorFlow Serving's own messages; inputs are values or ``TensorProto`` messages."""
    request.model_spec.name = name
    request.model_spec.signature_name = signature
    if version is not None:
        request.model_spec.version.value = version
    if label is not None:
        request.model_spec.version_label = label
    for alias, value in inputs.items():
        proto = value if isinstance(value, tf.make_tensor_proto(0).__class__) else tf.make_tensor_proto(value)
        request.inputs[alias].CopyFrom(proto)
    return request


def refusal(call: Callable[[Any], Any], request: Any) -> list[str]:
    with pytest.raises(grpc.RpcError) as refused:
        call(request)
    return [refused.value.code().name, refused.value.details()]


def test_tensorflow_serving_stub_client_is_served(shared_server: ServerProcess) -> None:
    """``tf.make_tensor_proto`` and the wheel's stubs, as in TensorFlow Serving's tutorials."""
    channel = grpc.insecure_channel(shared_server.address)
    prediction = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    models = model_service_pb2_grpc.ModelServiceStub(channel)
    hour = tf.constant([3, 4], tf.int64)
    inputs = {"carrier": [b"AA", b"UA"], "distance": [[1.0], [2.0]], "hour": hour}

    def request(model: str = "flights", output_filter: Sequence[str] = (), **spec: Any) -> Any:
        return with_spec(predict_pb2.PredictRequest(output_filter=output_filter), model, **spec)

    def status(*spec: Any) -> Any:
        return with_spec(get_model_status_pb2.GetModelStatusRequest(), *spec)

    response = prediction.Predict(request(**inputs))
    score, spec = response.outputs["score"], response.model_spec
    assert tf.make_ndarray(score).ravel().tolist() == [2004.0, 2006.0]
    assert (len(score.float_val), score.tensor_content) == (2, b"")
    assert (spec.name, spec.signature_name, spec.version.value) == ("flights", "serving_default", 2)
    assert prediction.Predict(request(label="stable", **inputs)).model_spec.version.value == 1
    assert list(prediction.Predict(request(output_filter=["score"], **inputs)).outputs) == ["score"]
    for asked in (status("flights"), status("flights", None, "stable")):
        entries = models.GetModelStatus(asked).model_version_status
        assert [(entry.version, entry.state) for entry in entries] == [(2, 30), (1, 30)]
    described = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    signatures = get_model_metadata_pb2.SignatureDefMap()
    prediction.GetModelMetadata(with_spec(described, "vectors")).metadata["signature_def"].Unpack(signatures)
    assert sorted(signatures.signature_def) == ["divide", "serving_default", "slow", "strings"]

    lying, huge = tf.make_tensor_proto(hour), tf.make_tensor_proto([3], tf.int64)
    lying.tensor_shape.dim[0].size, huge.tensor_shape.dim[0].size = 3, 2**40
    misnamed = {"carrier": [b"AA", b"UA"], "distance": [[1.0], [2.0]], "odd": hour}
    invalid, missing = "INVALID_ARGUMENT", "NOT_FOUND"
    extra = "input size does not match signature: 4!=3 len({carrier,distance,hour,odd}) != len({carrier,distance,hour})"
    extra += ". Sent extra: {odd}. Missing but required: {}."
    absent = "Signature input alias: hour(feed name: serving_default_hour:0) not found in request and no default value "
    absent += "provided. Inputs expected to be in the request {carrier,distance,odd}, or default input alias set: "
    no_output = "output tensor alias not found in signature: odd Outputs expected to be in the set {carrier_id,score}."
    too_large = "tensor parsing error: hour (shape [1099511627776] of int64 is larger than 2147483648 bytes)"
    floats = {**inputs, "hour": [[1.0], [2.0]]}
    for asked, code, message in (
        (predict_pb2.PredictRequest(), invalid, "Missing ModelSpec"),
        (request(""), invalid, "ModelSpec has no name specified."),
        (request("nope"), missing, "Servable not found for request: Latest(nope)"),
        (request(version=7, **inputs), missing, "Servable not found for request: Specific(flights, 7)"),
        (request(label="odd", **inputs), invalid, "Unrecognized servable version label: odd"),
        (request(signature="odd", **inputs), "FAILED_PRECONDITION", 'Serving signature key "odd" not found.'),
        (request(**inputs, odd=hour), invalid, extra),
        (request(**misnamed), invalid, absent),
        (request(output_filter=["odd"], **inputs), invalid, no_output),
        (request(output_filter=["score"] * 2, **inputs), invalid, "duplicate output tensor alias: score"),
        (request(**floats), invalid, "Expects arg[2] to be int64 but float is provided (input alias: hour)"),
        (
            request(**{**inputs, "hour": lying}),
            invalid,
            "tensor parsing error: hour (16 bytes of content for shape [3] of int64)",
        ),
        (request(**{**inputs, "hour": huge}), invalid, too_large),
    ):
        assert refusal(prediction.Predict, asked) == [code, message]
    assert len(refusal(prediction.Predict, request(signature="s" * 5000, **inputs))[1]) == 1024
    assert refusal(models.GetModelStatus, status("nope")) == [missing, "Could not find any versions of model nope"]
    unknown = refusal(models.GetModelStatus, status("flights", 7))
    assert unknown == [missing, "Could not find version 7 of model flights"]
    assert refusal(prediction.MultiInference, inference_pb2.MultiInferenceRequest())[0] == invalid


def test_health_over_grpc_and_http(shared_server: ServerProcess) -> None:
    name = "tensorflow.serving.PredictionService"
    check = grpc.insecure_channel(shared_server.address).unary_unary(
        "/grpc.health.v1.Health/Check", response_deserializer=protocol.HealthCheckResponse.FromString
    )
    health = [check(b"").status, check(protocol.HealthCheckRequest(service=name).SerializeToString()).status]
    assert health == [1, 1]
    assert shared_server.call("/healthz")[0] == 200
    assert shared_server.call("/readyz") == (
        200,
        {"ready": True, "models": {"flights": [1, 2], "vectors": [7]}, "unavailable": []},
    )
