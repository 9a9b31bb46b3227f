"""Captured requests sorted into tables, each one file's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import Method, PredictRequest, PredictResponse
from airflow_hops.core.serving_api.tensors import TensorError
from airflow_hops.serving.capture.columns import Column, RowGroup, Tensor
from airflow_hops.serving.capture.examples import read_inferences
from airflow_hops.serving.capture.options import CaptureMode
from airflow_hops.serving.capture.record import CapturedCall

_DEFAULT_SIGNATURE = "serving_default"
# Rows of no bytes, as of the shape [10**9, 0], cost a client nothing, and a file all the more.
_MOST_ROWS = 2**24


class CallTables:
    """Sorts requests into groups of rows, each one file's.

    Args:
        mode: Which of the columns ``input.*`` and ``output.*`` there are.
        roll_rows: Rows after which a group takes no more.
    """

    def __init__(self, mode: CaptureMode = "all", roll_rows: int = 100_000) -> None:
        self.groups: list[RowGroup] = []
        self._mode, self._roll_rows = mode, roll_rows
        self._open: dict[tuple[Any, ...], RowGroup] = {}

    def add(self, call: CapturedCall) -> None:
        """Decodes a request and its answer, as far as they are captured.

        Raises:
            ValueError: They do not hold what they should.
        """
        for signature, rows, decoded in _decode(call, self._mode):
            if rows > _MOST_ROWS:
                raise ValueError(f"{rows} rows in one request; expected {_MOST_ROWS} at most")
            # All values before any column takes one: a request that cannot be decoded must not cost others their rows.
            values = [tensor.values(rows) for tensor in decoded]
            types = [(tensor.column, tensor.type.number, len(tensor.inner(rows))) for tensor in decoded]
            key = (call.model, call.version, signature, call.shadow, *types)
            group = self._open.get(key)
            if group is None:
                columns = {tensor.column: Column(tensor.type) for tensor in decoded}
                group = self._open[key] = RowGroup(call.model, call.version, signature, call.shadow, columns)
                self.groups.append(group)
            for tensor, each in zip(decoded, values, strict=True):
                group.columns[tensor.column].add(each, tensor.inner(rows), rows)
            group.calls.append(call)
            group.rows.append(rows)
            group.total_rows += rows
            if group.total_rows >= self._roll_rows:
                del self._open[key]


def _decode(call: CapturedCall, mode: CaptureMode) -> list[tuple[str, int, list[Tensor]]]:
    """Returns signature, rows, and inputs and outputs; several where a request asked several signatures."""
    with_inputs, with_outputs = mode in ("inputs", "all"), mode in ("predictions", "all")
    if call.method is not Method.PREDICT:
        return [
            (
                inference.signature or _DEFAULT_SIGNATURE,
                inference.rows,
                [
                    *(_arrays("input", inference.inputs) if with_inputs else []),
                    *(_arrays("output", inference.outputs) if with_outputs else []),
                ],
            )
            for inference in read_inferences(call)
        ]
    request = PredictRequest.FromString(call.request)
    response = PredictResponse.FromString(call.response)
    inputs = _tensors("input", request.inputs) if with_inputs else []
    outputs = _tensors("output", response.outputs) if with_outputs else []
    signature = response.model_spec.signature_name or request.model_spec.signature_name or _DEFAULT_SIGNATURE
    return [(signature, call.rows, [*inputs, *outputs])]


def _tensors(kind: str, protos: Any) -> list[Tensor]:
    results = []
    for alias in sorted(protos):
        proto = protos[alias]
        tensor_type = tensors.BY_NUMBER.get(proto.dtype)
        if tensor_type is None:
            raise TensorError(f"{kind} {alias!r}: dtype number {proto.dtype} is not supported")
        shape = tuple([dim.size for dim in proto.tensor_shape.dim])
        results.append(Tensor(f"{kind}.{alias}", tensor_type, shape, proto))
    return results


def _arrays(kind: str, arrays: Mapping[str, np.ndarray]) -> list[Tensor]:
    return [
        Tensor(f"{kind}.{name}", tensors.type_of(arrays[name]), arrays[name].shape, None, arrays[name])
        for name in sorted(arrays)
    ]
