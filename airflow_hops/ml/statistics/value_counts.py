"""Counts of values, and the most frequent ones, as TFDV lists them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tensorflow_data_validation import constants
from tensorflow_data_validation.arrow import arrow_util
from tensorflow_data_validation.utils import top_k_uniques_stats_util
from tfx_bsl.arrow import array_util

LARGE_BYTES = 1024
"""Bytes above which values are counted together in top values, as in TFDV's own sketches."""
_NOT_TEXT = constants.NON_UTF8_PLACEHOLDER.encode()


@dataclass(frozen=True)
class ValueCounts:
    """Distinct values, as bytes, with their counts.

    ``counts`` is ``[views, values]``; view 0 has counts, view 1, if there is one, sums of weights.
    """

    values: pa.Array
    counts: np.ndarray

    @staticmethod
    def of(values: pa.Array, counts: np.ndarray) -> ValueCounts:
        """Adds up the counts of repeated values."""
        encoded = values.dictionary_encode()
        index, size = np.asarray(encoded.indices), len(encoded.dictionary)
        return ValueCounts(encoded.dictionary, np.stack([np.bincount(index, view, size) for view in counts]))

    @staticmethod
    def sum(parts: Sequence[ValueCounts]) -> ValueCounts:
        """Adds counts."""
        values = pa.concat_arrays([part.values for part in parts])
        return ValueCounts.of(values, np.concatenate([part.counts for part in parts], axis=1))


def most_frequent(values: pa.Array, counts: Any, wanted: int) -> list[Any]:
    """Returns the ``wanted`` most frequent values with their counts; only these become Python objects."""
    if wanted < len(counts):
        table = pa.table({"value": values, "count": counts})
        # Among equally frequent values, TFDV lists the greater first.
        order = [("count", "descending"), ("value", "descending")]
        listed = pc.select_k_unstable(table, wanted, order)
        values, counts = values.take(listed), counts[np.asarray(listed)]
    pairs = zip(values.to_pylist(), counts.tolist(), strict=True)
    return [top_k_uniques_stats_util.FeatureValueCount(value, count) for value, count in pairs]


def without_large(values: pa.Array) -> pa.Array:
    """Replaces all large values with a placeholder, since thousands of values are kept."""
    if not arrow_util.is_binary_like(values.type):
        return values
    large = pc.greater(pc.binary_length(values), LARGE_BYTES)
    if not pc.any(large).as_py():
        return values
    return pc.if_else(large, pa.scalar(constants.LARGE_BYTES_PLACEHOLDER.encode(), values.type), values)


def rows_listed_together(values: pa.Array) -> np.ndarray:
    """Returns the rows whose values are large or not UTF-8."""
    if not arrow_util.is_binary_like(values.type):
        return np.zeros(0, np.int64)
    return np.union1d(np.flatnonzero(pc.greater(pc.binary_length(values), LARGE_BYTES)), _not_text(values))


def named(values: pa.Array) -> pa.Array:
    """Converts values to the bytes that TFDV lists."""
    if not arrow_util.is_binary_like(values.type):
        return values.cast(pa.large_string()).cast(pa.large_binary())
    values = without_large(values.cast(pa.large_binary()))
    not_text = np.zeros(len(values), bool)
    not_text[_not_text(values)] = True
    return pc.if_else(pa.array(not_text), pa.scalar(_NOT_TEXT, values.type), values) if not_text.any() else values


def _not_text(values: pa.Array) -> np.ndarray:
    """Returns the rows whose values are not UTF-8."""
    if not array_util.CountInvalidUTF8(values):
        return np.zeros(0, np.int64)
    return np.flatnonzero([array_util.CountInvalidUTF8(values.slice(row, 1)) for row in range(len(values))])
