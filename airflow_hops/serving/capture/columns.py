"""Captured requests as columns of an Arrow table.

A table holds rows of one model, one version, one signature and one type for each column.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.tensors import STRING, TensorError, TensorType
from airflow_hops.serving.capture.record import CapturedCall

_ONE_EACH: tuple[tuple[int, ...], ...] = ((), (1,))
_LARGEST_REPEATED_BYTES = 2**28


@dataclass(slots=True)
class Tensor:
    """One input or output of a request, as it came: a message, or an array."""

    column: str
    type: TensorType
    shape: tuple[int, ...]
    proto: Any
    array: np.ndarray | None = None

    def inner(self, rows: int) -> tuple[int, ...]:
        """Shape of one row's value: a tensor without a batch dimension belongs to every row."""
        inner = self.shape[1:] if self.shape and self.shape[0] == rows else self.shape
        return () if inner in _ONE_EACH else inner

    def values(self, rows: int) -> np.ndarray:
        """Returns the values of a request's rows, one after another.

        Raises:
            TensorError: Shape and content disagree, or a value that belongs to every row is too large to repeat.
        """
        array = tensors.from_proto(self.proto) if self.array is None else self.array
        if array.size != rows * math.prod(self.inner(rows)):
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
        self._arrays: list[np.ndarray] = [np.empty(0, tensor_type.numpy)]
        self._inner: list[tuple[int, ...]] = []
        self._rows: list[int] = []

    def add(self, values: np.ndarray, inner: tuple[int, ...], rows: int) -> None:
        """Adds the values of a request's rows, each of a shape."""
        self._inner.append(inner)
        self._rows.append(rows)
        self._arrays.append(values)

    def to_arrow(self) -> Any:
        """Returns the column; nested lists where a row's value is no scalar."""
        import pyarrow as pa

        values = np.concatenate(self._arrays)
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


@dataclass
class RowGroup:
    """Rows of one file.

    Attributes:
        model: Model name.
        version: The version that answered.
        signature: Signature name.
        shadow: Whether the answers were compared, and not returned.
        columns: Column by name.
        calls: Requests, in order.
        rows: Rows of each request.
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
            "request_id": repeated([call.request_id for call in self.calls], pa.string()),
            "row": pa.array((np.arange(self.total_rows) - starts).astype(np.int32)),
            "model": constant(self.model, pa.string()),
            "version": constant(self.version, pa.int64()),
            "signature": constant(self.signature, pa.string()),
            "api": repeated([call.api for call in self.calls], pa.string()),
            "captured_at": repeated([call.at_us for call in self.calls], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "latency_ms": repeated([call.latency_ms for call in self.calls], pa.float64()),
        }
        if self.shadow:
            columns["shadow"] = constant(True, pa.bool_())
        return pa.table(columns | {name: column.to_arrow() for name, column in self.columns.items()})


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
