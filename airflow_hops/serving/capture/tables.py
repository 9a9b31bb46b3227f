"""Captured requests sorted into tables, each one file's: those of one layout together, the others one by one."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import Method, PredictRequest, PredictResponse
from airflow_hops.core.serving_api.tensors import TensorError, TensorType
from airflow_hops.serving.capture.columns import Calls, Column, RowGroup, Tensor
from airflow_hops.serving.capture.examples import read_inferences
from airflow_hops.serving.capture.options import CaptureMode
from airflow_hops.serving.capture.record import AlikeCalls, CapturedCall, unpack
from airflow_hops.serving.layouts import REQUEST_TENSORS, RESPONSE_TENSORS, find_tensors, same_but

log = logging.getLogger(__name__)

_DEFAULT_SIGNATURE = "serving_default"
# Rows of no bytes, as of the shape [10**9, 0], cost a client nothing, and a file all the more.
_MOST_ROWS = 2**24
_FEWEST_ALIKE = 16
_MOST_LAYOUTS = 16


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

    def add_records(self, records: Sequence[tuple[int, bytes]]) -> dict[str, int]:
        """Adds requests of one likeness: layout by layout as long as several share one, and the others one by one.

        Args:
            records: Each with where it stands among all of its batch.

        Returns:
            Rows by model that could not be decoded.
        """
        left: np.ndarray = np.arange(len(records))
        alone = []
        if len(records) >= _FEWEST_ALIKE:
            calls = AlikeCalls.of([record for _, record in records])
            order: np.ndarray = np.array([number for number, _ in records])
            for _ in range(_MOST_LAYOUTS):
                if len(left) < _FEWEST_ALIKE:
                    break
                taken = self.add_alike(calls, order, left)
                alone += [] if taken[0] else [left[0]]
                left = left[1:][~taken[1:]]
        failed: dict[str, int] = {}
        for index in sorted([*alone, *left]):
            number, record = records[index]
            call = unpack(record)
            try:
                self.add(call, number)
            except Exception as error:
                if call.model not in failed:
                    what = "request %r of model %s is no row, as others after it may be: %s"
                    log.error(f"capture: {what}", call.request_id, call.model, error)
                failed[call.model] = failed.get(call.model, 0) + call.rows
        return failed

    def add(self, call: CapturedCall, order: int = 0) -> None:
        """Decodes a request and its answer, as far as they are captured.

        Args:
            call: The request.
            order: Where it stands among all of its batch.

        Raises:
            ValueError: They do not hold what they should.
        """
        for signature, rows, found in _decode(call, self._mode):
            if rows > _MOST_ROWS:
                raise ValueError(f"{rows} rows in one request; expected {_MOST_ROWS} at most")
            # All values before any column takes one: a request that cannot be decoded must not cost others their rows.
            values = {tensor.column: tensor.values(tensor.inner(rows), rows) for tensor in found}
            calls = Calls([order], rows, call.api, [call.request_id], [call.at_us], [call.latency_ms], values)
            self._put(call, signature, found, calls)

    def add_alike(self, calls: AlikeCalls, order: np.ndarray, left: np.ndarray) -> np.ndarray:
        """Decodes those of some Predict requests at once that have their values where the first of them has.

        Args:
            calls: Requests.
            order: Where each of them stands among all of its batch.
            left: ``[left]``: indexes of those that are meant.

        Returns:
            ``[left]``, bool: which were taken.
        """
        sample = calls.sample(int(left[0]))
        none: np.ndarray = np.zeros(len(left), bool)
        if sample.method is not Method.PREDICT or sample.rows > _MOST_ROWS:
            return none
        try:
            ((signature, rows, found),) = _decode(sample, self._mode)
            places = [
                find_tensors(message, number, _types_of(found, kind))
                for kind, message, number in (
                    ("input.", sample.request if self._mode != "predictions" else b"", REQUEST_TENSORS),
                    ("output.", sample.response if self._mode != "inputs" else b"", RESPONSE_TENSORS),
                )
            ]
            if any(math.prod(tensor.shape) != rows * math.prod(tensor.inner(rows)) for tensor in found):
                return none
        except (ValueError, DecodeError):
            return none
        alike: np.ndarray = np.ones(len(left), bool)
        for message, in_message, matrix in zip((sample.request, sample.response), places, calls.messages, strict=True):
            mask = same_but(message, in_message)
            looked_at = np.flatnonzero(mask)
            expected = np.frombuffer(message, np.uint8)[looked_at] & mask[looked_at]
            alike &= ((matrix[np.ix_(left, looked_at)] & mask[looked_at]) == expected).all(axis=1)
        taken = calls.take(left[alike])
        values: dict[str, list[Any] | np.ndarray] = {
            f"{kind}{alias}": place.values(matrix)
            for kind, in_message, matrix in zip(("input.", "output."), places, taken.messages, strict=True)
            for alias, place in in_message.items()
        }
        in_order = order[left[alike]].tolist()
        decoded = Calls(in_order, rows, sample.api, taken.request_ids, taken.at_us, taken.latency_ms, values)
        self._put(sample, signature, found, decoded)
        return alike

    def _put(self, like: CapturedCall, signature: str, found: Sequence[Tensor], calls: Calls) -> None:
        types = [(tensor.column, tensor.type.number, len(tensor.inner(calls.rows))) for tensor in found]
        key = (like.model, like.version, signature, like.shadow, *types)
        start, end = 0, len(calls.order)
        while start < end:
            group = self._open.get(key)
            if group is None:
                columns = {tensor.column: Column(tensor.type) for tensor in found}
                group = self._open[key] = RowGroup(like.model, like.version, signature, like.shadow, columns)
                self.groups.append(group)
            room = end - start
            if calls.rows:
                room = min(room, -(-(self._roll_rows - group.total_rows) // calls.rows))
            whole = room == len(calls.order)
            group.add(calls if whole else calls.part(start, start + room), found)
            start += room
            if group.total_rows >= self._roll_rows:
                del self._open[key]


def _types_of(found: Sequence[Tensor], kind: str) -> dict[str, tuple[TensorType, int]]:
    return {
        tensor.column.removeprefix(kind): (tensor.type, math.prod(tensor.shape))
        for tensor in found
        if tensor.column.startswith(kind)
    }


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
    found = []
    for alias in sorted(protos):
        proto = protos[alias]
        tensor_type = tensors.BY_NUMBER.get(proto.dtype)
        if tensor_type is None:
            raise TensorError(f"{kind} {alias!r}: dtype number {proto.dtype} is not supported")
        shape = tuple([dim.size for dim in proto.tensor_shape.dim])
        found.append(Tensor(f"{kind}.{alias}", tensor_type, shape, proto))
    return found


def _arrays(kind: str, arrays: Mapping[str, np.ndarray]) -> list[Tensor]:
    return [
        Tensor(f"{kind}.{name}", tensors.type_of(arrays[name]), arrays[name].shape, None, arrays[name])
        for name in sorted(arrays)
    ]
