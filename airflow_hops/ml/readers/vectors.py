"""Vectors: features with lists of the same number of values in every row, such as embeddings.

The dtype ``float32[16]`` is a vector of 16 numbers, a tensor of shape ``[batch, 16]``. In Parquet it is a list of
floats, because a missing fixed-size list of Arrow cannot be written.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.contract.artifacts import BadInput


def split_dtype(dtype: str) -> tuple[str, int | None]:
    """The dtype of single values, and how many of them a row has: ``("float32", 16)`` of ``float32[16]``.

    The second is None for a feature of one value a row.
    """
    values, bracket, width = dtype.partition("[")
    return values, int(width.removesuffix("]")) if bracket else None


def row_shape(dtype: str) -> tuple[int, ...]:
    """The shape of a row's value: ``()``, or ``(width,)`` of a vector."""
    width = split_dtype(dtype)[1]
    return () if width is None else (width,)


def is_list(kind: pa.DataType) -> bool:
    """Whether a column holds lists, of whatever kind."""
    kinds = pa.types
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def plain_lists(array: pa.Array) -> pa.Array:
    """Lists of a fixed size, or of large offsets, as lists of any length, which can be missing in Parquet.

    Half floats become floats.
    """
    values = array.flatten()
    if pa.types.is_float16(values.type):
        missing = np.asarray(values.is_null())
        values = pa.array(values.to_numpy(zero_copy_only=False).astype(np.float32), mask=missing)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
    lacking = np.append(np.asarray(array.is_null()), False) if array.null_count else None
    offsets = pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32), mask=lacking)
    return pa.ListArray.from_arrays(offsets, values)


def finite_vectors(array: pa.Array) -> pa.Array:
    """Lists of floats, those being null that hold a null, NaN or an infinity."""
    array = plain_lists(array)
    values = np.asarray(array.values.to_numpy(zero_copy_only=False))
    offsets = np.asarray(array.offsets)
    bad = np.append(0, np.cumsum(~np.isfinite(values)))
    lacking = np.asarray(array.is_null()) | (bad[offsets[1:]] > bad[offsets[:-1]])
    retained = array.take(pa.array(np.arange(len(array)), mask=lacking))
    return retained


def check_lengths(column: Any, name: str, width: int, where: str, *, missing: int = 0) -> None:
    """Checks the length of lists.

    Args:
        column: An Arrow array of lists.
        name: The column's name, for messages.
        width: Number of values that each row must have.
        where: File or split, for messages.
        missing: Length of a missing list.

    Raises:
        BadInput: a row has another number of values.
    """
    counted = np.asarray(pc.fill_null(pc.list_value_length(column), 0))
    lengths = np.where(np.asarray(column.is_null()), missing, counted)
    if (wrong := np.flatnonzero(lengths != width)).size:
        values, expected = ("numbers", f"vectors of {width}") if missing else ("values", f"{width} in every row")
        raise BadInput(
            f"{where}: column {name!r} has {lengths[wrong[0]]} {values} in {len(wrong)} of {len(lengths)} rows, row "
            f"{wrong[0] + 1} the first; expected {expected}"
        )


def dense_vectors(column: Any, name: str, width: int, where: str) -> np.ndarray[Any, Any]:
    """Converts a column of lists to a matrix.

    Args:
        column: An Arrow array of lists of numbers.
        name: The column's name, for messages.
        width: Number of values that each row must have.
        where: File or split, for messages.

    Returns:
        float64 of shape ``[rows, width]``; a missing vector, and a missing number within one, is NaN.

    Raises:
        BadInput: a row has another number of values.
    """
    check_lengths(column, name, width, where, missing=width)
    flat = column.flatten()  # leaves missing lists out
    values = flat.cast(pa.float64()).to_numpy(zero_copy_only=False).reshape(-1, width)
    if not column.null_count:
        return np.asarray(values)
    dense: np.ndarray[Any, Any] = np.full((len(column), width), np.nan)
    dense[np.asarray(column.is_valid())] = values
    return dense
