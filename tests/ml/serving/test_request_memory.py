"""Memory of requests, and the limits that stop them."""

from __future__ import annotations

import functools
import gzip
import math
import time
import tracemalloc

import grpc
import pytest

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import Method, PredictRequest, SignatureDefMap
from airflow_hops.serving.api import http_server, rest_tensors
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.local import LocalServable
from airflow_hops.serving.models.model_options import ModelOptions
from airflow_hops.serving.models.servable import Call
from airflow_hops.serving.request_memory import RequestMemory, parsed_json_bytes
from airflow_hops.serving.routes import HttpRequest


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


@pytest.mark.slow
def test_json_memory_estimate_is_accurate() -> None:
    """Many short values take most; in times of what is counted."""

    size = 400_000
    units = {
        "integers": "0,",
        "floats": "0.12345,",
        "lists": "[],",
        "rows": "[1.0,2.0],",
        "objects": "{},",
        "named": '{"a":1},',
        "nested": '{"a":{"b":{"c":[1]}}},',
        "strings": '"é",',
        "base64": '{"b64":""},',
    }
    bodies = {name: unit * (size // len(unit)) for name, unit in units.items()}
    bodies["not finite"] = "NaN," * 1000 + bodies["integers"]
    results = {}
    for name, values in bodies.items():
        body = ('{"instances":[' + values[:-1] + "]}").encode()
        tracemalloc.start()
        try:
            kind = "string" if name in ("strings", "base64") else "float"
            rest_tensors.read_tensors(rest_tensors.parse_body(body), {"x": tensors.BY_NAME[kind]})
        except ServingError:
            pass
        results[name] = tracemalloc.get_traced_memory()[1] / parsed_json_bytes(body)
        tracemalloc.stop()
    assert {name: share for name, share in results.items() if not 0.02 < share < 1.5} == {}


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
