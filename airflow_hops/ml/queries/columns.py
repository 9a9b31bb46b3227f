"""Encodes columns of numbers and strings as bytes that a browser can use directly: typed arrays over one buffer.

The bytes: a uint32 (little-endian), the length of the header; the header, JSON in UTF-8, padded with spaces; the
columns, one after the other. The data begins at a multiple of eight, as does each column. The header holds ``rows``,
the caller's facts, and ``columns``, each with ``name``, ``type`` (``int8``, ``int16``, ``int32``, ``float32`` or
``float64``), ``offset`` (bytes from the start of the data), ``role`` and ``nulls`` (number of missing values):

- ``number``: a missing value is NaN, so integers with missing values become floats. A float64 becomes a float32 if this
  loses nothing or, unless ``exact``, if it rounds by less than a hundred-thousandth of the column's range.
- ``category``: indices into ``values``, a list of strings, the most frequent first; -1 is a missing value.
- ``boolean``: 0, 1, and -1 if it is missing.
- ``time``: milliseconds since the epoch, float64.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

_ALIGN = 8
_RANGES = 128
"""Largest ratio of values to the range: float32's error of 2^-24 of a value is then 2^-17 of the range."""


def encode(table: pa.Table, facts: Mapping[str, Any], *, exact: bool = True) -> bytes:
    """Encodes a table.

    Args:
        table: Columns of types that have a role (:func:`role_of`).
        facts: Other entries of the header.
        exact: Whether numbers keep all their digits, or only as many as a chart needs.
    """
    columns, buffers, offset = [], [], 0
    for name in table.column_names:
        values, described = _encode_column(table.column(name).combine_chunks(), exact)
        data = values.tobytes()
        columns.append({"name": name, "type": values.dtype.name, "offset": offset, **described})
        buffers.append(data + bytes(-len(data) % _ALIGN))
        offset += len(buffers[-1])
    header = orjson.dumps({"rows": table.num_rows, **facts, "columns": columns})
    header += b" " * (-(4 + len(header)) % _ALIGN)
    return b"".join([struct.pack("<I", len(header)), header, *buffers])


def role_of(kind: pa.DataType) -> str | None:
    """Returns the role of columns of a type; None if rows are not a number, time or string each, and cannot be sent."""
    if pa.types.is_boolean(kind):
        return "boolean"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "time"
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind)
    return "category" if is_text else None


def _encode_column(column: Any, exact: bool) -> tuple[Any, dict[str, Any]]:
    role = role_of(column.type)
    described = {"role": role, "nulls": column.null_count}
    if role == "boolean":
        return pc.fill_null(column.cast(pa.int8()), -1).to_numpy(zero_copy_only=False), described
    if role == "time":
        # The unsafe cast cuts off fractions of a millisecond.
        return _floats(column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())), described
    if role == "number":
        return _number(column, exact), described
    codes, values = _category(column)
    return codes, {**described, "values": values}


def _number(column: Any, exact: bool) -> Any:
    if pa.types.is_integer(column.type) and not column.null_count:
        values = column.to_numpy(zero_copy_only=False)
        for smaller in (np.int8, np.int16, np.int32):
            bounds = np.iinfo(smaller)
            if not len(values) or (values.min() >= bounds.min and values.max() <= bounds.max):
                return values.astype(smaller)
    values = _floats(column)
    with np.errstate(over="ignore"):
        smaller = values.astype(np.float32)
    finite = values[np.isfinite(values)]
    enough = not exact and pa.types.is_floating(column.type)
    if enough and len(finite):  # each float32 must lie where its value does
        low, high = finite.min(), finite.max()
        enough = bool(max(-low, high) <= min(_RANGES * (high - low), np.finfo(np.float32).max))
    return smaller if enough or np.array_equal(smaller.astype(np.float64), values, equal_nan=True) else values


def _floats(column: Any) -> Any:
    if pa.types.is_float16(column.type):  # which Arrow cannot cast
        return column.to_numpy(zero_copy_only=False).astype("<f8")
    return column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).astype("<f8")


def _category(column: Any) -> tuple[Any, list[str]]:
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    words = encoded.dictionary.cast(pa.string()).to_pylist()
    codes = pc.fill_null(encoded.indices.cast(pa.int32()), -1).to_numpy(zero_copy_only=False)
    counts = np.bincount(codes[codes >= 0], minlength=len(words))
    by_count = np.lexsort((np.arange(len(words)), -counts))
    rank: Any = np.empty(len(words) + 1, np.int32)
    rank[by_count] = np.arange(len(words), dtype=np.int32)
    rank[-1] = -1
    smallest = next(kind for kind in (np.int8, np.int16, np.int32) if len(words) <= np.iinfo(kind).max)
    values = [words[index] for index in by_count]
    return rank[codes].astype(smallest), values
