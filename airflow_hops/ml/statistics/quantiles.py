"""Quantiles of a feature: exact while its values fit, and the same on any number of cores.

Values are kept sorted, equal ones once with their count or weight. A data set keeps at most 16,777,216 values
(:data:`DATASET_VALUES`), in equal parts for its features: at most 1,048,576 (:data:`FEATURE_VALUES`) and at least
16,384 (:data:`SLICE_VALUES`) each. A slice keeps 16,384 of each feature. Up to that number of distinct values,
quantiles are exact. Beyond it, a summary is thinned to a quarter: each retained value then stands for neighbours of
equal weight (Munro and Paterson, "Selection and Sorting with Limited Storage", 1980). One thinning moves a rank by at
most 1 in as many rows as values are retained, 1 in 4,096 of a slice; rows are thinned again when four times as many
have been merged.

Values of a batch whose first ones mostly differ are kept as they come, and sorted once, with those of other batches,
which takes half of the time of sorting each batch first.

Bounds depend on nothing but the types of the columns, and summaries are merged in an order that depends on the source
alone (:mod:`~airflow_hops.ml.statistics.combiners`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

Array = np.ndarray

DATASET_VALUES = 1 << 24
FEATURE_VALUES = 1 << 20
SLICE_VALUES = 1 << 14
PROBED = 1024
"""First values of a batch; if most of these differ, the batch's are only counted with those of other batches."""


def values_per_feature(types: Iterable[pa.DataType]) -> int:
    """Returns how many values the whole data set keeps of each feature, for the types of its columns."""
    features = sum(map(_features, types))
    return min(FEATURE_VALUES, max(SLICE_VALUES, DATASET_VALUES // max(1, features)))


def _features(kind: pa.DataType) -> int:
    if pa.types.is_struct(kind):
        return sum(_features(field.type) for field in kind)
    return _features(kind.value_type) if hasattr(kind, "value_type") else 1


class Quantiles:
    """Replaces ``tfx_bsl.sketches.QuantilesSketch`` in TFDV's generators; can be pickled.

    Args:
        most: Number of distinct values above which they are thinned.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._parts: list[tuple[Array, Array]] = []
        self._held, self._is_summed = 0, True

    def AddValues(self, values: pa.Array, weights: pa.Array | None = None) -> None:
        """Adds values, each with the weight 1 or its own; like TFDV, ignores weights that are not above zero."""
        # -0.0 becomes 0.0: which of both a sort puts first depends on the processor.
        numbers = values.to_numpy(zero_copy_only=False) + 0
        if weights is None:
            ones = np.ones(len(numbers), np.int64)
            repeat = len(np.unique(numbers[:PROBED])) <= PROBED // 2
            self._append(*(_summed(numbers, ones) if repeat else (numbers, ones)), is_summed=repeat)
        else:
            heavy = weights.to_numpy(zero_copy_only=False).astype(np.float64)
            self._append(*_summed(numbers[heavy > 0], heavy[heavy > 0]))

    def Merge(self, other: Quantiles) -> None:
        """Adds another summary, of later rows."""
        for part in other._parts:
            self._append(*part, is_summed=other._is_summed)

    def Compact(self) -> None:
        """Sums the counts of equal values."""
        if not self._is_summed:
            values, weights = (np.concatenate(arrays) for arrays in zip(*self._parts, strict=True))
            self._parts, self._is_summed = [_summed(values, weights)], True
        if self._parts and len(self._parts[0][0]) > self._most:
            self._parts = [_thinned(*self._parts[0], self._most // 4)]
        self._held = len(self._parts[0][0]) if self._parts else 0

    def GetQuantilesAndCumulativeWeights(self, count: int) -> tuple[pa.Array, pa.Array]:
        """Returns the boundaries of ``count`` equally filled buckets, and the weights up to them: lists of one row."""
        self.Compact()
        values, weights = self._parts[0] if self._parts else (np.zeros(0), np.zeros(0))
        if not len(values):
            return pa.array([[]], pa.list_(pa.float64())), pa.array([[]], pa.list_(pa.float64()))
        ends = np.cumsum(weights, dtype=np.float64)
        ranks = np.arange(count + 1) * ends[-1] / count
        indices = np.minimum(np.searchsorted(ends, ranks, side="right"), len(values) - 1)
        return pa.array([values[indices].astype(np.float64)]), pa.array([ends[indices]])

    def _append(self, values: Array, weights: Array, *, is_summed: bool = True) -> None:
        self._is_summed = is_summed and not self._parts
        self._parts.append((values, weights))
        self._held += len(values)
        if self._held > self._most:
            self.Compact()


def _summed(values: Array, weights: Array) -> tuple[Array, Array]:
    """Returns the distinct values in order, with the sums of their weights in the order of the rows."""
    # Sums of whole numbers are the same in any order, which is sorted several times as fast.
    is_whole = weights.dtype.kind == "i"
    order = None if is_whole and (weights == 1).all() else np.argsort(values, kind=None if is_whole else "stable")
    values = np.sort(values) if order is None else values[order]
    is_new = np.append(True, values[1:] != values[:-1])[: len(values)]
    if order is None and is_new.all():
        return values, weights
    first = np.flatnonzero(is_new)
    if order is None:
        return values[first], np.diff(first, append=len(values))
    return values[first], np.add.reduceat(weights[order], first)


def _thinned(values: Array, weights: Array, most: int) -> tuple[Array, Array]:
    """Returns about ``most`` of the values, each with the weight of its neighbours; minimum and maximum stay exact."""
    ends = np.cumsum(weights, dtype=np.float64)
    group = ((ends - weights / 2) * (most / ends[-1])).astype(np.int64)
    group[0], group[-1] = -1, most
    first = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
    last = np.append(first[1:], len(values))
    return values[(first + last - 1) // 2], np.add.reduceat(weights, first)
