"""Which examples have which values, and how many have a value of a feature and one of the label together.

This module imports TFDV; import it inside functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tensorflow_data_validation import types
from tensorflow_data_validation.arrow import arrow_util
from tensorflow_data_validation.utils import stats_util
from tensorflow_metadata.proto.v0 import statistics_pb2
from tfx_bsl.arrow import array_util, table_util
from tfx_bsl.arrow import path as arrow_path

from airflow_hops.core.contract.artifacts import BadInput

MAX_PAIRS = 200_000
"""Pairs of a feature's and the label's distinct values; a feature with more is left out, since each is too rare."""

MAX_BYTES = 16 << 20
"""Bytes of a feature's distinct values, times the label's values; a feature with more is left out."""

_STRING, _FLOAT, _STRUCT = (
    statistics_pb2.FeatureNameStatistics.STRING,
    statistics_pb2.FeatureNameStatistics.FLOAT,
    statistics_pb2.FeatureNameStatistics.STRUCT,
)


@dataclass
class PairCounts:
    """Examples by a feature's value, and by that and the label's.

    Attributes:
        values: Index of each value of the feature.
        counts: ``[views, values, 1 + label values]``; view 0 counts examples, view 1, if there is one, their weights;
            column 0 counts them whatever the label.
        size_bytes: Size of the values.
    """

    values: dict[Any, int]
    counts: Any
    size_bytes: int = 0

    def add(self, values: Sequence[Any], counts: Any, label_index: Any, label_values: int) -> None:
        """Adds ``counts``, whose columns are those of ``label_index``; there are ``label_values`` in all."""
        known = len(self.values)
        rows = np.array([self.values.setdefault(value, len(self.values)) for value in values], np.int64)
        self.size_bytes += sum(len(v) for v, row in zip(values, rows, strict=True) if row >= known and type(v) is bytes)
        views, height, width = self.counts.shape
        if len(self.values) > height or label_values + 1 > width:
            taller = height if len(self.values) <= height else max(2 * height, len(self.values))
            grown = np.zeros((views, taller, label_values + 1))
            grown[:, :height, :width] = self.counts
            self.counts = grown
        columns = np.concatenate([[0], 1 + label_index])
        self.counts[:, rows[:, None], columns[None, :]] += counts

    def is_too_large(self, label_values: int) -> bool:
        """Whether there are too many values for lift to mean anything."""
        return len(self.values) * label_values > MAX_PAIRS or self.size_bytes * label_values > MAX_BYTES


@dataclass
class LiftAccumulator:
    """The state of the examples seen so far; it pickles.

    Attributes:
        examples: How many.
        label_seen: Whether a batch had the label's column.
        label_values: Index of each value of the label.
        label_counts: ``[views, label values]``.
        pairs: By path of the feature; None for one that is left out.
    """

    label_counts: Any
    examples: int = 0
    label_seen: bool = False
    label_values: dict[Any, int] = field(default_factory=dict)
    pairs: dict[types.FeaturePath, PairCounts | None] = field(default_factory=dict)

    def add_label(self, values: Sequence[Any], counts: Any) -> Any:
        """Adds ``counts`` of the label's values; returns their indexes."""
        index = np.array([self.label_values.setdefault(v, len(self.label_values)) for v in values], np.int64)
        grown = np.zeros((len(self.label_counts), len(self.label_values)))
        grown[:, : self.label_counts.shape[1]] = self.label_counts
        grown[:, index] += counts
        self.label_counts = grown
        return index

    def leave_out(self, path: types.FeaturePath) -> None:
        """Leaves a feature out that has too many values."""
        self.pairs[path] = None


@dataclass(frozen=True)
class Presence:
    """Which example has which values.

    Attributes:
        rows: Indexes of examples, ascending.
        codes: Indexes of ``values``, one for each of ``rows``; no pair occurs twice.
        values: The distinct values.
    """

    rows: Any
    codes: Any
    values: Sequence[Any]


def presence(
    batch: pa.RecordBatch, path: types.FeaturePath, boundaries: Any = None, *, is_label: bool = False
) -> Presence | None:
    """Which example has which values of a feature; None if the batch has none, or the feature cannot have lift."""
    try:
        array, rows = table_util.get_array(batch, arrow_path.ColumnPath(path.steps()), return_example_indices=True)
    except KeyError:
        return None
    kind = stats_util.get_feature_type_from_arrow_type(path, array.type)
    if kind is None:
        return None
    if kind == _STRUCT or (kind == _FLOAT and boundaries is None) or (kind == _STRING and boundaries is not None):
        if not is_label:
            return None
        expected = "numbers, since there are boundaries" if boundaries is not None else "strings or integers"
        hint = "; for a number, give boundaries of buckets" if kind == _FLOAT else ""
        raise BadInput(f"label feature {str(path)!r} is {array.type}, expected {expected}{hint}")
    flat, parents = array_util.flatten_nested(array, return_parent_indices=True)
    rows = rows[parents].astype(np.int64)
    if boundaries is not None:
        numbers = flat.to_numpy(zero_copy_only=False).astype(float)
        there = ~np.isnan(numbers)
        codes = np.searchsorted(boundaries, numbers[there], side="right")
        return _once(rows[there], codes, range(len(boundaries) + 1))
    encoded = flat.dictionary_encode()
    values = [v.encode() if isinstance(v, str) else v for v in encoded.dictionary.to_pylist()]
    there = pc.is_valid(encoded.indices).to_numpy(zero_copy_only=False)
    return _once(rows[there], encoded.indices.drop_null().to_numpy().astype(np.int64), values)


def _once(rows: Any, codes: Any, values: Sequence[Any]) -> Presence:
    """Keeps each value once per example."""
    if len(rows) > 1 and np.any(rows[1:] == rows[:-1]):
        keys = np.unique(rows * len(values) + codes)
        rows, codes = keys // len(values), keys % len(values)
    return Presence(rows, codes, values)


def string_features(batch: pa.RecordBatch, label: types.FeaturePath) -> list[types.FeaturePath]:
    """The paths of a batch's strings, but for the label."""
    leaves = arrow_util.enumerate_arrays(batch, None, enumerate_leaves_only=True)
    return [
        path
        for path, array, _ in leaves
        if path != label and stats_util.get_feature_type_from_arrow_type(path, array.type) == _STRING
    ]
