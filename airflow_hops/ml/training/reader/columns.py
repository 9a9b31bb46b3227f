"""Converts Arrow columns of a split to the arrays that TensorFlow takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from airflow_hops.core.errors import BadInput

_STRING_OVERHEAD_BYTES = 24


@dataclass(frozen=True)
class SplitColumnType:
    """The type of a column, the same in all files of a split.

    Attributes:
        arrow: Type of a value: a number, a bool, or binary.
        width: Values per row, the same number in all rows; None for one value per row.
    """

    arrow: pa.DataType
    width: int | None = None

    @property
    def dtype(self) -> str:
        """Name of a value's type in NumPy and TensorFlow, such as ``float32``, or ``string``."""
        return "string" if pa.types.is_binary(self.arrow) else np.dtype(self.arrow.to_pandas_dtype()).name

    def row_bytes(self, bytes_per_value: float) -> float:
        """Returns the estimated memory of a decoded row, whose strings have this mean length."""
        value = bytes_per_value + _STRING_OVERHEAD_BYTES if self.dtype == "string" else np.dtype(self.dtype).itemsize
        return value * (self.width or 1)

    def __str__(self) -> str:
        return self.dtype if self.width is None else f"{self.width} x {self.dtype}"


def arrow_type(dtype: str) -> pa.DataType:
    """Returns the Arrow type of values of a type in NumPy, or ``string``, which holds bytes."""
    return pa.binary() if dtype == "string" else pa.from_numpy_dtype(dtype)


def column_type(arrow: pa.DataType, where: str, *, width: int | None = None) -> SplitColumnType:
    """Returns the type of an Arrow column.

    Args:
        arrow: Its type in the file.
        where: File and column, for the error.
        width: Number of values per row of a variable-length list; None if it is unknown.

    Raises:
        BadInput: TensorFlow has no such type, or a list has no known length.
    """
    if pa.types.is_fixed_size_list(arrow):
        return SplitColumnType(_value_type(arrow.value_type, where), width=arrow.list_size)
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        if width is None:
            raise BadInput(
                f"{where} is a {arrow}, and the length of its lists is unknown; write lists of one fixed size, or give "
                "columns with an OutputSpec that has their width"
            )
        return SplitColumnType(_value_type(arrow.value_type, where), width)
    return SplitColumnType(_value_type(arrow, where))


def _value_type(result: pa.DataType, where: str) -> pa.DataType:
    if pa.types.is_dictionary(result):
        result = result.value_type
    if _is_text(result):
        return pa.binary()
    if pa.types.is_integer(result) or pa.types.is_floating(result) or pa.types.is_boolean(result):
        return result
    raise BadInput(
        f"{where} is of type {result}, which TensorFlow tensors do not support; cast it to a number or a string "
        "beforehand"
    )


def to_array(column: pa.ChunkedArray, kind: SplitColumnType, where: str) -> np.ndarray:
    """Returns the values of a column's rows: ``[rows]``, or ``[rows, width]``.

    Args:
        column: Rows of a window.
        kind: Type of the column.
        where: Split and column, for the error.

    Raises:
        BadInput: a value is missing, or a row has another width.
    """
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # PyArrow 10.0: combine_chunks keeps the wrapper for some types
        array = pa.concat_arrays(array.chunks)
    if kind.width is None:
        return _plain(array, where)
    if array.null_count:
        raise BadInput(f"{where} has {array.null_count} missing lists; fill them in prepare()")
    flat = _plain(array.flatten(), where)
    if not pa.types.is_fixed_size_list(array.type):
        lengths = np.diff(array.offsets.to_numpy())
        if (lengths != kind.width).any():
            raise BadInput(
                f"{where} is a list of {lengths.min()} to {lengths.max()} values; expected {kind.width} in each row"
            )
    return flat.reshape(len(array), kind.width)


def plain_types(table: pa.Table, kinds: Mapping[str, SplitColumnType]) -> pa.Table:
    """Casts columns of one kind to the same type, so that tables of several files can be concatenated."""
    columns = []
    for name, kind in kinds.items():
        column = table.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if _is_text(column.type) and column.type != kind.arrow:
            column = column.cast(kind.arrow)
        columns.append(column)
    return pa.table(columns, names=list(kinds))


def _plain(array: pa.Array, where: str) -> np.ndarray:
    if array.null_count:
        raise BadInput(
            f"{where} has {array.null_count} missing values; a transform leaves none, and other files are filled in "
            "prepare()"
        )
    values: np.ndarray = (array.cast(pa.binary()) if _is_text(array.type) else array).to_numpy(zero_copy_only=False)
    return values


def _is_text(result: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(result)
        or pa.types.is_large_string(result)
        or pa.types.is_binary(result)
        or pa.types.is_large_binary(result)
        or pa.types.is_fixed_size_binary(result)
    )
