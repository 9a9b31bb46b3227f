"""Converts Arrow columns of a split to the arrays that TensorFlow takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput

if TYPE_CHECKING:
    import tensorflow as tf

_STRING_OVERHEAD_BYTES = 24


@dataclass(frozen=True)
class SplitColumnType:
    """The type of a column, the same in all files of a split.

    Attributes:
        arrow: Type of a value: a number, a bool, or binary.
        width: Values per row, if all rows have the same number; None for one value per row.
        is_ragged: Whether the number of values differs between rows.
    """

    arrow: pa.DataType
    width: int | None = None
    is_ragged: bool = False

    @property
    def dtype(self) -> str:
        """Name of a value's type in NumPy and TensorFlow, such as ``float32``, or ``string``."""
        return "string" if pa.types.is_binary(self.arrow) else np.dtype(self.arrow.to_pandas_dtype()).name

    @property
    def tensors(self) -> list[tf.TensorSpec]:
        """Specifications of a batch's tensors: values and row splits if rows are ragged, else one tensor."""
        import tensorflow as tf

        if self.is_ragged:
            return [tf.TensorSpec([None], self.dtype), tf.TensorSpec([None], tf.int64)]
        return [tf.TensorSpec([None] if self.width is None else [None, self.width], self.dtype)]

    def row_bytes(self, values_per_row: float, bytes_per_value: float) -> float:
        """Returns the estimated memory of a decoded row.

        Args:
            values_per_row: Mean length of a row's list; 1 for plain columns.
            bytes_per_value: Mean length of a string; ignored for numbers.
        """
        if self.dtype == "string":
            return values_per_row * (bytes_per_value + _STRING_OVERHEAD_BYTES)
        return values_per_row * np.dtype(self.dtype).itemsize + (8 if self.is_ragged else 0)

    def __str__(self) -> str:
        value = self.dtype
        return f"list of {value}" if self.is_ragged else value if self.width is None else f"{self.width} x {value}"


def arrow_type(dtype: str) -> pa.DataType:
    """Returns the Arrow type of values of a type in NumPy, or ``string``, which holds bytes."""
    return pa.binary() if dtype == "string" else pa.from_numpy_dtype(dtype)


def column_type(arrow: pa.DataType, where: str, *, width: int | None = None) -> SplitColumnType:
    """Returns the type of an Arrow column.

    Args:
        arrow: Its type in the file.
        where: File and column, for the error.
        width: Expected number of values per row of a variable-length list; None for any number (ragged).

    Raises:
        BadInput: TensorFlow has no such type.
    """
    if pa.types.is_fixed_size_list(arrow):
        return SplitColumnType(_value_type(arrow.value_type, where), width=arrow.list_size)
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return SplitColumnType(_value_type(arrow.value_type, where), width=width, is_ragged=width is None)
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


def to_arrays(column: pa.ChunkedArray, kind: SplitColumnType, where: str, *, fill: object = None) -> list[np.ndarray]:
    """Returns the arrays of a column: values and row splits if rows are ragged, else one array.

    Args:
        column: Rows of a window.
        kind: Type of the column.
        where: Split and column, for the error.
        fill: Replacement of missing values; None if there must not be any.

    Raises:
        BadInput: a value is missing without a replacement, or a row has another width.
    """
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # combine_chunks of pyarrow 10 keeps the wrapper for some types
        array = pa.concat_arrays(array.chunks)
    if kind.width is None and not kind.is_ragged:
        return [_filled(array, kind, fill, where).to_numpy(zero_copy_only=False)]
    if array.null_count:
        raise BadInput(f"{where} has {array.null_count} missing lists; use an empty list for a missing value")
    flat = _filled(array.flatten(), kind, fill, where).to_numpy(zero_copy_only=False)
    if kind.is_ragged:
        offsets = np.asarray(array.offsets.to_numpy(), np.int64)
        return [flat, offsets - offsets[0]]
    if not pa.types.is_fixed_size_list(array.type):
        lengths = np.diff(array.offsets.to_numpy())
        if (lengths != kind.width).any():
            raise BadInput(
                f"{where} is a list of {lengths.min()} to {lengths.max()} values; expected {kind.width} in each row"
            )
    return [flat.reshape(len(array), kind.width)]


def take(arrays: Sequence[np.ndarray], kind: SplitColumnType, rows: np.ndarray | slice) -> list[np.ndarray]:
    """Returns ``rows`` (numbers or a slice) of a column's :func:`to_arrays`, as arrays of the same kind."""
    if not kind.is_ragged:
        return [arrays[0][rows]]
    first, splits = arrays
    if isinstance(rows, slice):
        splits = splits[rows.start : rows.stop + 1]
        return [first[splits[0] : splits[-1]], splits - splits[0]]
    starts, lengths = splits[:-1][rows], np.diff(splits)[rows]
    taken = np.concatenate([[0], np.cumsum(lengths)])
    return [first[np.repeat(starts - taken[:-1], lengths) + np.arange(taken[-1])], taken]


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


def _filled(array: pa.Array, kind: SplitColumnType, fill: object, where: str) -> pa.Array:
    if _is_text(array.type):
        array = array.cast(pa.binary())
    if not array.null_count:
        return array
    if fill is None:
        raise BadInput(
            f"{where} has {array.null_count} missing values; a transform leaves none, and for other files, set "
            "their replacement in fill_values"
        )
    try:
        value = pa.scalar(fill.encode() if isinstance(fill, str) else fill, kind.arrow)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise BadInput(f"{where}: fill_values has {fill!r}, which is not of type {kind.dtype} ({error})") from None
    return pc.fill_null(array, value)


def _is_text(result: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(result)
        or pa.types.is_large_string(result)
        or pa.types.is_binary(result)
        or pa.types.is_large_binary(result)
        or pa.types.is_fixed_size_binary(result)
    )
