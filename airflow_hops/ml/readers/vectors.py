"""Vectors: features with a list of the same length in every row, such as embeddings.

The dtype ``float32[16]`` is a vector of 16 numbers, a tensor of shape ``[batch, 16]``. In Parquet it is a list of
floats, because Arrow cannot write a missing fixed-size list.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput


def split_dtype(dtype: str) -> tuple[str, int | None]:
    """Splits a dtype into the dtype and number of a row's values, such as ``float32[16]`` into ``("float32", 16)``.

    The number is None for a feature of one value per row.
    """
    values, bracket, width = dtype.partition("[")
    return values, int(width.removesuffix("]")) if bracket else None


def row_shape(dtype: str) -> tuple[int, ...]:
    """Returns the shape of a row's value: ``()``, or ``(width,)`` for a vector."""
    width = split_dtype(dtype)[1]
    return () if width is None else (width,)


def is_list(kind: pa.DataType) -> bool:
    """Returns whether a column holds lists of any kind."""
    kinds = pa.types
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def plain_lists(array: pa.Array) -> pa.Array:
    """Converts fixed-size and large lists to plain lists, which can be null in Parquet, and half floats to floats."""
    values = array.flatten()
    if pa.types.is_float16(values.type):
        missing = np.asarray(values.is_null())
        values = pa.array(values.to_numpy(zero_copy_only=False).astype(np.float32), mask=missing)
    lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
    lacking = np.append(np.asarray(array.is_null()), False) if array.null_count else None
    offsets = pa.array(np.append(0, np.cumsum(lengths)).astype(np.int32), mask=lacking)
    return pa.ListArray.from_arrays(offsets, values)


def finite_vectors(array: pa.Array) -> pa.Array:
    """Replaces lists that hold a null, NaN or infinity with null."""
    array = plain_lists(array)
    values = np.asarray(array.values.to_numpy(zero_copy_only=False))
    offsets = np.asarray(array.offsets)
    bad = np.append(0, np.cumsum(~np.isfinite(values)))
    lacking = np.asarray(array.is_null()) | (bad[offsets[1:]] > bad[offsets[:-1]])
    retained = array.take(pa.array(np.arange(len(array)), mask=lacking))
    return retained


def check_lengths(column: pa.Array, name: str, width: int, where: str, *, missing: int = 0) -> None:
    """Checks that all lists of a column have ``width`` values; a missing list counts as ``missing`` values.

    Raises:
        BadInput: a list has another length.
    """
    counted = np.asarray(pc.fill_null(pc.list_value_length(column), 0))
    lengths = np.where(np.asarray(column.is_null()), missing, counted)
    if (wrong := np.flatnonzero(lengths != width)).size:
        values, expected = ("numbers", f"vectors of {width}") if missing else ("values", f"{width} in every row")
        raise BadInput(
            f"{where}: column {name!r} has {lengths[wrong[0]]} {values} in {len(wrong)} of {len(lengths)} rows, row "
            f"{wrong[0] + 1} the first; expected {expected}"
        )


def dense_vectors(column: pa.Array, name: str, width: int, where: str) -> np.ndarray:
    """Converts a column of lists of numbers, all of length ``width``, to a matrix.

    Returns:
        float64 of shape ``[rows, width]``; missing vectors and missing numbers are NaN.

    Raises:
        BadInput: a list has another length.
    """
    check_lengths(column, name, width, where, missing=width)
    flat = column.flatten()  # skips missing lists
    values = flat.cast(pa.float64()).to_numpy(zero_copy_only=False).reshape(-1, width)
    if not column.null_count:
        return np.asarray(values)
    dense: np.ndarray = np.full((len(column), width), np.nan)
    dense[np.asarray(column.is_valid())] = values
    return dense
