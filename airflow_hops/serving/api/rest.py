"""TensorFlow Serving's REST API: its paths, and the conversion between JSON and messages, with its checks."""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import numpy as np
import orjson

from airflow_hops.core.serving_api import protocol, tensors
from airflow_hops.core.serving_api.protocol import (
    ClassificationRequest,
    ClassificationResponse,
    Method,
    RegressionRequest,
    RegressionResponse,
)
from airflow_hops.core.versions import message_to_json
from airflow_hops.serving.api import rest_json, rest_tensors
from airflow_hops.serving.api.grpc_service import REQUEST_ID, metadata_of, model_metadata, model_status
from airflow_hops.serving.errors import ServingError, check_deadline, invalid_argument
from airflow_hops.serving.models.catalog import Catalog
from airflow_hops.serving.models.servable import DEFAULT_SIGNATURE, Call, Servable, Signature
from airflow_hops.serving.request_handler import RequestHandler, RequestTarget
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes


def add_routes(routes: Routes, handler: RequestHandler) -> None:
    """Adds TensorFlow Serving's paths."""
    target = "/v1/models/MODEL[/versions/N|/labels/L]"
    routes.add(f"POST {target}:predict", functools.partial(_predict, handler))
    routes.add(f"POST {target}:classify", functools.partial(_infer, handler, Method.CLASSIFY))
    routes.add(f"POST {target}:regress", functools.partial(_infer, handler, Method.REGRESS))
    routes.add(f"GET {target}/metadata", functools.partial(_metadata, handler.catalog))
    routes.add(f"GET {target}", functools.partial(_status, handler.catalog))
    routes.add("GET /v1/models[/versions/N|/labels/L]/metadata", _nameless)
    routes.add("GET /v1/models[/versions/N|/labels/L]", _nameless)


def _predict(handler: RequestHandler, request: HttpRequest, match: re.Match[str]) -> HttpResponse:
    target = target_of_path(match)
    parsed: rest_tensors.PredictBody | None = None

    def make_call(servable: Servable) -> Call:
        nonlocal parsed
        parsed = rest_tensors.parse_body(request.body)
        check_deadline(request.deadline_s)
        message = protocol.PredictRequest()
        target.fill(message.model_spec)
        message.model_spec.signature_name = parsed.signature
        signature = _signature(servable, parsed.signature)
        arrays = rest_tensors.read_tensors(parsed, signature.input_types, servable.keys)
        if parsed.format == "row":
            _check_rows(signature, arrays)
        for alias, array in arrays.items():
            tensors.fill_proto(message.inputs[alias], array)
        return Call(Method.PREDICT, message.SerializeToString(), request.deadline_s)

    keys = request.headers.get(REQUEST_ID), request.headers.get(handler.sticky_header)
    answered = handler.answer(target, make_call, "rest", *keys)
    assert parsed is not None
    check_deadline(request.deadline_s)
    response = protocol.PredictResponse.FromString(answered.message)
    outputs = {alias: tensors.from_proto(response.outputs[alias]) for alias in sorted(response.outputs)}
    headers = dict(metadata_of(answered))
    return HttpResponse(write_outputs(outputs, parsed.format), headers=headers)


def _infer(handler: RequestHandler, method: Method, request: HttpRequest, match: re.Match[str]) -> HttpResponse:
    target = target_of_path(match)
    message = read_request(method, request.body)
    target.fill(message.model_spec)
    call = Call(method, message.SerializeToString(), request.deadline_s)
    keys = request.headers.get(REQUEST_ID), request.headers.get(handler.sticky_header)
    answered = handler.answer(target, lambda servable: call, "rest", *keys)
    body = write_response(method, answered.message)
    return HttpResponse(body, headers=dict(metadata_of(answered)))


def _status(catalog: Catalog, request: HttpRequest, match: re.Match[str]) -> HttpResponse:
    message = protocol.GetModelStatusRequest()
    target_of_path(match).fill(message.model_spec)
    return HttpResponse(_proto_json(model_status(catalog, message)).encode())


def _metadata(catalog: Catalog, request: HttpRequest, match: re.Match[str]) -> HttpResponse:
    message = protocol.GetModelMetadataRequest(metadata_field=["signature_def"])
    target_of_path(match).fill(message.model_spec)
    response = model_metadata(catalog, message)
    signatures = protocol.SignatureDefMap.FromString(response.metadata["signature_def"].value)
    spec = {
        "name": response.model_spec.name,
        "signature_name": response.model_spec.signature_name,
        "version": str(response.model_spec.version.value),
    }
    document = {"model_spec": spec, "metadata": {"signature_def": json.loads(_proto_json(signatures))}}
    return HttpResponse(json.dumps(document, indent=1).encode())


def _nameless(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
    raise invalid_argument("Missing model name in request.")


def _signature(servable: Servable, name: str) -> Signature:
    """Returns a signature, whose inputs have the types that JSON numbers do not carry."""
    try:
        return servable.signature(name)
    except ServingError as error:
        if error.code is not grpc.StatusCode.FAILED_PRECONDITION:
            raise
        name = name or DEFAULT_SIGNATURE
        raise invalid_argument(f'Serving signature name: "{name}" not found in signature def') from None


def _check_rows(signature: Signature, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises ServingError if the model would take the values of several instances as one, or mix them by broadcasts."""
    if all(len(array) == 1 for array in arrays.values()):
        return
    for alias in arrays:
        if alias in signature.input_shapes and alias not in signature.batched:
            raise invalid_argument(f"input {alias} is one value for all rows; send the tensors in 'inputs'")
    if not arrays.keys() <= signature.input_shapes.keys() and len({array.ndim for array in arrays.values()}) > 1:
        shapes = ", ".join(f"{alias} {list(array.shape[1:])}" for alias, array in arrays.items())
        raise invalid_argument(
            f"the instances' values are of different ranks ({shapes}), and the signature does not tell which fit the "
            "model: ask for one instance, or send the tensors in 'inputs'"
        )


def target_of_path(match: re.Match[str]) -> RequestTarget:
    """Returns the target that a path names; raises ServingError if its version is no int64."""
    version = match["version"]
    if version is not None and (len(version) > 19 or int(version) >= 2**63):
        raise invalid_argument(f"Failed to convert version: {version} to numeric.")
    return RequestTarget(match["model"], int(version) if version else None, match["label"])


def _proto_json(message: object) -> str:
    return message_to_json(message, preserving_proto_field_name=True, indent=1)


def write_outputs(outputs: Mapping[str, np.ndarray], body_format: rest_tensors.Format) -> bytes:
    """Returns the body of an answer: ``predictions`` for rows, ``outputs`` for columns.

    Raises:
        ServingError: Rows were requested, but the outputs do not have a common batch dimension.
    """
    columns = {name: _plain(name, array) for name, array in outputs.items()}
    document: Any = next(iter(columns.values())) if len(columns) == 1 else columns
    if body_format == "row":
        rows: int | None = None
        for name, array in outputs.items():
            if not array.ndim:
                raise invalid_argument(f"Tensor name: {name} has no shape information ")
            if rows is not None and len(array) != rows:
                raise invalid_argument(
                    f"Tensor name: {name} has inconsistent batch size: {len(array)} expecting: {rows}"
                )
            rows = len(array)
        if document is columns:
            document = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    document = {"predictions" if body_format == "row" else "outputs": document}
    if all(array.dtype.kind != "f" or np.isfinite(array).all() for array in outputs.values()):
        encoded: bytes = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY, default=_jsonable)
        return encoded
    return json.dumps(document, default=_jsonable).encode()  # orjson would write null for NaN


def _plain(name: str, array: np.ndarray) -> object:
    """Returns a tensor in a form for orjson: numbers unchanged, strings as text or base64."""
    if array.dtype.kind in "cV":
        raise invalid_argument(f"Failed to write JSON value for tensor type: {tensors.type_of(array).name}")
    if array.dtype == object:
        write = np.frompyfunc(_base64 if name.endswith("_bytes") else _text, 1, 1)
        return np.asarray(write(array), object).tolist()
    if array.dtype == np.float16:
        array = array.astype(np.float32)
    # Scalars stay NumPy's: orjson writes a float32 in its shortest form, but a Python float with a double's digits.
    return np.ascontiguousarray(array) if array.ndim else array[()]


def _text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return _base64(value)


def _base64(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode("ascii")}


def _jsonable(value: object) -> object:
    """Returns an array or scalar as Python values; floats get NumPy's shortest text."""
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"{type(value).__name__} has no JSON form")
    if value.dtype.kind != "f":
        return value.tolist()
    return np.array([float(str(each)) for each in value.ravel()]).reshape(value.shape).tolist()


_KIND_OF_TYPE = {bool: "int64", int: "int64", float: "float", str: "bytes", dict: "bytes"}


def read_request(method: Method, body: bytes) -> Any:
    """Parses a body into a request message, whose model spec then lacks only the model; raises ServingError."""
    request = ClassificationRequest() if method is Method.CLASSIFY else RegressionRequest()
    document = rest_json.parse_document(body)
    request.model_spec.signature_name = rest_json.signature_name(document)
    if "context" in document:
        context = request.input.example_list_with_context.context
        context.SetInParent()
        _fill_example(context, document["context"])
        examples = request.input.example_list_with_context.examples
    else:
        examples = request.input.example_list.examples
    rows = document.get("examples")
    if "examples" not in document:
        raise invalid_argument(
            f"JSON Value: {rest_json.shown(document)} When method is classify, key 'examples' is expected and was not "
            "found"
        )
    if not isinstance(rows, list):
        raise invalid_argument(
            f"JSON Value: {rest_json.shown(document)} Expecting 'examples' value to be an list/array"
        )
    if not rows:
        raise invalid_argument(f"JSON Value: {rest_json.shown(document)} 'examples' value is an empty array")
    for row in rows:
        _fill_example(examples.add(), row)
    return request


def write_response(method: Method, message: bytes) -> bytes:
    """Returns the body of an answer: ``results`` are pairs of label and score for classify, values for regress."""
    results: list[Any]
    if method is Method.CLASSIFY:
        result = ClassificationResponse.FromString(message).result
        results = [
            [[chosen.label, _shortest(chosen.score)] for chosen in row.classes] for row in result.classifications
        ]
    else:
        results = [_shortest(value.value) for value in RegressionResponse.FromString(message).result.regressions]
    return json.dumps({"results": results}, ensure_ascii=False).encode()


def _fill_example(example: Any, row: object) -> None:
    if not isinstance(row, dict):
        raise invalid_argument(f"Example must be JSON object but got JSON {rest_json.type_name(row)}")
    features = example.features.feature
    example.features.SetInParent()
    for name, content in row.items():
        values = content if isinstance(content, list) else [] if content is None else [content]
        feature = features[name]
        if values:
            kind = _kind(name, values)
            field, convert = _KINDS[kind]
            getattr(feature, field).value.extend([convert(name, value) for value in values])


def _kind(name: str, values: list[object]) -> str:
    """Returns the kind that all values share."""
    first = ""
    for value in values:
        kind = _KIND_OF_TYPE.get(type(value))
        if kind is None or (type(value) is dict and not rest_json.is_base64(value)):
            raise invalid_argument(
                f"Feature: {name} has element with unexpected JSON type: {rest_json.type_name(value)}"
                + (". A missing value is null or an empty list in its place" if value is None else "")
            )
        if type(value) is int and not -(2**63) <= value < 2**64:
            kind = "float"
        if first and kind != first:
            raise invalid_argument(f"Unexpected element type in feature: {name} expecting type: {first}")
        first = first or kind
    return first


def _int64(name: str, value: int) -> int:
    if value >= 2**63:
        raise invalid_argument(f"Feature: {name} has uint64 element. Only int64 is supported.")
    return value


def _float(name: str, value: float) -> float:
    try:
        number = float(value)
    except OverflowError:
        raise _lossy(value) from None
    with np.errstate(over="ignore"):
        rounded = float(np.float32(number))
    if np.isfinite(number) and not np.isfinite(rounded):
        raise _lossy(value)
    return rounded


def _lossy(value: float) -> ServingError:
    return invalid_argument(f"Cannot convert JSON value: {rest_json.shown(value)} to float without loss of precision.")


_KINDS: dict[str, tuple[str, Callable[[str, Any], object]]] = {
    "int64": ("int64_list", _int64),
    "float": ("float_list", _float),
    "bytes": ("bytes_list", lambda _, value: value.encode() if type(value) is str else rest_json.base64_bytes(value)),
}


def _shortest(value: float) -> float:
    """Returns the float with the shortest text that reads back as this float32."""
    return float(str(np.float32(value)))
