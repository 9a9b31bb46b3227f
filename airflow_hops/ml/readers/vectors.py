"""Vectors: features with a list of the same length in every row, such as embeddings.

The dtype ``float32[16]`` is a vector of 16 numbers, a tensor of shape ``[batch, 16]``. In Parquet it is a list of
floats, because Arrow cannot write a missing fixed-size list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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


def flat_values(array: pa.Array) -> pa.Array:
    """Returns the values of the lists that are not null; Arrow 10 cannot flatten fixed-size lists that all are."""
    return array.flatten() if array.null_count < len(array) else array.values[:0]


def plain_lists(array: pa.Array) -> pa.Array:
    """Converts fixed-size and large lists to plain lists, which can be null in Parquet, and half floats to floats."""
    values = flat_values(array)
    if pa.types.is_float16(values.type):
        missing = np.asarray(values.is_null())
        values = pa.array(values.to_numpy(zero_copy_only=False).astype(np.float32), mask=missing)
    return lists_of(values, array)


def map_types(type_: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Returns a type in which ``leaf`` has replaced each one but plain lists, maps, and structs with fields."""
    if pa.types.is_list(type_):
        return pa.list_(map_types(type_.value_type, leaf))
    if pa.types.is_map(type_):
        return pa.map_(map_types(type_.key_type, leaf), map_types(type_.item_type, leaf))
    if pa.types.is_struct(type_) and type_.num_fields:
        return pa.struct([(field.name, map_types(field.type, leaf)) for field in type_])
    return leaf(type_)


def leaves(array: pa.Array) -> Iterator[pa.Array]:
    """Yields the arrays within lists, maps and structs, or the array if it is none of these."""
    kinds = pa.types
    if is_list(array.type):
        parts = [flat_values(array)]
    elif kinds.is_map(array.type):
        parts = [array.keys, array.items]
    elif kinds.is_struct(array.type):
        parts = array.flatten()
    else:
        yield array
        return
    for part in parts:
        yield from leaves(part)


def list_lengths(array: pa.Array) -> np.ndarray:
    """Returns the number of values of each row, int: 0 for a missing one, and 1 for a value that is not a list."""
    if not is_list(array.type):
        return np.asarray(array.is_valid(), np.int64)
    return np.asarray(pc.fill_null(pc.list_value_length(array), 0))


def lists_of(values: pa.Array, column: pa.Array, lengths: np.ndarray | None = None, *, large: bool = False) -> pa.Array:
    """Returns lists of values in consecutive order, missing where a column is.

    Args:
        values: The values of all rows.
        column: The column.
        lengths: Number of values of each row; None for those of the column's lists.
        large: Whether to return large lists.
    """
    ends = np.append(0, np.cumsum(list_lengths(column) if lengths is None else lengths))
    missing = np.append(np.asarray(column.is_null()), False) if column.null_count else None
    made, offsets = (pa.LargeListArray, pa.int64()) if large else (pa.ListArray, pa.int32())
    return made.from_arrays(pa.array(ends, offsets, mask=missing), values)


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
    lengths = np.where(np.asarray(column.is_null()), missing, list_lengths(column))
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
