"""Combiner that counts single numbers of numeric features. It imports TFDV; import it inside functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from tensorflow_data_validation.statistics.generators.stats_generator import CombinerStatsGenerator
from tensorflow_metadata.proto.v0 import statistics_pb2

from airflow_hops.ml.statistics.formats.feature_types import is_list
from airflow_hops.ml.statistics.frequent_numbers import (
    LEAST_SHARE,
    LISTED,
    FrequentNumbers,
    pack_numbers,
)

KEPT = 1000
"""Maximum number of numbers with a count in an accumulator."""

Array = np.ndarray[Any, Any]


@dataclass
class Counts:
    """Counts of a feature's numbers so far.

    Attributes:
        values: The numbers, ascending.
        counts: Counts of the numbers, without dropped ones.
        dropped: Maximum dropped count of a number.
        total: Number of finite values.
    """

    values: Array
    counts: Array
    dropped: float
    total: float

    @classmethod
    def of(cls, numbers: Array) -> Counts:
        """Counts a batch's numbers."""
        values, counts = np.unique(numbers[np.isfinite(numbers)].astype(np.float64), return_counts=True)
        return cls(values, counts.astype(float), 0.0, float(counts.sum())).thinned()

    def merged(self, other: Counts) -> Counts:
        """Adds two counts."""
        values, where = np.unique(np.concatenate([self.values, other.values]), return_inverse=True)
        counts = np.bincount(where, np.concatenate([self.counts, other.counts]), len(values))
        return Counts(values, counts, self.dropped + other.dropped, self.total + other.total).thinned()

    def thinned(self) -> Counts:
        """Drops the rarest numbers if there are too many."""
        if len(self.values) <= KEPT:
            return self
        order = np.argsort(-self.counts, kind="stable")
        retained, most = np.sort(order[:KEPT]), float(self.counts[order[KEPT]])
        return Counts(self.values[retained], self.counts[retained], self.dropped + most, self.total)

    def listed(self) -> FrequentNumbers:
        """Returns the listed numbers, the most frequent first."""
        order = np.argsort(-self.counts, kind="stable")
        if self.dropped or len(order) > LISTED:
            # If more was dropped, an unlisted number could be as frequent as a listed one.
            least = LEAST_SHARE * self.total if self.dropped <= LEAST_SHARE * self.total else np.inf
            order = order[self.counts[order] >= least][:LISTED]
        return FrequentNumbers(self.values[order], self.counts[order], self.dropped, self.total)


class NumberCounts(CombinerStatsGenerator):  # type: ignore[misc]
    """Counts the most frequent numbers of each feature that has at most one number in a row."""

    def __init__(self) -> None:
        super().__init__("NumberCounts")

    def create_accumulator(self) -> dict[str, Counts | None]:
        """Returns no counts."""
        return {}

    def add_input(self, accumulator: Any, batch: pa.RecordBatch) -> Any:
        """Adds a batch of list columns; None, for a slice that is not compared, stays None."""
        if accumulator is not None:
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if is_list(column.type) and _is_number(column.type.value_type):
                    single = len(column.values) <= len(column) - column.null_count
                    result = Counts.of(column.values.to_numpy(zero_copy_only=False)) if single else None
                    _merge(accumulator, name, result)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[Any]) -> Any:
        """Merges accumulators."""
        merged, *others = accumulators
        for other in others if merged is not None else ():
            for name, counts in (other or {}).items():
                _merge(merged, name, counts)
        return merged

    def extract_output(self, accumulator: Mapping[str, Counts | None] | None) -> Any:
        """Returns the counts as custom statistics of their features."""
        result = statistics_pb2.DatasetFeatureStatistics()
        for name, counts in (accumulator or {}).items():
            if counts is not None and counts.total:
                feature = result.features.add()
                feature.path.step.append(name)
                pack_numbers(feature, counts.listed())
        return result


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _merge(accumulator: dict[str, Counts | None], name: str, result: Counts | None) -> None:
    """Adds a batch's counts; None, for a feature with lists of numbers, stays None."""
    mine = accumulator.get(name, result)
    if mine is None or result is None:
        accumulator[name] = None
    else:
        accumulator[name] = mine.merged(result) if name in accumulator else result
