"""Counts of single numbers: a custom statistic of numeric features.

TFDV reads a histogram of ten buckets off a thousand quantiles, so a flag that rises from 0.15% to 1.26% of the rows
hardly changes it; counts show the change. If there are many different numbers, only the most frequent are counted
(Misra and Gries, "Finding repeated elements", 1982).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf import wrappers_pb2

NAME = "frequent_numbers"
"""Name of the custom statistic. Its float64 value: number of finite values, maximum error of a count, then pairs of a
listed number and its count, by descending count.
"""
FEW = 20
"""Maximum number of different numbers for which features are compared by the numbers' shares instead of a histogram."""
LISTED = 100
"""Maximum number of listed numbers; if a feature has no more, all are listed."""
RESOLUTION = 1e-3
"""Distance, as a share of values, of the quantiles from which TFDV computes histograms of equally wide buckets."""
LEAST_SHARE = 1e-3
"""Minimum share of the values for a number to be listed, if there are more than :data:`LISTED`."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FrequentNumbers:
    """Listed finite numbers of a feature, with their counts.

    ``error`` is the maximum error of a count, ``total`` the number of finite values.
    """

    values: Array
    counts: Array
    error: float
    total: float

    @property
    def complete(self) -> bool:
        """Whether every number is listed."""
        return bool(abs(self.counts.sum() - self.total) < 0.5)

    @property
    def few(self) -> bool:
        """Whether the feature has few different numbers, all of them listed."""
        return self.complete and 0 < len(self.values) <= FEW

    @property
    def unlisted(self) -> float:
        """Upper bound for the count of a number that is not listed."""
        if self.complete:
            return 0.0
        least = float(self.counts[-1]) if len(self.counts) >= LISTED else 0.0
        return max(least, 2 * LEAST_SHARE * self.total)


def frequent_numbers(feature: Any) -> FrequentNumbers | None:
    """Returns the listed numbers of a ``FeatureNameStatistics``; None if nothing was counted."""
    packed = wrappers_pb2.BytesValue()
    for one in feature.custom_stats:
        if one.name == NAME and one.any.Unpack(packed):
            total, error, *table = np.frombuffer(packed.value, "<f8").tolist()
            values, counts = np.reshape(table, (-1, 2)).T
            return FrequentNumbers(values, counts, error, total)
    numbers = feature.num_stats
    buckets = [b.sample_count for one in numbers.histograms if one.type == one.STANDARD for b in one.buckets]
    if feature.type != type(feature).INT or not sum(buckets) or numbers.max - numbers.min >= len(buckets):
        return None
    # TFDV's own statistics: no bucket has two integers, and zeros, and thus the ones of a flag, are counted exactly.
    values, total = np.arange(numbers.min, numbers.max + 1), float(sum(buckets))
    if len(values) == 1:
        return FrequentNumbers(values, np.array([total]), 0.0, total)
    if len(values) == 2 and 0 in values:
        counts = np.where(values == 0, numbers.num_zeros, total - numbers.num_zeros)
        return FrequentNumbers(values, counts, 0.0, total)
    width = (numbers.max - numbers.min) / len(buckets)
    bucket = np.clip(np.ceil((values - numbers.min) / width).astype(int) - 1, 0, None)
    counts = np.diff(np.cumsum(buckets)[bucket], prepend=0.0)
    return FrequentNumbers(values, counts, 2 * RESOLUTION * total, total)


def has_few_numbers(feature: Any) -> bool:
    """Returns whether a feature is numeric, with few different numbers, all of them listed."""
    listed = frequent_numbers(feature) if feature.WhichOneof("stats") == "num_stats" else None
    return listed is not None and listed.few


def pack_numbers(feature: Any, listed: FrequentNumbers) -> None:
    """Adds counted numbers to a feature's statistics."""
    table = np.append([listed.total, listed.error], np.stack([listed.values, listed.counts], 1)).astype("<f8")
    feature.custom_stats.add(name=NAME).any.Pack(wrappers_pb2.BytesValue(value=table.tobytes()))
