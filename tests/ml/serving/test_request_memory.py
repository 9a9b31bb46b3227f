"""Memory of requests, and the limits that stop them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import gzip
import json
import math
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from campaigns import campaign

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import ClassificationRequest, Method, PredictRequest, SignatureDefMap
from airflow_hops.extensions.open_inference.serving import grpc_api, rest_api
from airflow_hops.extensions.open_inference.serving.datatypes import to_raw
from airflow_hops.serving.access import Access
from airflow_hops.serving.api import http_server, rest
from airflow_hops.serving.api.control import Control
from airflow_hops.serving.api.grpc_service import GrpcServer
from airflow_hops.serving.capture.capture import Capture
from airflow_hops.serving.capture.options import CaptureOptions
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.models.catalog import Catalog
from airflow_hops.serving.models.formats import ModelOptions
from airflow_hops.serving.models.local import LocalServable
from airflow_hops.serving.models.servable import Call
from airflow_hops.serving.models.signature_defs import fill_info
from airflow_hops.serving.models.traffic import TrafficTable
from airflow_hops.serving.monitoring.stats import RequestStats
from airflow_hops.serving.request_handler import RequestHandler
from airflow_hops.serving.request_memory import RequestMemory, parsed_message_bytes
from airflow_hops.serving.routes import HttpRequest, Routes
from tests.ml.extensions.open_inference.v2_client import CONTENTS
from tests.ml.random_encodings import encode


def test_requests_share_and_release_memory() -> None:
    memory = RequestMemory(1000)
    first, second = memory.reserve(600), memory.reserve()
    with pytest.raises(ServingError, match="Other requests under way leave too little memory") as refused:
        second.grow(500)
    assert (refused.value.code, refused.value.http_status) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 429)
    second.grow(400)
    with pytest.raises(ServingError, match="more memory than there is for all") as refused:
        second.grow(700)
    assert (refused.value.code, refused.value.http_status) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 413)
    for _ in range(2):
        first.release()
    second.grow(600)
    assert memory.taken_bytes == 1000
    second.release()
    assert memory.taken_bytes == 0


class Echo(LocalServable):
    """A model that returns its input."""

    def _free(self) -> None:
        pass

    def _run(self, signature: Any, feeds: Any, aliases: Any, deadline_s: float) -> Any:
        return [feed.copy() for feed in feeds[: len(aliases)]]


def echo_of(kind: str) -> Echo:
    definitions = SignatureDefMap()
    definition = definitions.signature_def["serving_default"]
    tensor_type = tensors.BY_NAME[kind if kind != "examples" else "string"]
    for infos, name in ((definition.inputs, "inputs"), (definition.outputs, "classes")):
        fill_info(infos[name], name, tensor_type, (-1,) if kind != "examples" else None)
    return Echo(kind, 1, "", definitions.SerializeToString(), ModelOptions())


class Methods(GrpcServer):
    """The functions of all gRPC methods, by path."""

    def add_method(self, path: str, right: Any, read: Any, is_quick: Any, answer: Any, layout: Any) -> None:
        self.__dict__.setdefault("methods", {})[path] = (read, answer, layout)


class Peak(RequestMemory):
    """Memory whose highest use is known."""

    highest = 0

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "taken_bytes":
            self.__dict__["highest"] = max(self.highest, value)


V2 = {"float": "FP32", "double": "FP64", "int64": "INT64", "int32": "INT32", "uint8": "UINT8", "int16": "INT16"}
V2 |= {"bool": "BOOL", "uint32": "UINT32", "uint64": "UINT64", "string": "BYTES"}
KINDS = (*V2, "half", "complex64")


class Server:
    """All APIs, without ports."""

    def __init__(self) -> None:
        self.memory = Peak()
        catalog = Catalog(TrafficTable(None))
        for kind in (*KINDS, "examples"):
            catalog.publish(kind, {1: echo_of(kind)}, {})
        handler = RequestHandler(catalog, RequestStats(), Capture(CaptureOptions()), memory=self.memory)
        lifecycle: Any = None
        self.grpc = Methods(Flags(), self.memory, Access(None, None, None))
        control: Any = Control(catalog, None, False)  # type: ignore[arg-type]
        self.grpc.add_services(handler, control, lifecycle)
        grpc_api.add_service(self.grpc, handler, lifecycle)
        self.routes = Routes()
        rest.add_routes(self.routes, handler)
        rest_api.add_routes(self.routes, handler, lifecycle)

    def answer(self, path: str, body: bytes) -> Any:
        """Answers one request as the servers do."""
        reservation = self.memory.reserve(len(body))
        try:
            if path in self.grpc.methods:
                read, answer, layout = self.grpc.methods[path]
                reservation.grow(parsed_message_bytes(body, layout))
                return answer(read(body), (), math.inf)
            _, respond, match = self.routes.find("POST", path)
            asked = HttpRequest("POST", path, body, {}, {}, math.inf)
            plain = http_server.decompressed(asked, 2**30, reservation)
            return respond(replace(asked, body=plain), match)
        finally:
            reservation.release()


def values_of(draw: random.Random, kind: str, size: int) -> list[Any]:
    """Values that take few or many bytes when they are sent, some or all alike."""
    if kind == "string":
        lengths = draw.choice([[0], [1], [5], [0, 1, 30], [300], [5000]])
        return [b"x" * draw.choice(lengths) for _ in range(size // (2 + max(lengths)))]
    if kind in ("float", "double", "half", "complex64"):
        return [draw.choice([0.0, 1.5, 0.1])] * (size // 4)
    limits = np.iinfo(tensors.BY_NAME[kind].numpy) if kind != "bool" else None
    most = int(limits.max) if limits else 1
    choices = [1, min(most, 3), min(most, 200), min(most, 70_000), most, int(limits.min) if limits else 0]
    return draw.choices(draw.sample(choices, draw.randint(1, 2)), k=size // draw.choice([1, 2, 5]))


def request(draw: random.Random, size: int) -> tuple[str, bytes]:
    """The path and body of a request of this size or, as strings or packed numbers, of another."""
    api = draw.choice(["predict", "predict", "infer", "examples", "json", "json", "v2 json"])
    kind = draw.choice(list(V2) if "v2" in api or api == "infer" else KINDS)
    values = values_of(draw, kind, size)
    if api == "predict":
        message = PredictRequest()
        message.model_spec.name = kind
        proto = message.inputs["inputs"]
        array = np.array(values, tensors.BY_NAME[kind].numpy)
        tensors.fill_proto(proto, array, as_content=draw.random() < 0.2)
        if draw.random() < 0.1:
            proto.tensor_shape.dim.extend([proto.tensor_shape.dim[0]] * (size // 100))
        return str(Method.PREDICT), encode(draw, message)
    if api == "infer":
        asked = grpc_api.MESSAGES["ModelInferRequest"](model_name=kind)
        tensor = asked.inputs.add(name="inputs", datatype=V2[kind], shape=[len(values)])
        if draw.random() < 0.3:
            asked.raw_input_contents.append(to_raw(np.array(values, tensors.BY_NAME[kind].numpy)))
        else:
            getattr(tensor.contents, CONTENTS[V2[kind]]).extend(values)
        return f"/{grpc_api.SERVICE}/ModelInfer", encode(draw, asked)
    if api == "examples":
        inference = ClassificationRequest()
        inference.model_spec.name = "examples"
        examples = inference.input.example_list
        if draw.random() < 0.4:
            context = inference.input.example_list_with_context.context
            context.features.feature["c"].bytes_list.value.append(b"x" * draw.choice([10, 1000, size // 2000]))
            examples = inference.input.example_list_with_context
        for _ in range(min(size // 40, draw.choice([10, 1000, 100_000]))):
            example = examples.examples.add()
            example.features.feature["x"].int64_list.value.extend([1] * draw.choice([0, 1, 20]))
        return str(Method.CLASSIFY), encode(draw, inference)
    plain = [
        value.decode() if isinstance(value, bytes) else value for value in values if not isinstance(value, complex)
    ]
    plain = [bool(value) for value in plain] if kind == "bool" else plain
    if api == "json":
        document: Any = {"instances": plain} if draw.random() < 0.5 else {"inputs": plain}
        path = f"/v1/models/{kind}:predict"
    else:
        shape = [len(plain)]
        document = {"inputs": [{"name": "inputs", "shape": shape, "datatype": V2[kind], "data": plain}]}
        path = f"/v2/models/{kind}/infer"
    body = json.dumps(document, indent=draw.choice([None, 1]), separators=draw.choice([None, (",", ":")])).encode()
    return path, gzip.compress(body, 1) if draw.random() < 0.3 else body


def measured(server: Server, path: str, body: bytes) -> tuple[int, int]:
    """The memory that a request takes, and the memory that was reserved for it."""

    def resident(kind: str) -> int:
        status = Path("/proc/self/status").read_text()
        files = status.partition("RssFile:")[2].split()[0]  # libraries: each kernel maps other amounts
        return (int(status.partition(kind)[2].split()[0]) - int(files)) * 1024

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # a request that uses this process's free memory would seem to take less
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            Path("/proc/self/clear_refs").write_text("5")  # resets the highest
            reference = resident("VmRSS:")
            with contextlib.suppress(ServingError):
                server.answer(path, body)
            os.write(write, f"{resident('VmHWM:') - reference} {server.memory.highest}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        taken, reserved = map(int, stream.read().split())
    os.waitpid(child, 0)
    return len(body) + taken, reserved


def wrong_draws(draws: int) -> list[object]:
    """The requests that take more than a fifth above what is reserved for them."""
    server, wrong = Server(), list[object]()
    for number in range(100):  # what a process allocates once is not of a request
        with contextlib.suppress(ServingError):
            server.answer(*request(random.Random(-number), 2000))
    for number in range(draws):
        draw = random.Random(number)
        path, body = request(draw, draw.choice([400_000, 1_100_000, 1_500_000]))
        taken, reserved = measured(server, path, body)
        if taken > 1.2 * reserved + 2**20:  # some of it is of allocators
            wrong.append((number, path, len(body), taken, round(taken / reserved, 2)))
    return wrong


@campaign("draws", 50, 2000)
def test_requests_take_no_more_memory_than_is_reserved(draws: int) -> None:
    """Whatever their API, types and encoding; ``tracemalloc`` does not see protobuf's own memory."""
    # In a process without threads, which forks.
    program = f"from tests.ml.serving.test_request_memory import wrong_draws; print(wrong_draws({draws}))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


def test_context_of_many_examples_is_reserved() -> None:
    """Some hundred kilobytes would take gigabytes."""
    message = ClassificationRequest()
    message.model_spec.name = "examples"
    examples = message.input.example_list_with_context
    examples.context.features.feature["c"].bytes_list.value.append(bytes(100_000))
    for _ in range(50_000):
        examples.examples.add()
    server = Server()
    server.memory.limit_bytes = 2**30
    with pytest.raises(ServingError, match="more memory than there is for all"):
        server.answer(str(Method.CLASSIFY), message.SerializeToString())


def test_work_stops_after_a_504() -> None:
    """A body is not decompressed further, and a model that watches no time itself does not run."""

    class Model(LocalServable):
        runs = 0

        def _free(self):
            pass

        def _run(self, signature, feeds, aliases, deadline_s):
            self.runs += 1
            return []

    definitions = SignatureDefMap()
    definitions.signature_def["serving_default"].SetInParent()
    model = Model("m", 1, "", definitions.SerializeToString(), ModelOptions())
    request = PredictRequest()
    request.model_spec.name = "m"
    body = gzip.compress(bytes(3_000_000))
    result = []
    for deadline_s in (math.inf, time.monotonic()):
        memory = RequestMemory()
        asked = HttpRequest("POST", "/", body, {"Content-Encoding": "gzip"}, deadline_s=deadline_s)
        for work in (
            functools.partial(http_server.decompressed, asked, 10**7, memory.reserve()),
            functools.partial(model.answer, Call(Method.PREDICT, request.SerializeToString(), deadline_s)),
        ):
            try:
                work()
                result.append("done")
            except ServingError as error:
                result.append(error.code.name)
        result += [model.runs, memory.taken_bytes > 3_000_000]
    assert result == ["done", "done", 1, True, "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED", 1, False]
