"""The protocol's REST API, with the extension for binary tensor data."""

from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np
import orjson

from airflow_hops import __version__
from airflow_hops.extensions.open_inference.serving.datatypes import to_raw
from airflow_hops.extensions.open_inference.serving.predict import PredictMessage, answers, metadata_of, target_of
from airflow_hops.extensions.open_inference.serving.rest_body import HEADER_LENGTH, Body, WantedOutput
from airflow_hops.serving.access import Right
from airflow_hops.serving.api import grpc_service
from airflow_hops.serving.errors import ServingError, check_deadline, invalid_argument
from airflow_hops.serving.lifecycle import Lifecycle
from airflow_hops.serving.models.servable import Call, Servable
from airflow_hops.serving.request_handler import RequestHandler
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes, json_response

EXTENSIONS = ("binary_tensor_data",)
"""Extensions of the protocol that the server has."""


def add_routes(routes: Routes, handler: RequestHandler, lifecycle: Lifecycle) -> None:
    """Adds the protocol's paths."""
    api = _RestApi(handler, lifecycle)
    model = "/v2/models/MODEL(?:/versions/(?P<version>[^/:]+))?"
    routes.add("GET /v2/health/live", api.live, right=Right.OPEN)
    routes.add("GET /v2/health/ready", api.ready, right=Right.OPEN)
    routes.add("GET /v2/?", api.server, right=Right.PREDICT)
    routes.add(f"GET {model}", api.metadata, right=Right.PREDICT)
    routes.add(f"GET {model}/ready", api.model_ready, right=Right.PREDICT)
    routes.add(f"POST {model}/infer", api.infer, right=Right.PREDICT)


class _RestApi:
    def __init__(self, handler: RequestHandler, lifecycle: Lifecycle) -> None:
        self._handler, self._lifecycle = handler, lifecycle

    def live(self, request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        return json_response({"live": True})

    def ready(self, request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        is_ready = self._lifecycle.ready
        return json_response({"ready": is_ready}, 200 if is_ready else 503)

    def server(self, request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        return json_response({"name": "airflow-hops", "version": __version__, "extensions": EXTENSIONS})

    def metadata(self, request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        return json_response(metadata_of(self._handler.catalog, target_of(match["model"], match["version"])))

    def model_ready(self, request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        target = target_of(match["model"], match["version"])
        self._handler.catalog.find(target.model, target.version, target.label)
        return json_response({"name": target.model, "ready": True})

    def infer(self, request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        target = target_of(match["model"], match["version"])
        try:
            body: Body | ServingError = Body.of(request.body, request.headers.get(HEADER_LENGTH))
        except ServingError as error:
            body = error  # raised where errors of the model's requests are counted

        def make_call(servable: Servable) -> Call:
            if isinstance(body, ServingError):
                raise body
            message = PredictMessage(target, servable, body.read_options(), memory)
            body.fill(message, servable.keys)
            check_deadline(request.deadline_s)
            return message.call(body.outputs, request.deadline_s)

        sticky_key = request.headers.get(self._handler.sticky_header)
        request_id = None if isinstance(body, ServingError) else body.request_id
        request_id = request_id or request.headers.get(grpc_service.REQUEST_ID)
        memory = self._handler.memory.reserve()
        try:
            answered = self._handler.answer(target, make_call, "rest", request_id, sticky_key)
        finally:
            memory.release()
        assert isinstance(body, Body)
        check_deadline(request.deadline_s)
        document: dict[str, Any] = {"model_name": target.model, "model_version": str(answered.version)}
        if answered.request_id:
            document["id"] = answered.request_id
        document["outputs"], binary = [], []
        for name, datatype, array in answers(answered.message, list(body.outputs)):
            output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": array.shape}
            wanted = body.wanted(name)
            if wanted.binary:
                binary.append(to_raw(array))
                output["parameters"] = {"binary_data_size": len(binary[-1])}
            else:
                output |= _in_json(name, datatype, array, wanted)
            document["outputs"].append(output)
        encoded = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
        headers = dict(grpc_service.metadata_of(answered))
        if not binary:
            return HttpResponse(encoded, headers=headers)
        headers[HEADER_LENGTH] = str(len(encoded))
        return HttpResponse(b"".join([encoded, *binary]), 200, "application/octet-stream", headers)


def _in_json(name: str, datatype: str, array: np.ndarray, wanted: WantedOutput) -> dict[str, object]:
    """Returns the values of an output in row-major order; NaN is null, as JSON does not have it.

    Raises:
        ServingError: JSON does not have the type or a value.
    """
    flat = np.ascontiguousarray(array.ravel())
    if datatype == "BYTES":
        if wanted.base64:
            texts = [base64.b64encode(value).decode() for value in flat]
            return {"data": texts, "parameters": {"content_type": "base64"}}
        try:
            return {"data": [value.decode() for value in flat]}
        except UnicodeDecodeError:
            raise invalid_argument(
                f"output {name} holds bytes that are not UTF-8; ask for it with the parameter binary_data true, or "
                'content_type "base64"'
            ) from None
    if datatype == "BF16":
        raise invalid_argument(f"output {name} is BF16, which has no JSON form; ask for it with binary_data true")
    if flat.dtype.kind == "f" and np.isinf(flat).any():
        raise invalid_argument(
            f"output {name} holds infinite values, which JSON does not have; ask for it with binary_data true"
        )
    return {"data": flat.astype(np.float32) if datatype == "FP16" else flat}
