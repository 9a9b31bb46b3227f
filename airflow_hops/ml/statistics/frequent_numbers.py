"""How often single numbers occur: a custom statistic of numeric features, of which TFDV's histograms say too little.

A histogram of ten buckets is read off a thousand quantiles, so a flag that rises from 0.15% to 1.26% of the rows hardly
moves it. Counts show it. Of many different numbers only those that repeat most are counted (Misra and Gries, "Finding
repeated elements", 1982).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf import wrappers_pb2

NAME = "frequent_numbers"
"""Name of the custom statistic, float64: how many finite values there are, by how much a count may be off, then each
listed value and its count; the most frequent first."""
FEW = 20
"""Different numbers up to which a feature is compared by their shares, as a string is, and not by its histogram."""
LISTED = 100
"""Numbers that are listed at most; of no more than these, all are."""
RESOLUTION = 1e-3
"""TFDV reads its histogram of equally wide buckets off quantiles that are this share apart."""
LEAST_SHARE = 1e-3
"""Share of the values that a number must have to be listed, if there are more than :data:`LISTED` of them."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FrequentNumbers:
    """The listed finite numbers of a feature.

    Attributes:
        values: The numbers, ``[n]``.
        counts: How often each was counted, ``[n]``.
        error: By how much a count may be off.
        total: How many finite values there are.
    """

    values: Array
    counts: Array
    error: float
    total: float

    @property
    def complete(self) -> bool:
        """Whether every value is listed."""
        return bool(abs(self.counts.sum() - self.total) < 0.5)

    @property
    def few(self) -> bool:
        """Whether the feature has few different values, all of them listed."""
        return self.complete and 0 < len(self.values) <= FEW

    @property
    def unlisted(self) -> float:
        """How often a value may occur that is not listed."""
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
    # TFDV's own statistics: no bucket has two integers; zeros are counted, and with them the ones of a flag.
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
    """Whether a feature's statistics are of numbers, and list all of them, which are few."""
    listed = frequent_numbers(feature) if feature.WhichOneof("stats") == "num_stats" else None
    return listed is not None and listed.few


def pack_numbers(feature: Any, listed: FrequentNumbers) -> None:
    """Gives a feature's statistics the numbers that were counted."""
    table = np.append([listed.total, listed.error], np.stack([listed.values, listed.counts], 1)).astype("<f8")
    feature.custom_stats.add(name=NAME).any.Pack(wrappers_pb2.BytesValue(value=table.tobytes()))
