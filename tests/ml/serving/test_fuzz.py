"""Requests that are wrong in ways that nobody thought of: each gets an error of its own, and the server stays well."""

from __future__ import annotations

import base64
import copy
import gzip
import http.client
import json
import random
import struct
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from campaigns import campaign
from server_process import ServerProcess, predict_request, versions, write_models

from airflow_hops.core.serving_api import protocol
from tests.ml.model_servers import running_server

MAX_GROWTH_MB = 250
# What a client may be told: nothing here says that the server is at fault.
CLIENT_CODES = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNIMPLEMENTED,
}
CLIENT_STATUSES = {200, 400, 404, 413, 429, 501}
ROW = {"carrier": "AA", "distance": [733.0], "hour": 5}
# Model and verb, and a body that it takes.
BODIES: list[tuple[str, Any]] = [
    ("flights:predict", {"instances": [ROW, ROW]}),
    ("flights:predict", {"inputs": {"carrier": ["AA"], "distance": [[733.0]], "hour": [5]}}),
    ("vectors:predict", {"instances": [[1.0, 2.0, 3.0]]}),
    ("vectors:predict", {"signature_name": "strings", "inputs": ["a", {"b64": "YWJj"}]}),
    ("vectors:predict", {"signature_name": "divide", "instances": [1, 2.5]}),
    ("flights:classify", {"examples": [{"carrier": "AA", "hour": [1, 2]}], "context": {"x": 1.5}}),
    ("flights:regress", {"signature_name": "serving_default", "examples": [{"carrier": {"b64": "YWJj"}}]}),
    ("flights:traffic", {"percents": {"1": 50, "2": 50}}),
]
VALUES: list[Any] = [
    *(None, True, False, 0, -1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.1, 1e308, float("nan"), float("inf")),
    *("", "AA", "\ud800", "\x00", "é" * 50, "9" * 5000, [], [[]], [[], [1]], {}, {"": {}}, [None]),
    *(
        {"b64": ""},
        {"b64": "!!"},
        {"b64": 5},
        {"b64": "YQ", "x": 1},
        [1, "a"],
        [[1.0], [2.0, 3.0]],
        {"b64": {"b64": ""}},
    ),
]


@pytest.fixture(scope="module")
def server(runtime_python: Path, saved_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server that captures nothing, with a token that nobody here has."""
    folder = tmp_path_factory.mktemp("fuzzed")
    (folder / "token").write_text("unknown")
    models = {name: (saved_models / name, versions()) for name in ("flights", "vectors")}
    flags = {
        "model_config_file": write_models(folder, **models),
        "control_token_file": folder / "token",
        "max_request_bytes": 6_000_000,
        "max_request_memory_bytes": 200_000_000,
    }
    with running_server(runtime_python, folder, flags) as server:
        yield server


@pytest.fixture
def unharmed(server: ServerProcess) -> Any:
    """Whatever a test sends: afterwards the same process answers right, and has given its memory back."""
    check_answers(server)
    before_mb = resident_mb(server)
    yield server
    check_answers(server)
    assert "Traceback" not in server.log()
    assert resident_mb(server) < before_mb + MAX_GROWTH_MB


def check_answers(server: ServerProcess) -> None:
    assert server.process.poll() is None, server.log()
    answer = server.predict("flights/versions/2", {"instances": [ROW, ROW]})
    assert answer == {"predictions": [{"carrier_id": 1, "score": [2738.0]}] * 2}


def resident_mb(server: ServerProcess) -> float:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


class Rest:
    """One connection, opened anew whenever the server closed it."""

    def __init__(self, server: ServerProcess) -> None:
        self._connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=120)

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        for last in (False, True):
            try:
                self._connection.request("POST", path, body, headers)
                response = self._connection.getresponse()
                return response.status, response.read()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                self._connection.close()
                if last:
                    raise
        raise AssertionError


def mutated_json(random_: random.Random, document: Any) -> bytes:
    """A document with a few of its nodes replaced, removed or doubled, and now and then broken bytes."""
    document = json.loads(json.dumps(document))
    for _ in range(random_.randint(1, 3)):
        parents = [node for node in nodes(document) if isinstance(node, (dict, list)) and node]
        if not parents:
            break
        parent = random_.choice(parents)
        key = random_.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        action = random_.random()
        if action < 0.6:
            parent[key] = copy.deepcopy(random_.choice(VALUES))
        elif action < 0.75:
            del parent[key]
        elif action < 0.9 and isinstance(parent, list):
            parent.insert(key, copy.deepcopy(parent[key]))
        elif isinstance(parent, dict):
            parent[random_.choice(["instances", "inputs", "x", "", "signature_name"])] = copy.deepcopy(parent[key])
    body = bytearray(json.dumps(document, ensure_ascii=random_.random() < 0.5).encode("utf-8", "surrogatepass"))
    if random_.random() < 0.25:
        garble(random_, body)
    return bytes(body)


def nodes(document: Any) -> list[Any]:
    children = document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    return [document, *(node for child in children for node in nodes(child))]


def garble(random_: random.Random, content: bytearray) -> None:
    for _ in range(random_.randint(1, 4)):
        position = random_.randrange(len(content) + 1)
        action = random_.random()
        if action < 0.5 and position < len(content):
            content[position] = random_.randrange(256)
        elif action < 0.75:
            content[position:position] = random_.randbytes(random_.randint(1, 8))
        else:
            del content[position : position + random_.randint(1, 20)]


@campaign("requests", 200, 5000)
def test_random_rest_bodies_do_not_crash(unharmed: ServerProcess, requests: int) -> None:
    random_ = random.Random(20130704)
    rest = Rest(unharmed)
    seen: dict[int, int] = {}
    wrong = []
    for _ in range(requests):
        path, document = random_.choice(BODIES)
        body = mutated_json(random_, document)
        headers = {"Content-Encoding": "gzip"} if random_.random() < 0.05 else {}
        if headers and random_.random() < 0.5:
            body = gzip.compress(body)
        status, answer = rest.post(f"/v1/models/{path}", body, headers)
        seen[status] = seen.get(status, 0) + 1
        allowed = CLIENT_STATUSES | ({401} if path.endswith("traffic") else set())
        if status not in allowed or (status != 200 and not json.loads(answer)["error"]):
            wrong.append((path, body[:500], status, answer[:500]))
    assert not wrong, "\n".join(map(str, wrong[:20]))
    # Neither all of them refused nor all of them taken: the requests are near what is valid.
    assert seen[200] > requests / 200
    assert seen[400] > requests / 4


def test_huge_bodies_are_refused(unharmed: ServerProcess) -> None:
    for body, status in (
        (b"[" * 2_000_000, 400),
        (b'{"instances":' + b"[" * 100_000 + b"1.0" + b"]" * 100_000 + b"}", 400),
        (b'{"instances": [' + b"{}," * 300_000 + b"{}]}", 400),
        (b'{"instances": [' + b"[1.0,2.0]," * 100_000 + b"[1.0]]}", 400),
        (b'{"inputs": "' + b"x" * 5_000_000 + b'"}', 400),
        (b'{"signature_name": "' + b"x" * 2_000_000 + b'", "inputs": []}', 400),
        (b" " * 10_000_000, 413),
        (b'{"instances": [' + b"[1.0,2.0,3.0]," * 30_000 + b"[1.0,2.0,3.0]]}", 200),
    ):
        answered, answer = Rest(unharmed).post("/v1/models/vectors:predict", body, {})
        assert answered == status, body[:50]
        # TensorFlow Serving cuts what it says, and so a huge body never comes back inside its own error.
        assert status == 200 or len(answer) < 8192, body[:50]


def test_expanding_bodies_are_refused(unharmed: ServerProcess) -> None:
    """They are refused as they grow, all of them together, and others are answered meanwhile."""
    deflate = zlib.compressobj(9, wbits=31)
    parts = [deflate.compress(text) for text in (b'{"instances":[', *[b"[]," * 2**18] * 70, b"[]]}")]
    bomb = b"".join([*parts, deflate.flush()])
    assert len(bomb) < 100_000
    headers = {"Content-Encoding": "gzip"}
    with ThreadPoolExecutor(8) as pool:
        bombs = [pool.submit(Rest(unharmed).post, "/v1/models/vectors:predict", bomb, headers) for _ in range(8)]
        while not all(each.done() for each in bombs):
            check_answers(unharmed)
    assert {each.result()[0] for each in bombs} <= {413, 429}
    status, answer = Rest(unharmed).post("/v1/models/vectors:predict", bomb, headers)
    assert (status, "--max_request_memory_bytes" in answer.decode()) == (413, True)
    peak = Path(f"/proc/{unharmed.process.pid}/status").read_text().partition("VmHWM:")[2]
    assert int(peak.split()[0]) / 1024 < 1500


def test_pixels_of_an_image_count_towards_the_memory(unharmed: ServerProcess) -> None:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 40_000, 40_000) + bytes(100)
    for image, expected in ((head, 413), (head.replace(struct.pack(">I", 40_000), struct.pack(">I", 400)), 200)):
        body = {"signature_name": "strings", "instances": [{"b64": base64.b64encode(image).decode()}]}
        status, answer = Rest(unharmed).post("/v1/models/vectors:predict", json.dumps(body).encode(), {})
        assert (status, b"--max_request_memory_bytes" in answer) == (expected, expected == 413)


def tensor(random_: random.Random) -> Any:
    """A tensor that may lie about anything."""
    proto = protocol.TensorProto(dtype=random_.choice([1, 1, 1, 7, 7, 9, 9, 2, 3, 10, 19, 14, 0, 8, 20, 99]))
    for _ in range(random_.choice([0, 1, 1, 1, 2, 2, 3, 300])):
        proto.tensor_shape.dim.add(
            size=random_.choice([0, 1, 1, 1, 2, 3, -1, 1000, 2**20, 2**31, 2**40, 2**62, -(2**63)])
        )
    proto.tensor_shape.unknown_rank = random_.random() < 0.05
    for _ in range(random_.choice([0, 1, 1, 1, 2, 3])):
        field = random_.choice(["float_val", "float_val", "string_val", "int64_val", "int_val", "half_val", "bool_val"])
        value = {"float_val": 1.5, "string_val": b"AA", "int64_val": 2**62, "bool_val": True}.get(field, 70_000)
        getattr(proto, field).extend([value] * random_.choice([1, 1, 2, 3, 1000]))
    if random_.random() < 0.3:
        proto.tensor_content = random_.choice([b"", b"\x80" * 20, struct.pack("<3f", 1, 2, 3), random_.randbytes(40)])
    return proto


def random_request(random_: random.Random) -> Any:
    request = protocol.PredictRequest()
    request.model_spec.name = random_.choice(["flights"] * 4 + ["vectors"] * 4 + ["", "none", "\x00"])
    if random_.random() < 0.3:
        request.model_spec.version.value = random_.choice([1, 2, 7, 0, -1, 2**62])
    elif random_.random() < 0.1:
        request.model_spec.version_label = random_.choice(["stable", ""])
    request.model_spec.signature_name = random_.choice(["", "", "", "strings", "divide", "serving_default", "none"])
    for alias in random_.choice([["x"], ["text"], ["carrier", "distance", "hour"], ["x", "y"], [""], []]):
        request.inputs[alias].CopyFrom(tensor(random_))
    request.output_filter.extend(random_.choice([[]] * 6 + [["y"], ["y", "y"], ["none"], [""]]))
    return request


def valid_requests() -> dict[str, bytes]:
    """A request that succeeds, or is refused for its model alone, for each method."""
    predict = predict_request("vectors", x=np.array([[1, 2, 3]], np.float32))
    classify = protocol.ClassificationRequest()
    classify.model_spec.name = "flights"
    classify.input.example_list.examples.add().features.feature["carrier"].bytes_list.value.append(b"AA")
    multi = protocol.MultiInferenceRequest()
    task = multi.tasks.add(method_name="tensorflow/serving/classify")
    task.model_spec.name = "flights"
    multi.input.CopyFrom(classify.input)
    status = protocol.GetModelStatusRequest()
    status.model_spec.name = "flights"
    metadata = protocol.GetModelMetadataRequest(metadata_field=["signature_def"])
    metadata.model_spec.name = "flights"
    traffic = protocol.SetTrafficRequest(model="flights")
    traffic.shares.add(version=1, percent=100)
    methods = protocol.Method
    requests = {
        methods.PREDICT: predict,
        methods.CLASSIFY: classify,
        methods.REGRESS: classify,
        methods.MULTI_INFERENCE: multi,
        protocol.GET_MODEL_STATUS: status,
        protocol.GET_MODEL_METADATA: metadata,
        "/hops.serving.TrafficService/SetTraffic": traffic,
        "/hops.serving.TrafficService/GetTraffic": protocol.GetTrafficRequest(model="flights"),
        "/grpc.health.v1.Health/Check": protocol.HealthCheckRequest(),
    }
    return {str(method): request.SerializeToString() for method, request in requests.items()}


@campaign("requests", 300, 10_000)
def test_random_messages_do_not_crash(unharmed: ServerProcess, requests: int) -> None:
    random_ = random.Random(20131231)
    valid = valid_requests()
    seen: dict[grpc.StatusCode, int] = {}
    wrong = []
    with grpc.insecure_channel(unharmed.address, [("grpc.max_receive_message_length", -1)]) as channel:
        methods: dict[str, Callable[..., Any]] = {method: channel.unary_unary(method) for method in valid}
        for _ in range(requests):
            if random_.random() < 0.6:
                method, message = str(protocol.Method.PREDICT), random_request(random_).SerializeToString()
            else:
                method = random_.choice(list(valid))
                content = bytearray(valid[method])
                garble(random_, content)
                message = bytes(content)
            try:
                methods[method](message, timeout=120)
                code, details = grpc.StatusCode.OK, ""
            except grpc.RpcError as error:
                code, details = error.code(), error.details()
            seen[code] = seen.get(code, 0) + 1
            allowed = CLIENT_CODES | ({grpc.StatusCode.UNAUTHENTICATED} if "Traffic" in method else set())
            if code not in allowed or (code is not grpc.StatusCode.OK and not details):
                wrong.append((method, message[:300], code, details))
    assert not wrong, "\n".join(map(str, wrong[:20]))
    assert seen[grpc.StatusCode.OK] >= requests / 300
    assert seen[grpc.StatusCode.INVALID_ARGUMENT] > requests / 4


def test_small_messages_with_huge_tensors_are_refused(unharmed: ServerProcess) -> None:
    """A few bytes claim gigabytes: of one input, and of as many inputs as there are names."""
    request = protocol.PredictRequest()
    request.model_spec.name = "vectors"
    for number in range(2000):
        huge = request.inputs["x" if not number else f"x{number}"]
        huge.CopyFrom(protocol.TensorProto(dtype=1, float_val=[1.0]))
        for size in (50_000_000, 3):
            huge.tensor_shape.dim.add(size=size)
    one = protocol.PredictRequest()
    one.CopyFrom(request)
    for alias in list(request.inputs)[1:]:
        if alias != "x":
            del one.inputs[alias]
    with grpc.insecure_channel(unharmed.address) as channel:
        predict = channel.unary_unary(str(protocol.Method.PREDICT))
        for message in (request, one):
            with pytest.raises(grpc.RpcError) as refused:
                predict(message.SerializeToString(), timeout=120)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
