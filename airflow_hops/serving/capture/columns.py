"""Captured requests as columns of an Arrow table.

A table holds rows of one model, one version, one signature and one type for each column. Requests whose messages are
laid out alike are decoded together (:mod:`~airflow_hops.serving.layouts`). Of the others, values are gathered
request by request as Python's own numbers, or whole arrays where a request has many, and become columns at the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.tensors import STRING, TensorError, TensorType

_ONE_EACH: tuple[tuple[int, ...], ...] = ((), (1,))
_FEW_VALUES = 64
_LARGEST_REPEATED_BYTES = 2**28
# Fields whose values are the numbers themselves.
_PLAIN_FIELDS = frozenset(
    {"float_val", "double_val", "int_val", "int64_val", "uint32_val", "uint64_val", "bool_val", "string_val"}
)


@dataclass(slots=True)
class Tensor:
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
        columns: Column by name.
        order: Where each request stood among all of its batch; rows are written in that order.
        rows: Rows of each request.
        total_rows: Rows of all requests.
    """

    model: str
    version: int
    signature: str
    shadow: bool
    columns: dict[str, Column]
    order: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    total_rows: int = 0
    _request_ids: list[str] = field(default_factory=list)
    _apis: list[str] = field(default_factory=list)
    _at_us: list[int] = field(default_factory=list)
    _latency_ms: list[float] = field(default_factory=list)

    def add(self, calls: Calls, found: Sequence[Tensor]) -> None:
        """Adds requests of the same number of rows each, and their values."""
        total_rows = len(calls.order) * calls.rows
        for tensor in found:
            self.columns[tensor.column].add(calls.values[tensor.column], tensor.inner(calls.rows), total_rows)
        self.order += calls.order
        self.rows += [calls.rows] * len(calls.order)
        self.total_rows += total_rows
        self._request_ids += calls.request_ids
        self._apis += [calls.api] * len(calls.order)
        self._at_us += calls.at_us
        self._latency_ms += calls.latency_ms

    def to_table(self) -> Any:
        """Returns one Arrow table with a row for each row of the requests."""
        import pyarrow as pa

        rows = np.array(self.rows)
        index = pa.array(np.repeat(np.arange(len(rows)), rows))
        starts: np.ndarray = np.repeat(np.cumsum(rows) - rows, rows)

        def repeated(values: list[Any], arrow_type: Any) -> Any:
            return pa.array(values, arrow_type).take(index)

        def constant(value: Any, arrow_type: Any) -> Any:
            return pa.repeat(pa.scalar(value, arrow_type), self.total_rows)

        columns = {
            "request_id": repeated(self._request_ids, pa.string()),
            "row": pa.array((np.arange(self.total_rows) - starts).astype(np.int32)),
            "model": constant(self.model, pa.string()),
            "version": constant(self.version, pa.int64()),
            "signature": constant(self.signature, pa.string()),
            "api": repeated(self._apis, pa.string()),
            "captured_at": repeated(self._at_us, pa.int64()).cast(pa.timestamp("us", "UTC")),
            "latency_ms": repeated(self._latency_ms, pa.float64()),
        }
        if self.shadow:
            columns["shadow"] = constant(True, pa.bool_())
        columns |= {name: column.to_arrow() for name, column in self.columns.items()}
        table = pa.table(columns)
        order: np.ndarray = np.repeat(self.order, rows)
        return table if np.all(order[:-1] <= order[1:]) else table.take(pa.array(np.argsort(order, kind="stable")))


@dataclass
class Calls:
    """Decoded requests of one signature and one number of rows.

    Attributes:
        order: Where each stands among all of its batch.
        rows: Rows of each.
        values: Values by column, request by request.
    """

    order: list[int]
    rows: int
    api: str
    request_ids: list[str]
    at_us: list[int]
    latency_ms: list[float]
    values: dict[str, list[Any] | np.ndarray]

    def part(self, start: int, end: int) -> Calls:
        """Returns some of them."""
        each = {name: len(values) // len(self.order) for name, values in self.values.items()}
        return Calls(
            self.order[start:end],
            self.rows,
            self.api,
            self.request_ids[start:end],
            self.at_us[start:end],
            self.latency_ms[start:end],
            {name: values[start * each[name] : end * each[name]] for name, values in self.values.items()},
        )


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
