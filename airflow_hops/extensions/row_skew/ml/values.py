"""Compares, hashes and shows values of single rows as TFDV's feature-skew detector does.

The detector works on ``tf.Example``: a feature has integers, 32-bit floats, or bytes, or no value (a null, an empty
list): these types are called canonical (:func:`~airflow_hops.ml.statistics.formats.feature_types.as_example`). Two
features are equal if their encodings are: floats bit by bit, so that NaN equals NaN, and 0.0 is not -0.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pandas.util import hash_array

from airflow_hops.ml.statistics.formats.feature_types import is_list

_SHOWN_LENGTH = 200
_SHOWN_VALUES = 20
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class RowOutcome(IntEnum):
    """Outcome of comparing a feature of a training row with that of a serving row."""

    BOTH_MISSING = 0
    MATCH = 1
    MISMATCH = 2
    BASE_ONLY = 3
    TEST_ONLY = 4


def values_of(column: pa.Array, rounding: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns which rows of a canonical column have a value, bool ``[rows]``, and 64-bit hashes of them, uint64.

    Hashes of different single numbers and lists of one differ. Floats are rounded to ``rounding`` digits after the
    point unless None.
    """
    kind = kind_of(column.type)
    if not is_list(column.type):
        return np.asarray(column.is_valid()), _hashes(column, kind, rounding)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.cumsum(lengths)
    within = np.arange(lengths.sum()) - np.repeat(ends - lengths, lengths)
    factors = np.cumprod(np.append(np.uint64(1), np.full(lengths.max(initial=0), _GOLDEN)))
    # Sums of 64 bits may overflow; their differences are still correct.
    sums = np.cumsum(np.append(np.uint64(0), _hashes(column.flatten(), kind, rounding) * factors[within]))
    return lengths > 0, sums[ends] - sums[ends - lengths] + np.maximum(lengths - 1, 0).astype(np.uint64)


def compare(base: pa.Array, test: pa.Array, rounding: int | None = None) -> np.ndarray:
    """Compares two canonical columns row by row.

    Args:
        base: The feature in training rows.
        test: The feature in the matching serving rows.
        rounding: Digits after the point to which floats are rounded first; None for no rounding.

    Returns:
        An :class:`RowOutcome` for each row, uint8.
    """
    (has_base, base_hashes), (has_test, test_hashes) = values_of(base, rounding), values_of(test, rounding)
    outcome = np.full(len(base), RowOutcome.BOTH_MISSING, np.uint8)
    outcome[has_base & ~has_test] = RowOutcome.BASE_ONLY
    outcome[~has_base & has_test] = RowOutcome.TEST_ONLY
    equal = (base_hashes == test_hashes) & (kind_of(base.type) == kind_of(test.type))
    both = has_base & has_test
    outcome[both] = np.where(equal, RowOutcome.MATCH, RowOutcome.MISMATCH)[both]
    return outcome


def hash_rows(columns: Sequence[pa.Array], rounding: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns 64-bit hashes of rows over several canonical columns, and a mask of the rows with a value in each."""
    hashes = np.zeros(len(columns[0]), np.uint64)
    whole = np.ones(len(hashes), bool)
    for column in columns:
        present, values = values_of(column, rounding)
        whole &= present
        hashes = hash_array(hashes * _GOLDEN + values)
    return hashes, whole


def shown(column: pa.Array, row: int) -> Any:
    """Returns a value for JSON: text cut after 200 characters, lists after 20 values, NaN and infinities as text."""
    value = column[row].as_py()
    if isinstance(value, list):
        return [_shown(single) for single in value[:_SHOWN_VALUES]]
    return _shown(value)


def _shown(value: object) -> Any:
    if isinstance(value, bytes):
        text = value[: 4 * _SHOWN_LENGTH].decode(errors="backslashreplace")
        return text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}…"
    if isinstance(value, float):
        return float(f"{value:.9g}") if np.isfinite(value) else str(value)
    return value


def kind_of(kind: pa.DataType) -> str | None:
    """Returns the kind of a canonical type, or of a list's values: "INT", "FLOAT" or "BYTES"; None for nulls."""
    kinds = {pa.int64(): "INT", pa.float32(): "FLOAT", pa.large_binary(): "BYTES"}
    return kinds.get(kind.value_type if is_list(kind) else kind)


def _hashes(flat: pa.Array, kind: str | None, rounding: int | None) -> np.ndarray:
    """Hashes single values; different numbers have different hashes."""
    if kind is None:
        return np.zeros(len(flat), np.uint64)
    if kind == "BYTES":
        encoded = flat.dictionary_encode()
        words = np.append(encoded.dictionary.to_numpy(zero_copy_only=False), b"").astype(object)
        places = pc.fill_null(encoded.indices.cast(pa.int64()), len(words) - 1).to_numpy(zero_copy_only=False)
        hashes = hash_array(words, categorize=False)[places]
    else:
        values: np.ndarray = pc.fill_null(flat, 0).to_numpy(zero_copy_only=False)
        if kind == "FLOAT":
            if rounding is not None:
                values = np.round(values.astype(np.float64), rounding).astype(np.float32)
            values = np.ascontiguousarray(values).view(np.uint32)
        hashes = hash_array(values)
    return np.where(flat.is_null(), _GOLDEN, hashes)
