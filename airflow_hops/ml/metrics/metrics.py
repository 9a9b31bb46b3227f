"""Common base of all metrics: calibration, and intervals of gains. Only needs NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from airflow_hops.core.evaluation import Difference

Array = np.ndarray

CALIBRATION_BINS = 10
_Z_95 = 1.959963984540054
_RESAMPLES = 200
"""Enough for a standard error (B. Efron, R. Tibshirani, "An Introduction to the Bootstrap", 1993, section 6.4)."""


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Figures of a model on some rows; means are weighted if rows have weights.

    Attributes:
        weight: Sum of their weights, or None.
        intervals: 95% intervals by the figure's name.
        custom: User-defined figures by name.
        calibration: Up to ten bins of about as many rows, the lowest predictions first: ``rows``, and their mean
            ``predicted`` and ``observed`` values; empty for a slice.
        reason: Why a figure is None, or None.
    """

    rows: int
    weight: float | None = None
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    custom: Mapping[str, float | None] = field(default_factory=dict)
    calibration: tuple[Mapping[str, float], ...] = ()
    reason: str | None = None

    def value(self, name: str) -> float | None:
        """Returns a figure by name."""
        return self.custom[name] if name in self.custom else getattr(self, name)

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON value: each figure, and the ends of its interval as ``<name>_low`` and ``<name>_high``."""
        figures = asdict(self)
        intervals, custom = figures.pop("intervals"), figures.pop("custom")
        ends = {
            f"{name}_{end}": v
            for name, interval in intervals.items()
            for end, v in zip(("low", "high"), interval, strict=True)
        }
        retained = {name: v for name, v in figures.items() if v is not None or name != "weight"}
        return {**retained, **ends, **custom}


@dataclass(frozen=True)
class Estimate:
    """Figure of some rows, and the influence of each row on it, ``[rows]``."""

    value: float
    influence: Array

    @property
    def error(self) -> float:
        """Standard error; 0 for a single row, where it is unknown."""
        rows = len(self.influence)
        return math.sqrt(float(np.square(self.influence).sum()) * rows / (rows - 1)) if rows > 1 else 0.0


def even_weights(weights: Array | None, rows: int) -> Array:
    """Returns the weights of rows; 1 for each if they have none."""
    return np.ones(rows) if weights is None else weights


def total_weight(weights: Array | None) -> float | None:
    """Returns the sum of weights, if there are any."""
    return None if weights is None else float(weights.sum())


def interval(value: float, error: float, low: float = -math.inf, high: float = math.inf) -> tuple[float, float]:
    """Returns the 95% interval of a figure with a standard error, within the figure's bounds."""
    return max(low, value - _Z_95 * error), min(high, value + _Z_95 * error)


def wilson(share: float, rows: float) -> tuple[float, float]:
    """Returns the 95% interval of a share (E. B. Wilson, Journal of the American Statistical Association 22, 1927)."""
    z2 = _Z_95**2
    middle = (share + z2 / (2 * rows)) / (1 + z2 / rows)
    half = _Z_95 / (1 + z2 / rows) * math.sqrt(share * (1 - share) / rows + z2 / (4 * rows**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def area_interval(area: float, positives: float, others: float) -> tuple[float, float]:
    """Returns the 95% interval of an AUC, which a single row of a class has, too.

    These are the areas that a score test does not reject, with the variance of J. A. Hanley, B. J. McNeil, "The meaning
    and use of the area under a ROC curve", Radiology 143, 1982.
    """
    a = np.append(np.linspace(0, 1, 1001), area)
    q1, q2 = a / (2 - a), 2 * a**2 / (1 + a)
    variance = a * (1 - a) + (positives - 1) * (q1 - a**2) + (others - 1) * (q2 - a**2)
    inside = a[np.abs(a - area) <= _Z_95 * np.sqrt(np.maximum(variance, 0) / (positives * others))]
    return float(inside.min()), float(inside.max())


def effective_rows(weights: Array | None, rows: Array) -> float:
    """Returns how many of the chosen rows of equal weight would tell as much (L. Kish, "Survey Sampling", 1965)."""
    w = even_weights(weights, len(rows))[rows]
    return float(w.sum() ** 2 / np.square(w).sum())


def estimate(values: Array, weights: Array | None) -> Estimate:
    """Returns the weighted mean of values ``[rows]``, with the influence of each."""
    w = even_weights(weights, len(values))
    mean = float(np.average(values, weights=w))
    return Estimate(mean, (values - mean) * w / w.sum())


def values_and_intervals(
    estimates: Mapping[str, Estimate | None], bounds: Mapping[str, tuple[float, float]], weights: Array | None
) -> tuple[dict[str, Any], dict[str, tuple[float, float]]]:
    """Returns the defined figures, and their 95% intervals within ``bounds``: Wilson's for the accuracy."""
    values: dict[str, Any] = {}
    intervals: dict[str, tuple[float, float]] = {}
    for name, each in estimates.items():
        if each is not None:
            values[name] = each.value
            intervals[name] = interval(each.value, each.error, *bounds[name])
            if name == "accuracy":
                everything = np.ones(len(each.influence), bool)
                intervals[name] = wilson(each.value, effective_rows(weights, everything))
    return values, intervals


def paired_difference(metric: str, candidate: Estimate, champion: Estimate, sign: float) -> Difference:
    """Computes a candidate's gain over a champion on the same rows, by the influences of each row (the delta method).

    ``sign`` is 1 if a higher figure is better, else -1.
    """
    gain = Estimate(candidate.value - champion.value, candidate.influence - champion.influence)
    return Difference(metric, sign * gain.value, *interval(sign * gain.value, gain.error))


def resampled_difference(
    metric: str,
    figure: Callable[[Array, Array, Array], float],
    labels: Array,
    candidate: Array,
    champion: Array,
    weights: Array | None,
    sign: float,
) -> Difference:
    """Computes the gain in a figure that is not a mean over rows; resampled rows give the standard error.

    Args:
        metric: Name of the figure.
        figure: A function of labels, predictions and weights.
        labels: ``[rows]``.
        candidate: The candidate's predictions.
        champion: The champion's predictions.
        weights: Weights of the rows.
        sign: 1 if a higher figure is better, else -1.
    """
    rows, random = len(labels), np.random.default_rng(0)
    weights = even_weights(weights, rows)

    def gain_of(chosen: Any) -> float:
        ours, theirs = (figure(labels[chosen], p[chosen], weights[chosen]) for p in (candidate, champion))
        return sign * (ours - theirs)

    gains = [gain_of(random.integers(0, rows, rows)) for _ in range(_RESAMPLES)]
    defined = [gain for gain in gains if math.isfinite(gain)]
    error = float(np.std(defined, ddof=1)) if len(defined) > 1 else math.nan
    gain = gain_of(slice(None))
    return Difference(metric, gain, *interval(gain, error))


def calibration(predicted: Array, observed: Array, weights: Array | None) -> tuple[Mapping[str, float], ...]:
    """Computes mean prediction and mean outcome in bins of about as many rows; equal predictions share a bin."""
    if not len(predicted):
        return ()
    predicted = predicted.astype(np.float64)
    edges = np.unique(np.quantile(predicted, np.linspace(0, 1, CALIBRATION_BINS + 1)[1:-1], method="higher"))
    bins, w = np.searchsorted(edges, predicted, side="right"), even_weights(weights, len(predicted))
    counts = np.bincount(bins)
    sums = [np.bincount(bins, w * values) for values in (np.ones(len(w)), predicted, observed)]
    return tuple(
        {"rows": int(rows), "predicted": float(mine / weight), "observed": float(theirs / weight)}
        for rows, weight, mine, theirs in zip(counts, *sums, strict=True)
        if rows
    )


def area_under_roc(positive: Array, scores: Array, weights: Array | None) -> Estimate:
    """Computes the exact area under the ROC curve.

    Its error is DeLong's (E. R. DeLong, D. M. DeLong, D. L. Clarke-Pearson, "Comparing the areas under two or more
    correlated receiver operating characteristic curves", Biometrics 44, 1988). The structural components are computed
    in n log n (X. Sun, W. Xu, IEEE Signal Processing Letters 21, 2014).

    Args:
        positive: Whether a row is of the class in question, ``[rows]``; both must occur.
        scores: ``[rows]``; a tie counts half.
        weights: Weights of the rows.
    """
    w, order = even_weights(weights, len(scores)), np.argsort(scores)
    ranked = scores[order]
    tie = np.concatenate([[0], np.cumsum(ranked[1:] != ranked[:-1])])
    influence, auc = np.zeros(len(scores)), 0.0
    for side, others, above in ((positive, ~positive, False), (~positive, positive, True)):
        tied = np.bincount(tie, (w * others)[order])
        below = np.cumsum(tied) - tied / 2
        total, rows = w[others].sum(), int(side.sum())
        # Share of the others that each row of this side outranks or, for a negative row, that outrank it.
        share = np.empty(len(scores))
        share[order] = ((total - below) if above else below)[tie] / total
        weight = w[side] / w[side].sum()
        auc = min(1.0, float(np.sum(weight * share[side])))  # a sum of weights may be rounded above 1
        influence[side] = weight * (share[side] - auc) * math.sqrt(rows / (rows - 1) if rows > 1 else 0.0)
    return Estimate(auc, influence * math.sqrt((len(scores) - 1) / len(scores)))
