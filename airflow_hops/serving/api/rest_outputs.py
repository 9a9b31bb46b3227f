"""JSON bodies of answers to predict requests."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from airflow_hops.core.serving_api.tensors import type_of
from airflow_hops.serving.api.rest_tensors import Format
from airflow_hops.serving.errors import invalid_argument


def write_outputs(outputs: Mapping[str, np.ndarray], body_format: Format) -> bytes:
    """Returns the body of an answer: ``predictions`` for rows, ``outputs`` for columns.

    Raises:
        ServingError: The outputs have no common batch dimension, as rows need.
    """
    columns = {name: _plain(name, array) for name, array in outputs.items()}
    single = next(iter(columns.values())) if len(columns) == 1 else None
    if body_format == "columnar":
        return _dump({"outputs": columns if single is None else single}, columns)
    rows: int | None = None
    for name, array in outputs.items():
        if not array.ndim:
            raise invalid_argument(f"Tensor name: {name} has no shape information ")
        if rows is not None and len(array) != rows:
            raise invalid_argument(f"Tensor name: {name} has inconsistent batch size: {len(array)} expecting: {rows}")
        rows = len(array)
    if single is not None:
        return _dump({"predictions": single}, columns)
    names = list(columns)
    return _dump(
        {"predictions": [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]},
        columns,
    )


def _plain(name: str, array: np.ndarray) -> Any:
    """Returns a tensor for orjson: arrays as they are, strings as text or base64, NaN as Python floats."""
    if array.dtype.kind in "cV":
        raise invalid_argument(f"Failed to write JSON value for tensor type: {type_of(array).name}")
    if array.dtype == object:
        encode = _as_base64 if name.endswith("_bytes") else _as_text
        values: np.ndarray = np.empty(array.size, object)
        values[:] = [encode(value) for value in array.ravel().tolist()]
        return values.reshape(array.shape).tolist()
    if array.dtype.kind == "f":
        if array.dtype.itemsize == 2:
            array = array.astype(np.float32)
        if not np.isfinite(array).all():
            return _shortest(array)
    # A scalar stays NumPy's: orjson writes a float32 in its shortest form, a Python float with the digits of a double.
    return np.ascontiguousarray(array) if array.ndim else array[()]


def _shortest(array: np.ndarray | np.generic) -> Any:
    """Returns Python floats, or lists of them, whose text is as short as NumPy's."""
    values = np.array([float(str(value)) for value in array.ravel()])
    return values.reshape(array.shape).tolist()


def _as_text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _as_base64(value: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(value).decode("ascii")}


def _dump(document: Any, columns: Mapping[str, Any]) -> bytes:
    if any(map(_has_non_finite, columns.values())):  # for which orjson would write null
        return json.dumps(document, default=_jsonable).encode()
    encoded: bytes = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY, default=_jsonable)
    return encoded


def _has_non_finite(column: Any) -> bool:
    """Whether a column is what :func:`_shortest` returns: other columns hold no Python floats."""
    while isinstance(column, list) and column:
        column = column[0]
    return type(column) is float


def _jsonable(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return _shortest(value) if value.dtype.kind == "f" else value.tolist()
    raise TypeError(f"{type(value).__name__} has no JSON form")
