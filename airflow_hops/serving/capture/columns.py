"""Captured requests as columns of Arrow tables.

A table holds rows of one model, one version, one signature and one type for each column. Values are gathered request by
request as Python's own numbers, or whole arrays where a request has many, and become columns at the end: what a small
request costs here is the protobuf library's part of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from airflow_hops.serving.capture.examples import read_inferences
from airflow_hops.serving.capture.options import CaptureMode
from airflow_hops.serving.capture.record import CapturedCall
from airflow_hops.serving_api import tensors
from airflow_hops.serving_api.protocol import Method, PredictRequest, PredictResponse
from airflow_hops.serving_api.tensors import STRING, TensorError, TensorType

_DEFAULT_SIGNATURE = "serving_default"
_ONE_EACH: tuple[tuple[int, ...], ...] = ((), (1,))
_FEW_VALUES = 64
_LARGEST_REPEATED_BYTES = 2**28
# Rows of no bytes, as of the shape [10**9, 0], cost a client nothing, and a file all the more.
_MOST_ROWS = 2**24
# Fields whose values are the numbers themselves.
_PLAIN_FIELDS = frozenset(
    {"float_val", "double_val", "int_val", "int64_val", "uint32_val", "uint64_val", "bool_val", "string_val"}
)


@dataclass(slots=True)
class _Tensor:
    """One input or output of a request, as it came."""

    column: str
    type: TensorType
    shape: tuple[int, ...]
    proto: Any
    array: np.ndarray | None = None

    def inner(self, rows: int) -> tuple[int, ...]:
        """Shape of one row's value: a tensor without a batch dimension belongs to every row."""
        inner = self.shape[1:] if self.shape and self.shape[0] == rows else self.shape
        return () if inner in _ONE_EACH else inner

    def values(self, inner: tuple[int, ...], rows: int) -> list[Any] | np.ndarray:
        """Returns the values of a request's rows, one after another: a list of few, else an array.

        Raises:
            TensorError: Shape and content disagree, or a value that belongs to every row is too large to repeat.
        """
        array = self.array
        if array is None:
            count = math.prod(self.shape)
            if self.type.field in _PLAIN_FIELDS and count <= _FEW_VALUES and not self.proto.tensor_content:
                few = getattr(self.proto, self.type.field)
                if len(few) == count == rows * math.prod(inner):
                    return list(few[:])
            array = tensors.from_proto(self.proto)
        if array.size != rows * math.prod(inner):
            if rows * array.nbytes > _LARGEST_REPEATED_BYTES:
                raise TensorError(f"{self.column}: {array.nbytes} bytes for each of {rows} rows are too many")
            array = np.broadcast_to(array, (rows, *array.shape))
        flat: np.ndarray = np.ascontiguousarray(array).reshape(-1)
        return flat


class Column:
    """One column, filled request by request.

    Args:
        tensor_type: Type of its values.
    """

    def __init__(self, tensor_type: TensorType) -> None:
        self._type = tensor_type
        self._few: list[Any] = []
        self._arrays: list[np.ndarray] = []
        self._inner: list[tuple[int, ...]] = []
        self._rows: list[int] = []

    def add(self, values: list[Any] | np.ndarray, inner: tuple[int, ...], rows: int) -> None:
        """Adds the values of a request's rows, each of a shape."""
        self._inner.append(inner)
        self._rows.append(rows)
        if isinstance(values, list):
            self._few += values
        else:
            self._gather()
            self._arrays.append(values)

    def to_arrow(self) -> Any:
        """Returns the column; nested lists where a row's value is no scalar."""
        import pyarrow as pa

        self._gather()
        values = np.concatenate(self._arrays) if len(self._arrays) != 1 else self._arrays[0]
        inner, rows = self._inner, self._rows
        if values.dtype.kind == "c":
            # Arrow knows no complex numbers: a list of the real and the imaginary part.
            values = values.view(values.real.dtype)
            inner = [(*shape, 2) for shape in inner]
        elif values.dtype.kind == "V" or values.dtype == np.float16:
            values = values.astype(np.float32)
        column = _flat(values)
        for axis in range(len(inner[0]) - 1, -1, -1):
            lists = [n * math.prod(shape[:axis]) for n, shape in zip(rows, inner, strict=True)]
            sizes: np.ndarray = np.repeat([shape[axis] for shape in inner], lists)
            offsets: np.ndarray = np.zeros(len(sizes) + 1, np.int32)
            np.cumsum(sizes, out=offsets[1:])
            column = pa.ListArray.from_arrays(pa.array(offsets), column)
        return column

    def _gather(self) -> None:
        """Makes an array of the values that came a few at a time."""
        if self._few or not self._arrays:
            few: np.ndarray = np.empty(len(self._few), self._type.numpy)
            few[:] = self._few
            self._arrays.append(few)
            self._few = []


@dataclass
class RowGroup:
    """Rows of one file.

    Attributes:
        model: Model name.
        version: The version that answered.
        signature: Signature name.
        shadow: Whether the answers were compared, and not returned.
        calls: The requests, in the order in which they were answered.
        rows: Rows of each request.
        columns: Column by name.
        total_rows: Rows of all requests.
    """

    model: str
    version: int
    signature: str
    shadow: bool
    columns: dict[str, Column]
    calls: list[CapturedCall] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    total_rows: int = 0

    def add(
        self,
        call: CapturedCall,
        rows: int,
        values: Mapping[str, list[Any] | np.ndarray],
        inner: Sequence[tuple[int, ...]],
    ) -> None:
        """Adds a request."""
        for (name, given), shape in zip(values.items(), inner, strict=True):
            self.columns[name].add(given, shape, rows)
        self.calls.append(call)
        self.rows.append(rows)
        self.total_rows += rows

    def to_table(self) -> Any:
        """Returns one Arrow table with a row for each row of the requests."""
        import pyarrow as pa

        calls, rows = self.calls, np.array(self.rows)
        index = pa.array(np.repeat(np.arange(len(calls)), rows))
        starts: np.ndarray = np.repeat(np.cumsum(rows) - rows, rows)

        def repeated(values: list[Any], arrow_type: Any) -> Any:
            return pa.array(values, arrow_type).take(index)

        def constant(value: Any, arrow_type: Any) -> Any:
            return pa.repeat(pa.scalar(value, arrow_type), self.total_rows)

        columns = {
            "request_id": repeated([call.request_id for call in calls], pa.string()),
            "row": pa.array((np.arange(self.total_rows) - starts).astype(np.int32)),
            "model": constant(self.model, pa.string()),
            "version": constant(self.version, pa.int64()),
            "signature": constant(self.signature, pa.string()),
            "api": repeated([call.api for call in calls], pa.string()),
            "captured_at": repeated([call.at_us for call in calls], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "latency_ms": repeated([call.latency_ms for call in calls], pa.float64()),
        }
        if self.shadow:
            columns["shadow"] = constant(True, pa.bool_())
        columns |= {name: column.to_arrow() for name, column in self.columns.items()}
        return pa.table(columns)


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
        for signature, rows, inputs, outputs in _decode(call, self._mode):
            if rows > _MOST_ROWS:
                raise ValueError(f"{rows} rows in one request; expected {_MOST_ROWS} at most")
            found = [*inputs, *outputs]
            inner = [tensor.inner(rows) for tensor in found]
            types = [(t.column, t.type.number, len(shape)) for t, shape in zip(found, inner, strict=True)]
            # All values before any column takes one: a request that cannot be decoded must not cost others their rows.
            values = {t.column: t.values(shape, rows) for t, shape in zip(found, inner, strict=True)}
            key = (call.model, call.version, signature, call.shadow, *types)
            group = self._open.get(key)
            if group is None:
                columns = {tensor.column: Column(tensor.type) for tensor in found}
                group = self._open[key] = RowGroup(call.model, call.version, signature, call.shadow, columns)
                self.groups.append(group)
            group.add(call, rows, values, inner)
            if group.total_rows >= self._roll_rows:
                del self._open[key]


def _decode(call: CapturedCall, mode: CaptureMode) -> list[tuple[str, int, list[_Tensor], list[_Tensor]]]:
    """Returns signature, rows, inputs and outputs; several where a request asked several signatures."""
    with_inputs, with_outputs = mode in ("inputs", "all"), mode in ("predictions", "all")
    if call.method is not Method.PREDICT:
        return [
            (
                inference.signature or _DEFAULT_SIGNATURE,
                inference.rows,
                _arrays("input", inference.inputs) if with_inputs else [],
                _arrays("output", inference.outputs) if with_outputs else [],
            )
            for inference in read_inferences(call)
        ]
    request = PredictRequest.FromString(call.request)
    response = PredictResponse.FromString(call.response)
    inputs = _tensors("input", request.inputs) if with_inputs else []
    outputs = _tensors("output", response.outputs) if with_outputs else []
    signature = response.model_spec.signature_name or request.model_spec.signature_name or _DEFAULT_SIGNATURE
    return [(signature, call.rows, inputs, outputs)]


def _tensors(kind: str, protos: Any) -> list[_Tensor]:
    found = []
    for alias in sorted(protos):
        proto = protos[alias]
        tensor_type = tensors.BY_NUMBER.get(proto.dtype)
        if tensor_type is None:
            raise TensorError(f"{kind} {alias!r}: dtype number {proto.dtype} is not supported")
        shape = tuple([dim.size for dim in proto.tensor_shape.dim])
        found.append(_Tensor(f"{kind}.{alias}", tensor_type, shape, proto))
    return found


def _arrays(kind: str, arrays: Mapping[str, np.ndarray]) -> list[_Tensor]:
    return [
        _Tensor(f"{kind}.{name}", tensors.type_of(arrays[name]), arrays[name].shape, None, arrays[name])
        for name in sorted(arrays)
    ]


def _flat(values: np.ndarray) -> Any:
    """Strings become UTF-8 text where all of them are valid UTF-8, else stay binary."""
    import pyarrow as pa

    if values.dtype != STRING.numpy:
        return pa.array(values)
    binary = pa.array(values.tolist(), pa.binary())
    try:
        return binary.cast(pa.string())
    except pa.ArrowInvalid:
        return binary
