"""A server with wrong answers by the Open Inference Protocol behind a gateway's upstream: none becomes an answer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import numpy as np
import pytest

from airflow_hops.core.serving_api import protocol, tensors
from airflow_hops.core.serving_api.protocol import Method
from airflow_hops.extensions.open_inference.serving.grpc_api import MESSAGES, SERVICE
from airflow_hops.extensions.open_inference.serving.v2_upstream import V2Upstream
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.catalog import State

pytestmark = pytest.mark.runtime

Y = ("y", "FP32", [2], np.array([1, 2], np.float32).tobytes())
Z = ("z", *Y[1:])


class Server:
    """A server that answers what a test tells it, of models of which each version is ready."""

    def __init__(self) -> None:
        self.version, self.outputs = "", list[Any]()
        self.versions = list[str]()
        self.index: list[tuple[str, str]] | None = None
        self.restricted: frozenset[str] = frozenset()
        self.ready_names: frozenset[str] | None = None  # None for all

    def infer(self, request: Any, context: Any) -> Any:
        response = MESSAGES["ModelInferResponse"](model_version=self.version)
        for name, datatype, shape, content in self.outputs:
            response.outputs.add(name=name, datatype=datatype, shape=shape)
            if content is not None:
                response.raw_output_contents.append(content)
        return response

    def restrict(self, method: str, context: Any) -> None:
        """Refuses a method as Triton does with --grpc-restricted-protocol."""
        if method in self.restricted:
            context.abort(grpc.StatusCode.UNAVAILABLE, "This protocol is restricted, expecting header 'x'")

    def metadata(self, request: Any, context: Any) -> Any:
        self.restrict("metadata", context)
        return MESSAGES["ModelMetadataResponse"](versions=self.versions)

    def ready(self, request: Any, context: Any) -> Any:
        is_ready = self.ready_names is None or request.version in self.ready_names
        return MESSAGES["ModelReadyResponse"](ready=is_ready)

    def live(self, request: Any, context: Any) -> Any:
        return MESSAGES["ServerLiveResponse"](live=True)

    def repository(self, request: Any, context: Any) -> Any:
        self.restrict("index", context)
        if self.index is None:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "no index")
        response = MESSAGES["RepositoryIndexResponse"]()
        for name, version in self.index or ():
            response.models.add(name=name, version=version, state="READY")
        return response


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Server, V2Upstream]]:
    server, process = Server(), grpc.server(futures.ThreadPoolExecutor(2))
    answers = {"ModelInfer": server.infer, "ModelMetadata": server.metadata, "ModelReady": server.ready}
    answers |= {"ServerLive": server.live, "RepositoryIndex": server.repository}
    methods = {
        name: grpc.unary_unary_rpc_method_handler(
            answer, MESSAGES[f"{name}Request"].FromString, lambda message: message.SerializeToString()
        )
        for name, answer in answers.items()
    }
    process.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = process.add_insecure_port("127.0.0.1:0")
    process.start()
    upstream = V2Upstream(f"127.0.0.1:{port}")
    yield server, upstream
    upstream.close()
    process.stop(None).wait()


def ask(upstream: V2Upstream, wanted: tuple[str, ...]) -> dict[str, list[Any]]:
    request = protocol.PredictRequest()
    request.model_spec.name, request.model_spec.version.value = "m", 3
    tensors.fill_proto(request.inputs["x"], np.array([1.0, 2.0]))
    request.output_filter.extend(wanted)
    answer = protocol.PredictResponse.FromString(upstream.answer(Method.PREDICT, request.SerializeToString(), 20))
    return {name: tensors.from_proto(tensor).tolist() for name, tensor in answer.outputs.items()}


@pytest.mark.parametrize(
    ("version", "outputs", "wanted", "message"),
    [
        ("7", [Y], (), "it is of version 7, but version 3 was asked"),
        ("3", [Y, Y], (), "it has output y twice"),
        ("3", [Y], ("z",), "it lacks output z"),
        ("3", [], ("y",), "it lacks output y"),
        ("3", [Y, (*Z[:3], None)], (), "list index out of range"),
        ("3", [("y", "FP32", [3], Y[3])], (), r"raw_output_contents\[0\] holds 8 bytes; expected 12"),
        ("3", [("y", "FP8", [2], b"ab")], (), 'datatype is "FP8"'),
        ("3", [("y", "FP32", [-1], Y[3])], (), "the shape holds -1"),
        ("3", [("y", "BYTES", [1], b"\5\0\0\0a")], (), "element 0 has 5 bytes"),
    ],
)
def test_wrong_answers_are_errors(
    served: tuple[Server, V2Upstream], version: str, outputs: Any, wanted: tuple[str, ...], message: str
) -> None:
    server, upstream = served
    server.version, server.outputs = version, outputs
    with pytest.raises(ServingError, match=message) as caught:
        ask(upstream, wanted)
    assert caught.value.code is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize("version", ["", "3"])
def test_answers_have_the_outputs_that_were_asked_for(served: tuple[Server, V2Upstream], version: str) -> None:
    server, upstream = served
    server.version, server.outputs = version, [Y, Z]
    assert ask(upstream, ("z",)) == {"z": [1.0, 2.0]} and ask(upstream, ()) == {"y": [1.0, 2.0], "z": [1.0, 2.0]}


def test_names_that_are_no_versions_are_left_out(served: tuple[Server, V2Upstream]) -> None:
    server, upstream = served
    server.versions = ["3", "03", "0", "-1", "v2", "٣", "9" * 19, "9" * 5000]
    assert [*upstream.read_statuses("m", 20)] == [3]


@pytest.mark.parametrize("draws", [100, pytest.param(2000, marks=pytest.mark.scheduled(part="campaigns"))])
def test_readiness_decides_whatever_the_index_says(served: tuple[Server, V2Upstream], draws: int) -> None:
    """Servers have an index and metadata, none, or restricted ones; versions have numbers, or other names."""
    server, upstream = served
    server.version, server.outputs = "", [Y]
    for number in range(draws):
        draw = random.Random(number)
        model = f"m{number}"
        names = draw.choice([[], ["1"], ["3"], ["1", "2"], ["v1"], ["v1", "v2"], ["3", "v1"]])
        server.versions = names if draw.random() < 0.7 else []
        server.index = [(model, name) for name in names or [""]] if draw.random() < 0.6 else draw.choice([None, []])
        server.restricted = frozenset(each for each in ("index", "metadata") if draw.random() < 0.4)
        server.ready_names = frozenset({"", *(each for each in names if draw.random() < 0.8)})
        numbers = {int(each) for each in names if each.isdigit()}
        is_told = ("index" not in server.restricted and server.index) or (
            "metadata" not in server.restricted and server.versions
        )
        expected = {each for each in numbers if str(each) in server.ready_names} if is_told and numbers else {1}
        statuses = upstream.read_statuses(model, 20)
        assert {each for each in statuses if statuses[each].state is State.AVAILABLE} == expected, number
        for version in expected:
            request = protocol.PredictRequest()
            request.model_spec.name, request.model_spec.version.value = model, version
            server.version = draw.choice(["", str(version) if numbers else "v1"]) if is_told and numbers else ""
            assert upstream.answer(Method.PREDICT, request.SerializeToString(), 20)
    server.versions, server.index, server.restricted, server.ready_names = [], None, frozenset(), None
