"""Tensors of JSON predict requests, in rows or columns, with TensorFlow Serving's checks and messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

import grpc
import numpy as np

from airflow_hops.core.serving_api.tensors import STRING, TensorType
from airflow_hops.serving.api.rest_json import (
    base64_bytes,
    is_base64,
    parse_document,
    shown,
    signature_name,
    type_name,
)
from airflow_hops.serving.errors import ServingError, invalid_argument

Format = Literal["row", "columnar"]
InputTypes = Mapping[str, TensorType | None]

_INTEGERS_KEPT = {"float": 2**24, "double": 2**53, "half": 2**11}


@dataclass(frozen=True)
class PredictBody:
    """A parsed predict request; its tensors are read later, as that takes the signature.

    Attributes:
        signature: Signature name; empty for the default.
        format: "row" (``instances``) or "columnar" (``inputs``).
        values: JSON value under that key.
    """

    signature: str
    format: Format
    values: Any


def parse_body(body: bytes) -> PredictBody:
    """Parses a predict request; raises ServingError unless it is an object with either ``instances`` or ``inputs``."""
    document = parse_document(body)
    signature = signature_name(document)
    if "instances" in document and "inputs" in document:
        raise invalid_argument(
            f"JSON Value: {shown(document)} Not formatted correctly expecting only one of 'inputs' or 'instances' "
            f"keys to exist "
        )
    if "instances" in document:
        instances = document["instances"]
        if not isinstance(instances, list):
            raise invalid_argument(f"JSON Value: {shown(document)} Excepting 'instances' to be an list/array")
        if not instances:
            raise invalid_argument(f"JSON Value: {shown(document)} No values in 'instances' array")
        return PredictBody(signature, "row", instances)
    if "inputs" in document:
        return PredictBody(signature, "columnar", document["inputs"])
    raise invalid_argument("Missing 'inputs' or 'instances' key")


def read_tensors(body: PredictBody, inputs: InputTypes, keys: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Returns the tensors of a request by input alias; raises ServingError if the values do not fit the signature.

    Null is NaN for floats and empty for strings, as in training; ``keys`` are inputs without null.
    """
    _check_keys(body, inputs, keys)
    if not inputs:
        raise invalid_argument(f"Failed to get input map for signature: {body.signature or 'DEFAULT'}")
    if body.format == "row":
        instances = body.values
        first = instances[0]
        if not isinstance(first, dict) and len(inputs) > 1:
            raise invalid_argument(
                "instances is a plain list, but expecting list of objects as multiple input tensors required as per "
                "tensorinfo_map"
            )
        if not _is_named(first):
            for index, instance in enumerate(instances):
                if _is_named(instance):
                    raise invalid_argument(f"Expecting value/list but got object at item {index} of input list")
            name = next(iter(inputs))
            return {name: _read_batch(name, instances, inputs[name], named=False)}
        keys = inputs.keys()
        for index, instance in enumerate(instances):
            if not _is_named(instance):
                raise invalid_argument(f"Expecting object but got list at item {index} of input list")
            if instance.keys() != keys:
                for name in instance:
                    if name not in inputs:
                        raise invalid_argument(
                            f"Failed to process element: {index} key: {name} of 'instances' list. Error: "
                            f"INVALID_ARGUMENT: JSON object: does not have named input: {name}"
                        )
                raise invalid_argument(
                    f"Failed to process element: {index} of 'instances' list. JSON object: {shown(instance)} keys must "
                    f"be equal to: {','.join(sorted(keys))}"
                )
        return {name: _read_batch(name, [row[name] for row in instances], inputs[name], named=True) for name in inputs}
    return _read_columns(body.values, inputs)


def _check_keys(body: PredictBody, inputs: InputTypes, keys: Collection[str]) -> None:
    """Raises ServingError if a key is null: features of no entity would be looked up."""
    for name in keys:
        values = body.values
        if body.format == "row":
            values = [each.get(name) if _is_named(each) and name in each else each for each in values]
        elif _is_named(values):
            values = values.get(name, [])
        if values is None or (isinstance(values, list) and None in values):
            raise invalid_argument(f"input {name!r} is null; expected the key by which features are looked up")


def _read_batch(name: str, values: list[object], tensor_type: TensorType | None, named: bool) -> np.ndarray:
    """Reads a list with one value per row; all rows must have the same shape."""
    try:
        return read_tensor(values, list_shape(values), tensor_type)
    except ServingError:
        # Reading all rows at once is faster, but does not tell which row is wrong.
        _explain(name, values, tensor_type, named)
        raise


def _explain(name: str, values: list[object], tensor_type: TensorType | None, named: bool) -> None:
    """Raises the error of the first wrong row; returns if no single row is wrong."""
    expected = list_shape(values[0])
    other = next((index for index, value in enumerate(values) if list_shape(value) != expected), len(values))
    index = _first_unreadable(values[:other], expected, tensor_type)
    if index == len(values):
        return
    where = f"Failed to process element: {index}{f' key: {name}' if named else ''} of 'instances' list. Error:"
    shape = list_shape(values[index])
    try:
        array = read_tensor(values[index], shape, tensor_type)
    except ServingError as error:
        raise invalid_argument(f"{where} {error.code.name}: {error.message}") from None
    size = int(np.prod(expected, dtype=np.int64))
    if array.size != size:
        raise invalid_argument(f"{where} INVALID_ARGUMENT: Expecting tensor size: {size} but got: {array.size}")
    if shape != expected:
        raise invalid_argument(
            f"{where} INVALID_ARGUMENT: Expecting shape {_shape_text(expected)} but got: {_shape_text(shape)}"
        )


def _first_unreadable(values: list[object], shape: tuple[int, ...], tensor_type: TensorType | None) -> int:
    """Returns the index of the first row that cannot be read, or the number of rows; bisects, as there may be many."""
    good, bad = 0, len(values) + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            read_tensor(values[good:middle], (middle - good, *shape), tensor_type)
        except ServingError:
            bad = middle
        else:
            good = middle
    return good


def _read_columns(values: Any, inputs: InputTypes) -> dict[str, np.ndarray]:
    if not _is_named(values):
        if len(inputs) > 1:
            raise invalid_argument(
                "inputs is a plain value/list, but expecting an object as multiple input tensors required as per "
                "tensorinfo_map"
            )
        name = next(iter(inputs))
        return {name: read_tensor(values, list_shape(values), inputs[name])}
    arrays = {}
    for name, tensor_type in inputs.items():
        if name not in values:
            raise invalid_argument(f"Missing named input: {name} in 'inputs' object.")
        arrays[name] = read_tensor(values[name], list_shape(values[name]), tensor_type)
    return arrays


def list_shape(value: object) -> tuple[int, ...]:
    """Returns the shape of nested lists, as their first members show it."""
    shape = []
    while isinstance(value, list):
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(shape)


def read_tensor(value: Any, shape: tuple[int, ...], tensor_type: TensorType | None) -> np.ndarray:
    """Returns the array of nested lists; raises ServingError if they have another shape, or values of another type."""
    if tensor_type is None or tensor_type.numpy.kind in "cV":
        name = tensor_type.name if tensor_type else "that of the input"
        raise ServingError(grpc.StatusCode.UNIMPLEMENTED, f"Conversion of JSON Value: {shown(value)} to type: {name}")
    flat = [value]
    for level, size in enumerate(shape):
        for item in flat:
            if not isinstance(item, list):
                raise invalid_argument(
                    f"JSON Value: {shown(item)} found at incorrect level: {level + 1} in the JSON DOM. "
                    f"Expected at level: {len(shape)}"
                )
            if len(item) != size:
                raise invalid_argument(
                    f"Encountered list at unexpected size: {len(item)} at level: {level} expected size: {size}"
                )
        flat = list(chain.from_iterable(flat))
    values = _read_values(flat, len(shape), tensor_type)
    try:
        array: np.ndarray = values.reshape(shape)
    except ValueError as error:
        raise invalid_argument(f"JSON Value of {len(shape)} levels cannot be stored: {error}") from None
    return array


def _read_values(flat: list[Any], rank: int, tensor_type: TensorType) -> np.ndarray:
    kinds = set(map(type, flat))
    if list in kinds:
        raise invalid_argument(f"Encountered list at unexpected level: {rank} expected < {rank}")
    if tensor_type is STRING:
        return _read_strings(flat, kinds)
    kind = tensor_type.numpy.kind
    by_kind: dict[str, set[type]] = {"f": {int, float, type(None)}, "b": {bool}}
    allowed = by_kind.get(kind, {int})
    if not kinds <= allowed:
        raise _type_error(next(value for value in flat if type(value) not in allowed), tensor_type)
    if kind == "f":
        return _read_floats(flat, int in kinds, tensor_type)
    if kind in "iu":
        limits = np.iinfo(tensor_type.numpy)
        for value in flat:
            if not limits.min <= value <= limits.max:
                raise _type_error(value, tensor_type)
    read: np.ndarray = np.array(flat, tensor_type.numpy)
    return read


def _read_floats(flat: list[Any], has_integers: bool, tensor_type: TensorType) -> np.ndarray:
    try:
        wide = np.array(flat, np.float64)  # None becomes NaN
    except OverflowError:
        raise _lossy(max(filter(None, flat), key=abs), tensor_type) from None
    if has_integers:
        retained = _INTEGERS_KEPT[tensor_type.name]
        for value in flat:
            if type(value) is int and abs(value) >= retained:
                raise _lossy(value, tensor_type)
    with np.errstate(over="ignore"):
        floats: np.ndarray = wide.astype(tensor_type.numpy)
    # Rounded, as the shortest text of the largest float32, 3.4028235e+38, is above it as a double.
    too_large = np.isfinite(wide) & ~np.isfinite(floats)
    if too_large.any():
        raise _lossy(flat[int(np.argmax(too_large))], tensor_type)
    return floats


def _read_strings(flat: list[Any], kinds: set[type]) -> np.ndarray:
    array: np.ndarray = np.empty(len(flat), object)
    if kinds <= {str}:
        array[:] = [value.encode() for value in flat]
        return array
    for index, value in enumerate(flat):
        if isinstance(value, str):
            array[index] = value.encode()
        elif isinstance(value, dict):
            array[index] = base64_bytes(value)
        elif value is None:
            array[index] = b""
        else:
            raise _type_error(value, STRING)
    return array


def _is_named(value: object) -> bool:
    return isinstance(value, dict) and not is_base64(value)


def _type_error(value: object, tensor_type: TensorType) -> ServingError:
    return invalid_argument(
        f"JSON Value: {shown(value)} Type: {type_name(value)} is not of expected type: {tensor_type.name}"
        + (f". No {tensor_type.name} can be missing: only floats and texts can" if value is None else "")
    )


def _lossy(value: object, tensor_type: TensorType) -> ServingError:
    return invalid_argument(
        f"Cannot convert JSON value: {shown(value)} to {tensor_type.name} without loss of precision."
    )


def _shape_text(shape: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"
