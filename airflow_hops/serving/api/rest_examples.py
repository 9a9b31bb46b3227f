"""JSON bodies of classify and regress requests and answers, with TensorFlow Serving's checks and messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from airflow_hops.core.serving_api.protocol import (
    ClassificationRequest,
    ClassificationResponse,
    Method,
    RegressionRequest,
    RegressionResponse,
)
from airflow_hops.serving.api import rest_json
from airflow_hops.serving.errors import ServingError, invalid_argument

_KIND_OF_TYPE = {bool: "int64", int: "int64", float: "float", str: "bytes", dict: "bytes"}
_FLOAT_MAX = float(np.finfo(np.float32).max)


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


def _fill_example(example: Any, row: Any) -> None:
    if not isinstance(row, dict):
        raise invalid_argument(f"Example must be JSON object but got JSON {rest_json.type_name(row)}")
    features = example.features.feature
    example.features.SetInParent()
    for name, content in row.items():
        values = content if isinstance(content, list) else [content]
        feature = features[name]
        if values:
            kind = _kind(name, values)
            field, convert = _KINDS[kind]
            getattr(feature, field).value.extend([convert(name, value) for value in values])


def _kind(name: str, values: list[Any]) -> str:
    """Returns the kind that all values share."""
    first = ""
    for value in values:
        kind = _KIND_OF_TYPE.get(type(value))
        if kind is None or (type(value) is dict and not rest_json.is_base64(value)):
            raise invalid_argument(
                f"Feature: {name} has element with unexpected JSON type: {rest_json.type_name(value)}"
                + (rest_json.null_hint(name, may_be_missing=True) if value is None else "")
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
    if np.isfinite(number) and abs(number) > _FLOAT_MAX:
        raise _lossy(value)
    return number


def _lossy(value: float) -> ServingError:
    return invalid_argument(f"Cannot convert JSON value: {rest_json.shown(value)} to float without loss of precision.")


def _bytes(name: str, value: str | dict[str, str]) -> bytes:
    return value.encode() if isinstance(value, str) else rest_json.base64_bytes(value)


_KINDS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "int64": ("int64_list", _int64),
    "float": ("float_list", _float),
    "bytes": ("bytes_list", _bytes),
}


def _shortest(value: float) -> float:
    """Returns the float with the shortest text that reads back as this float32."""
    return float(str(np.float32(value)))
