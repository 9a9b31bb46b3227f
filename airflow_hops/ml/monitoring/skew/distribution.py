"""Distributions from statistics: numbers as a piecewise linear CDF, strings as counts, vectors as a sample.

Arrays have a leading axis of samples, so that thousands of simulated samples are measured like the observed one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from airflow_hops.ml.statistics.frequent_numbers import FrequentNumbers, frequent_numbers
from airflow_hops.ml.statistics.summary import common_statistics
from airflow_hops.ml.statistics.vectors import sampled_vectors

Array: TypeAlias = NDArray[np.float64]
SKETCH_BUCKETS = 16_384
"""Buckets of TFDV's sketch of frequent strings: each count may be too low by one in this many rows."""


@dataclass(frozen=True)
class Curve:
    """CDF of finite values, linear between knots, with a jump at a repeated knot.

    Attributes:
        x: Knots in ascending order, ``[samples, knots]``, in the feature's units.
        f: Share of finite values up to each knot, from 0 to 1, ``[samples, knots]``.
        infinite: Share of all values that are infinite, ``[samples]``.
    """

    x: Array
    f: Array
    infinite: Array

    def at(self, t: Array, side: str = "right") -> Array:
        """Returns the CDF at ``t`` ``[samples, points]``, with the values at ``t`` itself unless ``side`` is "left"."""
        known = self.x.T[:, :, None]  # summed over the first axis, three times as fast as over the last
        after = np.sum(known <= t if side == "right" else known < t, axis=0, dtype=np.int32)
        upper = np.clip(after, 1, self.x.shape[1] - 1)
        x0, x1 = (np.take_along_axis(self.x, upper - k, 1) for k in (1, 0))
        f0, f1 = (np.take_along_axis(self.f, upper - k, 1) for k in (1, 0))
        width = x1 - x0
        part = np.divide(t - x0, width, out=np.ones_like(width), where=width > 0)
        between = f0 + (f1 - f0) * np.clip(part, 0.0, 1.0)
        return np.where(after == 0, 0.0, np.where(after == self.x.shape[1], 1.0, between))


@dataclass(frozen=True)
class Numbers:
    """Values of a numeric feature, without NaN.

    Attributes:
        count: Number of values, with infinite ones.
        standard: CDF from TFDV's histogram of equally wide buckets.
        quantiles: CDF from TFDV's histogram of equally filled buckets.
        integer: Whether the feature's type is INT.
        frequent: Counts of single values; None if the statistics have none.
    """

    count: float
    standard: Curve
    quantiles: Curve
    zeros: float
    mean: float
    std: float
    integer: bool
    frequent: FrequentNumbers | None = None

    @property
    def low(self) -> float:
        """Smallest finite value."""
        return float(self.standard.x[0, 0])

    @property
    def high(self) -> float:
        """Largest finite value."""
        return float(self.standard.x[0, -1])

    @property
    def curve(self) -> Curve:
        """CDF from both histograms or, if there are infinities, from equally wide buckets alone.

        A quantile bucket that reaches to infinity hides its finite values.
        """
        return self.standard if self.standard.infinite.any() else join(self.standard, self.quantiles)

    @property
    def infinite(self) -> float:
        """Number of infinite values."""
        return float(round(self.count * self.standard.infinite[0]))

    @property
    def values(self) -> Values:
        """Counts of single values, like those of a string feature; all infinite values count as one."""
        # All statistics count zeros.
        counts, unlisted, error = {"0": self.zeros} if self.zeros else {}, self.count, 0.0
        if (listed := self.frequent) is not None:
            counts = dict(zip((f"{value:.15g}" for value in listed.values), map(float, listed.counts), strict=True))
            unlisted, error = listed.unlisted, listed.error
        if self.infinite:
            counts["inf"] = self.infinite
        spread = max(0, round(self.count - sum(counts.values())))
        return Values(counts, self.count, len(counts) + spread, min(unlisted, spread), error, (self.low, self.high))


@dataclass(frozen=True)
class Values:
    """Values of a string feature.

    Attributes:
        counts: Occurrences of the most frequent values.
        total: Occurrences of all values.
        unique: Number of different values.
        unlisted: Largest number of occurrences of a value that is not in ``counts``.
        error: Largest error of a count.
        limits: Smallest and largest number; values beyond do not occur.
    """

    counts: Mapping[str, float]
    total: float
    unique: int
    unlisted: float = 0.0
    error: float = 0.0
    limits: tuple[float, float] | None = None

    def between(self, value: str) -> tuple[float, float]:
        """Returns the smallest and the largest possible number of occurrences of a value."""
        if value in self.counts:
            return max(0.0, self.counts[value] - self.error), min(self.total, self.counts[value] + self.error)
        if self.limits and not self.limits[0] <= float(value) <= self.limits[1]:
            return 0.0, 0.0
        return 0.0, self.unlisted

    @property
    def complete(self) -> bool:
        """Whether ``counts`` has every value."""
        return self.unique <= len(self.counts)


@dataclass(frozen=True)
class Vectors:
    """Sample of the values of a vector feature: finite numbers, ``[rows, width]``."""

    rows: NDArray[np.float32]

    @property
    def norms(self) -> Array:
        """Euclidean norms, ``[rows]``."""
        return np.linalg.norm(self.rows.astype(np.float64), axis=1)


Distribution: TypeAlias = Numbers | Values | Vectors


def join(one: Curve, other: Curve) -> Curve:
    """Returns the CDF through the knots of two histograms of the same sample."""
    # Both columns ascend, so sorting them apart keeps the pairs together.
    x = np.sort(np.concatenate([one.x, other.x], 1), 1)
    return Curve(x, np.sort(np.concatenate([one.f, other.f], 1), 1), one.infinite)


def present_share(feature: Any, rows: int) -> float:
    """Returns the share of rows with a value; NaN is missing, as are infinities if there is no finite number."""
    common = common_statistics(feature)
    if not rows or not common.num_non_missing or _only_infinite(feature):
        return 0.0
    values = count_of_values(common)
    nan = max((h.num_nan for h in feature.num_stats.histograms), default=0.0)
    return float(common.num_non_missing / rows * (1.0 - nan / values if values else 1.0))


def lengths(feature: Any) -> Numbers | None:
    """Returns the distribution of the number of values in a row, of the rows that are not missing."""
    common = common_statistics(feature)
    buckets = common.num_values_histogram.buckets
    curve = curve_of(common.num_values_histogram) if buckets else None
    if curve is None:
        return None
    return Numbers(float(common.num_non_missing), curve, curve, 0.0, float(common.avg_num_values), 0.0, integer=True)


def _only_infinite(feature: Any) -> bool:
    buckets = [bucket for histogram in feature.num_stats.histograms for bucket in histogram.buckets]
    return bool(buckets) and not any(np.isfinite(b.low_value) or np.isfinite(b.high_value) for b in buckets)


def distribution(feature: Any) -> Distribution | None:
    """Returns the distribution in a ``FeatureNameStatistics``; None without values or without histograms."""
    common = common_statistics(feature)
    if not count_of_values(common):
        return None
    if feature.WhichOneof("stats") == "string_stats":
        strings = feature.string_stats
        counts = {bucket.label: float(bucket.sample_count) for bucket in strings.rank_histogram.buckets}
        total, unique = max(count_of_values(common), sum(counts.values())), max(int(strings.unique), len(counts))
        if not counts or unique <= len(counts):
            return Values(counts, total, unique) if counts else None
        # A sketch of very many values may have missed some occurrences.
        return Values(counts, total, unique, min(counts.values()), total / SKETCH_BUCKETS)
    if feature.WhichOneof("stats") != "num_stats":
        return None
    if (sample := sampled_vectors(feature)) is not None:
        return Vectors(sample) if len(sample) else None
    numbers = feature.num_stats
    by_type = {histogram.type: histogram for histogram in numbers.histograms if histogram.buckets}
    if 1 not in by_type or (0 not in by_type and np.isfinite(numbers.max - numbers.min)):
        return None
    # TFDV makes no buckets of a range that float64 does not hold.
    standard, quantiles = curve_of(by_type.get(0, by_type[1])), curve_of(by_type[1])
    if standard is None or quantiles is None:
        return None
    return Numbers(
        count=float(count_of_values(common) - max(histogram.num_nan for histogram in numbers.histograms)),
        standard=standard,
        quantiles=quantiles,
        zeros=float(numbers.num_zeros),
        mean=float(numbers.mean),
        std=float(numbers.std_dev),
        integer=feature.type == type(feature).INT,
        frequent=frequent_numbers(feature),
    )


def count_of_values(common: Any) -> float:
    """Returns the number of values in ``CommonStatistics``; an empty list is present, but has none."""
    return float(common.tot_num_values or common.num_non_missing * common.avg_num_values)


def curve_of(histogram: Any) -> Curve | None:
    """Returns the CDF of a ``Histogram``; None without finite values."""
    table = np.array([(b.low_value, b.high_value, b.sample_count) for b in histogram.buckets])
    finite = np.isfinite(table[:, :2]).all(axis=1)
    total, infinite = table[:, 2].sum(), table[~finite, 2].sum()
    table = table[finite]
    if not len(table) or table[:, 2].sum() <= 0:
        return None
    cumulative = np.concatenate([[0.0], np.cumsum(table[:, 2])]) / table[:, 2].sum()
    x = np.concatenate([table[:1, 0], table[:, 1]])
    return Curve(x[None], np.minimum(cumulative, 1.0)[None], np.array([infinite / total]))
