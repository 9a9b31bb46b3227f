"""Reads inputs of an estimator from the ``tf.Example`` messages of Classify, Regress and MultiInference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from airflow_hops.core.serving_api.protocol import Example
from airflow_hops.core.serving_api.tensors import TensorType
from airflow_hops.serving.models.estimator_signature import EstimatorInputs

# NumPy kind of the column to allowed lists: floats may be written as integers, and booleans are 0 or 1.
_LISTS = {
    "f": ("float_list", "int64_list"),
    "i": ("int64_list",),
    "u": ("int64_list",),
    "b": ("int64_list",),
    "O": ("bytes_list",),
}


def read_columns(serialized: Sequence[bytes], inputs: EstimatorInputs) -> dict[str, np.ndarray]:
    """Reads one feature for each input; other features are ignored.

    Args:
        serialized: The examples, ``[rows]``.
        inputs: Inputs of the estimator. A column is a feature with one value, and a vector is a feature with one value
            for each element; if they hold floats, they may be missing, and are then NaN. A matrix is the feature
            ``inputs``, with one value for each of its columns.

    Returns:
        Name to array, ``[rows]`` or ``[rows, width]``.

    Raises:
        ValueError: An example cannot be parsed, lacks a feature, or has a feature of the wrong type or length.
    """
    try:
        examples = [Example.FromString(each).features.feature for each in serialized]
    except DecodeError as error:
        raise ValueError(f"could not parse example input: {error}") from None
    columns = {}
    for name, tensor_type in inputs.columns.items():
        width, is_matrix = inputs.width_of(name), inputs.width is not None
        rows = [
            _values(features, name, tensor_type, width or 1, f"example {number}", may_be_missing=not is_matrix)
            for number, features in enumerate(examples)
        ]
        array = _as_array(rows, name, tensor_type)
        columns[name] = array[:, 0] if width is None else array
    return columns


def _values(
    features: Any, name: str, tensor_type: TensorType, width: int, where: str, *, may_be_missing: bool
) -> Sequence[Any]:
    kind = features[name].WhichOneof("kind") if name in features else None
    result = getattr(features[name], kind).value if kind else ()
    if not result and may_be_missing and tensor_type.numpy.kind == "f":
        return [np.nan] * width
    lists = _LISTS.get(tensor_type.numpy.kind, ())
    if result and kind not in lists:
        raise ValueError(f"{where}: feature {name!r} is a {kind}; expected {' or '.join(lists) or tensor_type.name}")
    if len(result) != width:
        raise ValueError(f"{where}: feature {name!r} has {len(result)} values; expected {width}")
    return list(result)


def _as_array(rows: list[Sequence[Any]], name: str, tensor_type: TensorType) -> np.ndarray:
    kind = tensor_type.numpy.kind
    if kind == "f":
        floats: np.ndarray = np.array(rows, tensor_type.numpy)
        return floats
    if kind == "O":
        texts: np.ndarray = np.empty((len(rows), len(rows[0])), object)
        texts[:] = rows
        return texts
    numbers: np.ndarray = np.array(rows, np.int64)
    array: np.ndarray = numbers.astype(tensor_type.numpy)
    if not np.array_equal(array, numbers):
        raise ValueError(f"feature {name!r} holds {numbers[array != numbers][0]}, which is no {tensor_type.name}")
    return array
