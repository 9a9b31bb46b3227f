"""Standard measures of the distance of two distributions.

A measure takes a reference and a current sample, or as many simulated pairs as the leading axis has, and returns one
number for each pair. Numbers come as :class:`~airflow_hops.ml.monitoring.skew.distribution.Curve`, strings as counts
``[samples, values]``.

Jensen-Shannon divergence and L-infinity distance equal TFDV's to the last digit, except that TFDV counts NaN as drift
(Lin, "Divergence measures based on the Shannon entropy", 1991; base 2, so from 0 to 1). TFDV aligns the buckets of two
histograms by cutting both at the bounds of either, with counts spread evenly within a bucket; a bucket without width is
a point, and infinities of one side never match those of the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from airflow_hops.ml.monitoring.skew.distribution import Array, Curve, Distribution, Numbers, Values, Vectors
from airflow_hops.ml.monitoring.skew.vectors import MEASURE, KernelMatrix, norm_histogram
from airflow_hops.ml.statistics.frequent_numbers import RESOLUTION

BUCKETS = 20
"""Number of buckets, or values, in a common histogram."""
SMOOTHING = 0.5
"""Rows that the population stability index adds to each bin, so that an empty bin does not make it infinite."""


def jensen_shannon(reference: Curve, current: Curve) -> Array:
    """Returns the Jensen-Shannon divergence of two histograms as TFDV computes it, 0 to 1."""
    t = np.sort(np.concatenate([reference.x, current.x], 1), 1)
    return _jensen_shannon_of_shares(_masses(reference, t), _masses(current, t), reference.infinite, current.infinite)


def kolmogorov_smirnov(reference: Curve, current: Curve) -> Array:
    """Returns the largest distance of the two CDFs, 0 to 1."""
    t = np.concatenate([reference.x, current.x], 1)
    sides = [np.abs(reference.at(t, side) - current.at(t, side)).max(axis=1) for side in ("left", "right")]
    return np.maximum(*sides)


def rough(reference: Numbers, current: Numbers) -> bool:
    """Returns whether a CDF that is linear between knots may be far from the true one.

    It may be if values repeat, as numbers of seats do (continuous values share no decile), or if they leave a gap: a
    quantile then falls on either side of the gap by chance. It cannot be computed if the range overflows.
    """
    if overflows(reference, current):
        return True
    shared = np.intersect1d(reference.quantiles.x[0, 1:-1], current.quantiles.x[0, 1:-1])
    return reference.integer or len(shared) > 0 or _has_gap(reference) or _has_gap(current)


def overflows(*sides: Distribution | None) -> bool:
    """Returns whether float64 does not hold the range of numbers, so that no point between two knots is known."""
    numbers = [side for side in sides if isinstance(side, Numbers)]
    return bool(numbers) and not math.isfinite(max(n.high for n in numbers) - min(n.low for n in numbers))


def _has_gap(sample: Numbers) -> bool:
    """Returns whether an inner bucket is empty."""
    f = sample.standard.f[0]
    amidst = (f[:-1] > 0.05) & (f[1:] < 0.95)
    return bool((np.diff(f)[amidst] < RESOLUTION).any())


def least_distance(reference: Numbers, current: Numbers) -> float:
    """Returns the smallest Kolmogorov-Smirnov distance that samples with these histograms can have, 0 to 1.

    A knot ``x`` at share ``f`` means that at most ``f`` of the values lie below ``x``, and at least ``f`` up to it;
    between knots anything is possible. The CDFs differ where the lower bound of one exceeds the upper bound of the
    other.
    """
    bounds = [_bounds(sample) for sample in (reference, current)]
    t = np.unique(np.concatenate([places for reached, _, before, _ in bounds for places in (reached, before)]))
    least, most = [], []
    for reached, low, before, high in bounds:
        least.append(np.append(0.0, low)[np.searchsorted(reached, t, "right")])
        most.append(np.append(high, 1.0)[np.searchsorted(before, t, "right")])
    return max(0.0, float((least[0] - most[1]).max()), float((least[1] - most[0]).max()))


def _bounds(sample: Numbers) -> tuple[Array, Array, Array, Array]:
    """Returns points from which the CDF is at least a share, and points before which it is at most a share."""
    x, f = sample.curve.x[0], sample.curve.f[0]
    knots, first, times = np.unique(x, return_index=True, return_counts=True)
    # No integer lies between a knot and the integer below it.
    reached, before = (np.floor(knots), np.ceil(knots)) if sample.integer else (knots, knots)
    low, high = f[first + times - 1], f[first]
    if sample.zeros and sample.low == 0:
        # The number of zeros is exact.
        zeros = min(1.0, sample.zeros / (sample.count * (1.0 - sample.standard.infinite[0])))
        low = np.maximum(low, zeros)
        before, high = (
            np.insert(before, 1, 1.0 if sample.integer else np.nextafter(0.0, 1.0)),
            np.insert(high, 1, zeros),
        )
    return reached, low, before, high


def wasserstein(reference: Curve, current: Curve) -> Array:
    """Returns the Wasserstein-1 distance, the area between the two CDFs, in the feature's units."""
    t = np.sort(np.concatenate([reference.x, current.x], 1), 1)
    start = (reference.at(t) - current.at(t))[:, :-1]
    end = (reference.at(t, "left") - current.at(t, "left"))[:, 1:]
    height = np.abs(start) + np.abs(end)
    # Lines that cross enclose two triangles instead of a trapezoid.
    crossed = np.divide(start**2 + end**2, height, out=np.zeros_like(height), where=height > 0)
    return (np.diff(t, axis=1) * np.where(start * end < 0, crossed, height) / 2).sum(axis=1)


def stability_index(reference: Curve, current: Curve, rows: tuple[float, float], quantiles: Array) -> Array:
    """Returns the population stability index over ten bins between the reference's deciles, each plus half a row.

    If the reference's ``quantiles`` ``[samples, buckets + 1]`` are not multiples of deciles, the bins lie between the
    quantiles themselves. ``rows`` are the numbers of values of both sides.
    """
    buckets = quantiles.shape[1] - 1
    inner = quantiles[:, :: buckets // 10 if buckets % 10 == 0 and buckets else 1][:, 1:-1]
    ends = np.zeros((len(inner), 1)), np.ones((len(inner), 1))
    shares = [np.diff(np.concatenate([ends[0], curve.at(inner), ends[1]], 1), axis=1) for curve in (reference, current)]
    return stability_index_of_counts(shares[0] * rows[0], shares[1] * rows[1])


def stability_index_of_counts(reference: Array, current: Array) -> Array:
    """Returns the population stability index of counts ``[samples, bins]``, each plus half a row."""
    used = (reference > 0) | (current > 0)
    shares = []
    for counts in (reference, current):
        smoothed = np.where(used, counts + SMOOTHING, 0.0)
        shares.append(smoothed / smoothed.sum(axis=1, keepdims=True))
    p, q = shares
    logarithm = np.log(np.divide(q, p, out=np.ones_like(p), where=used))
    return ((q - p) * logarithm).sum(axis=1)


def l_infinity(reference: Array, current: Array, unlisted: int = 0) -> Array:
    """Returns the largest difference of a value's share; the last ``unlisted`` columns only count in the totals."""
    apart = np.abs(_shares(reference) - _shares(current))
    return apart[:, : apart.shape[1] - unlisted].max(axis=1)


def normalized_difference(reference: Array, current: Array) -> Array:
    """Returns the largest difference of a value's counts, divided by the size of both samples together, as in TFDV."""
    return np.abs(reference - current).max(axis=1) / (reference.sum(axis=1) + current.sum(axis=1))


def jensen_shannon_of_counts(reference: Array, current: Array) -> Array:
    """Returns the Jensen-Shannon divergence of the values of a string feature, 0 to 1."""
    return _jensen_shannon_of_shares(_shares(reference), _shares(current))


NUMERIC: dict[str, Callable[[Numbers, Numbers], Array]] = {
    "jensen_shannon": lambda r, c: jensen_shannon(r.standard, c.standard),
    "jensen_shannon_quantiles": lambda r, c: jensen_shannon(r.quantiles, c.quantiles),
    "kolmogorov_smirnov": lambda r, c: kolmogorov_smirnov(r.curve, c.curve),
    "population_stability_index": lambda r, c: stability_index(r.curve, c.curve, (r.count, c.count), r.quantiles.x),
    "wasserstein": lambda r, c: wasserstein(r.curve, c.curve),
}
"""Measures of numeric features, by name."""

OF_FEW = "l_infinity"
"""Measure of numbers with few different values, as of strings."""

CATEGORICAL: dict[str, Callable[[Array, Array], Array]] = {
    "l_infinity": l_infinity,
    "jensen_shannon": jensen_shannon_of_counts,
    "population_stability_index": stability_index_of_counts,
    "normalized_abs_difference": normalized_difference,
}
"""Measures of string features, by name."""


def measures_of(distribution: Distribution) -> Iterable[str]:
    """Returns the names of a feature's measures."""
    if isinstance(distribution, Vectors):
        return (MEASURE,)
    if isinstance(distribution, Numbers):
        return (*NUMERIC, OF_FEW) if distribution.frequent and distribution.frequent.few else NUMERIC
    return CATEGORICAL


def measurable(measure: str, reference: Distribution | None, current: Distribution | None) -> str:
    """Returns the measure, or the next best one if the statistics do not count each number, or the range overflows.

    TFDV's statistics and those of older versions do not; nor does a reference that has too many different numbers by
    now.
    """
    if overflows(reference, current) and measure != OF_FEW:
        return "kolmogorov_smirnov"
    uncounted = any(isinstance(side, Numbers) and not side.frequent for side in (reference, current))
    if isinstance(reference, Numbers) and reference.frequent:
        uncounted |= not reference.frequent.complete
    return "kolmogorov_smirnov" if measure == OF_FEW and uncounted else measure


def score(reference: Distribution, current: Distribution, measure: str) -> float:
    """Returns the score of a feature by a measure.

    Strings are measured by the values that the statistics list, as in TFDV. A :func:`rough` feature gets the smallest
    possible Kolmogorov-Smirnov distance.
    """
    if isinstance(reference, Numbers) and isinstance(current, Numbers):
        if measure == "kolmogorov_smirnov" and rough(reference, current):
            return max(0.0, least_distance(reference, current) - RESOLUTION)
        if measure == OF_FEW:
            counts = aligned_counts(reference.values, current.values)
            return float(np.abs(counts[0] / reference.count - counts[1] / current.count).max())
        return float(NUMERIC[measure](reference, current)[0])
    if isinstance(reference, Vectors) and isinstance(current, Vectors):
        return max(0.0, KernelMatrix.of(reference, current).score())
    assert isinstance(reference, Values) and isinstance(current, Values)
    return float(CATEGORICAL[measure](*aligned_counts(reference, current))[0])


def every_score(reference: Distribution | None, current: Distribution | None) -> dict[str, float]:
    """Returns all scores by measure; ``wasserstein_normalized`` is divided by the reference's standard deviation."""
    if reference is None or current is None:
        return {}
    measures = {measurable(measure, reference, current) for measure in measures_of(reference)}
    measures -= {"jensen_shannon_quantiles", "normalized_abs_difference"}
    scores = {measure: score(reference, current, measure) for measure in sorted(measures)}
    if isinstance(reference, Numbers) and reference.std > 0 and "wasserstein" in scores:
        scores["wasserstein_normalized"] = scores["wasserstein"] / reference.std
    return scores


def common_histogram(reference: Distribution | None, current: Distribution | None) -> list[list[Any]]:
    """Returns both distributions on the same buckets: ``[low, high, share, share]``, or ``[value, share, share]``.

    Numbers get equally wide buckets over both ranges, strings the most frequent values of either side, vectors their
    norms.
    """
    if isinstance(reference, Vectors) and isinstance(current, Vectors):
        return norm_histogram(reference, current, BUCKETS)
    if isinstance(reference, Numbers) and isinstance(current, Numbers):
        if overflows(reference, current):
            return []
        edges = np.linspace(min(reference.low, current.low), max(reference.high, current.high), BUCKETS + 1)
        if edges[0] == edges[-1]:
            return [[float(edges[0]), float(edges[0]), 1.0, 1.0]]
        shares = [np.diff(np.append(0.0, side.curve.at(edges[None, 1:])[0])) for side in (reference, current)]
        columns = [edges[:-1], edges[1:], *(share.round(6) for share in shares)]
        table = np.stack(columns, 1)
        return [[float(cell) for cell in row] for row in table]
    if isinstance(reference, Values) and isinstance(current, Values):
        labels = list(dict.fromkeys([*reference.counts, *current.counts]))
        both = {v: [side.counts.get(v, 0.0) / side.total for side in (reference, current)] for v in labels}
        most = sorted(both, key=lambda value: -max(both[value]))[:BUCKETS]
        return [[value, *(round(share, 6) for share in both[value])] for value in most]
    return []


def aligned_counts(reference: Values, current: Values) -> tuple[Array, Array]:
    """Returns the counts of both sides, ``[1, values]``, over the values that either lists, the reference's first."""
    labels = list(dict.fromkeys([*reference.counts, *current.counts]))
    both = [np.array([[v.counts.get(label, 0.0) for label in labels]]) for v in (reference, current)]
    return both[0], both[1]


def _masses(curve: Curve, t: Array) -> Array:
    """Returns the shares at the points ``t`` and between them, ``[samples, 2 * points - 1]``."""
    right, left = curve.at(t), curve.at(t, "left")
    again = np.diff(t, axis=1) <= 0
    point = right - left
    point[:, 1:][again] = 0.0
    between = np.where(again, 0.0, left[:, 1:] - right[:, :-1])
    return np.concatenate([point, between], 1)


def _jensen_shannon_of_shares(p: Array, q: Array, p_apart: Array | float = 0.0, q_apart: Array | float = 0.0) -> Array:
    """Returns the divergence of shares ``[samples, bins]``; the parts ``p_apart`` and ``q_apart`` match nothing."""
    p, q = (
        np.maximum(shares, 0.0) * np.reshape(1.0 - np.asarray(apart), (-1, 1))
        for shares, apart in ((p, p_apart), (q, q_apart))
    )
    mean = (p + q) / 2
    divergence = np.zeros(len(p))
    for shares in (p, q):
        ratio = np.divide(shares, mean, out=np.ones_like(mean), where=shares > 0)
        divergence += (shares * np.log2(ratio)).sum(axis=1)
    return np.clip((divergence + p_apart + q_apart) / 2, 0.0, 1.0)


def _shares(counts: Array) -> Array:
    return counts / counts.sum(axis=1, keepdims=True)
