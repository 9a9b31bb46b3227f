"""The protocol's REST API, with the extension for binary tensor data, which follows the JSON of a body."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from airflow_hops import __version__
from airflow_hops.core.serving_api.tensors import STRING
from airflow_hops.extensions.open_inference.serving.datatypes import Declared, declare, to_raw
from airflow_hops.extensions.open_inference.serving.predict import (
    PredictMessage,
    answers,
    check_id,
    check_parameters,
    metadata_of,
    target_of,
)
from airflow_hops.serving.access import Right
from airflow_hops.serving.api import grpc_service
from airflow_hops.serving.api.rest_json import base64_bytes, parse_document, shown
from airflow_hops.serving.api.rest_tensors import list_shape, read_tensor
from airflow_hops.serving.errors import ServingError, check_deadline, invalid_argument
from airflow_hops.serving.lifecycle import Lifecycle
from airflow_hops.serving.models.servable import Call, Servable
from airflow_hops.serving.request_handler import RequestHandler
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes, json_response

HEADER_LENGTH = "Inference-Header-Content-Length"
"""HTTP header with the number of bytes of JSON before the binary tensors."""

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


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """The form in which an output is answered.

    Attributes:
        binary: Whether it follows the JSON in binary form.
        base64: Whether its strings are base64 in JSON.
    """

    binary: bool = False
    base64: bool = False


@dataclass
class Body:
    """A parsed body.

    Attributes:
        document: Its JSON object.
        binary: The bytes that follow.
        outputs: The requested outputs, in order; empty for all.
        others: The form of outputs if none are requested.
    """

    document: dict[str, Any]
    binary: bytes
    outputs: dict[str, WantedOutput] = field(default_factory=dict)
    others: WantedOutput = WantedOutput()

    @classmethod
    def of(cls, body: bytes, header_length: str | None) -> Body:
        """Parses the JSON of a body; raises ServingError if it, or the header's value, is not valid."""
        size = len(body)
        if header_length is not None:
            is_number = header_length.isascii() and header_length.isdigit() and len(header_length) < 19
            size = int(header_length) if is_number else 0
            if not 0 < size <= len(body):
                raise invalid_argument(
                    f"{HEADER_LENGTH} is {header_length[:50]!r}; expected the number of bytes of JSON at the beginning "
                    f"of the body, 1 to {len(body)}"
                )
        return cls(parse_document(body[:size]), body[size:])

    @property
    def request_id(self) -> str | None:
        """The id that the request has, if it is valid."""
        value = self.document.get("id")
        return value if isinstance(value, str) and value else None

    def read_options(self) -> str:
        """Reads which outputs are requested, and in which form; returns the signature's name, empty for the default.

        Raises:
            ServingError: An option is not of the protocol's form.
        """
        request_id = self.document.get("id") or ""
        if not isinstance(request_id, str):
            raise invalid_argument(f"id is {shown(request_id)}; expected a text")
        check_id(request_id)
        parameters = _parameters("the request", self.document)
        signature = parameters.get("signature_name", "")
        if not isinstance(signature, str):
            raise invalid_argument(f"the parameter signature_name is {shown(signature)}; expected a text")
        self.others = WantedOutput(_flag("the request", parameters, "binary_data_output"))
        self.outputs = {}  # a request that another version has to answer is read again
        for output in _objects(self.document, "outputs"):
            name = output.get("name")
            if not isinstance(name, str):
                raise invalid_argument(f"an output's name is {shown(name)}; expected a text")
            if name in self.outputs:
                raise invalid_argument(f"output {name} is requested twice; expected it once")
            own = _parameters(f"output {name}", output)
            is_binary = _flag(f"output {name}", own, "binary_data", self.others.binary)
            self.outputs[name] = WantedOutput(is_binary, own.get("content_type") == "base64")
        return signature

    def wanted(self, output: str) -> WantedOutput:
        """Returns the form in which an output is answered."""
        return self.outputs.get(output, self.others)

    def fill(self, message: PredictMessage, keys: Collection[str]) -> None:
        """Adds the inputs to a message.

        Args:
            message: The message.
            keys: Inputs that must not be null.

        Raises:
            ServingError: The inputs are not of the protocol's form, or data do not fit types and shapes.
        """
        if "inputs" not in self.document:
            raise invalid_argument("the request has no 'inputs'; expected a list of objects with name, shape, datatype")
        position = 0
        for each in _objects(self.document, "inputs"):
            shape = each.get("shape")
            if not isinstance(shape, list):
                raise invalid_argument(f"input {shown(each.get('name'))}: shape is {shown(shape)}; expected a list")
            declared = declare(each.get("name"), each.get("datatype"), shape)
            parameters = _parameters(f"input {declared.name}", each)
            if "binary_data_size" in parameters:
                size = parameters["binary_data_size"]
                left = len(self.binary) - position
                if "data" in each:
                    raise declared.error("it has both 'data' and 'binary_data_size'; expected one")
                if type(size) is not int or not 0 <= size <= left:
                    raise declared.error(
                        f"binary_data_size is {shown(size)}, and {left} bytes of binary data are there; expected the "
                        f"JSON's size in the header {HEADER_LENGTH}, and all data behind it"
                    )
                message.add_raw(declared, self.binary[position : position + size], "its binary data")
                position += size
            else:
                tensor = message.add(declared)
                flat = from_json(declared, each.get("data"), parameters, declared.name in keys)
                if declared.tensor_type is STRING:
                    tensor.string_val.extend(flat.tolist())
                else:
                    tensor.tensor_content = flat.tobytes()
        if position < len(self.binary):
            raise invalid_argument(f"{len(self.binary) - position} bytes follow the binary data of the inputs")


def from_json(declared: Declared, data: object, parameters: Mapping[str, object], is_key: bool) -> np.ndarray:
    """Returns the values of a flat list, or of lists that are nested as the shape is, in row-major order.

    Args:
        declared: The input.
        data: JSON value; null is NaN for floats and empty for strings, as in TensorFlow Serving's API here.
        parameters: With ``content_type`` "base64", strings are base64.
        is_key: Whether null is refused, as no features can be looked up by it.

    Raises:
        ServingError: The values do not fit type and shape.
    """
    if not isinstance(data, list):
        raise declared.error(f"data is {shown(data)}; expected a list")
    if declared.datatype == "BF16":
        raise declared.error("BF16 has no JSON form; expected binary data")
    sent = list_shape(data)
    if len(sent) > 1 and list(sent) != declared.shape and declared.elements:
        raise declared.error(f"data has shape {list(sent)}; expected {declared.shape}, or a flat list")
    try:
        flat = read_tensor(data, sent, declared.tensor_type).ravel()
        if is_key and any(value is None for value in np.array(data, object).ravel()):
            raise invalid_argument("it is null; expected the key by which features are looked up")
        if declared.tensor_type is STRING and parameters.get("content_type") == "base64":
            flat[:] = [base64_bytes({"b64": value.decode()}) for value in flat]
    except (ServingError, UnicodeDecodeError) as error:
        raise declared.error(str(error)) from None
    declared.check_count(flat.size, "data")
    return flat


def _objects(document: Mapping[str, object], key: str) -> list[dict[str, object]]:
    values = document.get(key, [])
    if not isinstance(values, list) or not all(isinstance(each, dict) for each in values):
        raise invalid_argument(f"{key} is {shown(values)}; expected a list of objects")
    return values


def _parameters(owner: str, document: Mapping[str, object]) -> Mapping[str, Any]:
    parameters = document.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise invalid_argument(f"the parameters of {owner} are {shown(parameters)}; expected an object")
    check_parameters(owner, parameters)
    return parameters


def _flag(owner: str, parameters: Mapping[str, object], name: str, default: bool = False) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise invalid_argument(f"the parameter {name} of {owner} is {shown(value)}; expected true or false")
    return value
