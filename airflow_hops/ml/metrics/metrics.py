"""Common base of all metrics: calibration, and intervals of gains. Only needs NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from airflow_hops.core.evaluation import Difference
from airflow_hops.core.metrics import RANGES

Array = np.ndarray

CALIBRATION_BINS = 10
_Z_95 = 1.959963984540054
_GREATEST_EXPONENT = 700.0
_FEWEST_DISTINCT = 10
"""Fewest distinct rows of which others are taken for copies."""
_DETERMINED = 0.99
"""Share of distinct rows from which on their inputs are taken to determine the label."""
_RESAMPLES = 200
"""Enough for a standard error (B. Efron, R. Tibshirani, "An Introduction to the Bootstrap", 1993, section 6.4)."""


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Figures of a model on some rows; means are weighted if rows have weights.

    Attributes:
        weight: Sum of their weights, or None.
        intervals: 95% intervals by the figure's name.
        custom: User-defined figures by name.
        over_constant: Gain in the proper score of the problem (log loss, or the share of the squared error) over the
            best constant answer on these rows; None if all labels are equal, and for a slice.
        calibration: Up to ten bins of about as many rows, the lowest predictions first: ``rows``, and their mean
            ``predicted`` and ``observed`` values; empty for a slice.
        reason: Why a figure is None, or None.
    """

    rows: int
    weight: float | None = None
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    custom: Mapping[str, float | None] = field(default_factory=dict)
    over_constant: Difference | None = None
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
        optional = ("weight", "over_constant")
        retained = {name: v for name, v in figures.items() if v is not None or name not in optional}
        return {**retained, **ends, **custom}


@dataclass(frozen=True)
class Estimate:
    """Figure of some rows.

    Attributes:
        influence: Influence of each row on the figure, ``[rows]``.
        parts: Part of each row, ``[rows]``, in what each class contributes to the figure, less what no knowledge
            would; None if it is a mean over all rows.
    """

    value: float
    influence: Array
    parts: Array | None = None


@dataclass(frozen=True)
class Sample:
    """Rows by how much they tell.

    Attributes:
        weights: Weights of the rows, ``[rows]``; None if all are 1.
        classes: Number of each row's class, ``[rows]``; None in a regression.
        copies: Equal numbers for rows that are copies of each other, ``[rows]``; None if there are no copies.
    """

    weights: Array | None = None
    classes: Array | None = None
    copies: Array | None = None

    def where(self, chosen: Array) -> Sample:
        """Returns the sample of some of the rows."""
        return Sample(*(None if column is None else column[chosen] for column in vars(self).values()))

    def _by_copy(self, values: Array) -> tuple[Array, Array]:
        """Returns the sums of values ``[rows]`` over the copies of each row, and their class, from 0."""
        classes = np.zeros(len(values), np.int64)
        if self.classes is not None:
            classes = np.unique(self.classes, return_inverse=True)[1].reshape(-1)
        if self.copies is None:
            return values, classes
        first, numbers = np.unique(self.copies, return_index=True, return_inverse=True)[1:]
        return np.bincount(numbers.reshape(-1), values), classes[first]

    def effective_rows(self, rows: Array) -> float:
        """Returns how many rows of equal weight would tell as much (L. Kish, "Survey Sampling", 1965)."""
        w, _ = self._by_copy(even_weights(self.weights, len(rows)) * rows)
        return float(w.sum() ** 2 / np.square(w).sum())

    def effective_classes(self, rows: int) -> Array:
        """Returns the effective rows of each class that has rows; in a regression, of all rows together."""
        w, classes = self._by_copy(even_weights(self.weights, rows))
        sizes: Array = np.bincount(classes, w) ** 2 / np.bincount(classes, np.square(w))
        return sizes

    def half_width(self, estimate: Estimate) -> float:
        """Returns half of the width of a figure's 95% interval; infinite for one row.

        The variance is the sum over classes, each with the degrees of freedom of its effective rows
        (F. E. Satterthwaite, "An approximate distribution of estimates of variance components", Biometrics Bulletin 2,
        1946). If the ``parts`` are known, each class has one more row, which contributes nothing: a few rows that
        happen to agree are no evidence.
        """
        rows = len(estimate.influence)
        influence, classes = self._by_copy(estimate.influence)
        sizes, variances = self.effective_classes(rows), np.bincount(classes, np.square(influence))
        if estimate.parts is not None:
            parts = np.bincount(classes, self._by_copy(estimate.parts)[0])
            return _half_width(variances + np.square(parts / sizes), sizes)
        everything = self.effective_rows(np.ones(rows, bool))
        return _half_width(variances * (everything / (everything - 1)), sizes) if everything > 1 else math.inf


def _half_width(variances: Array, freedom: Array) -> float:
    from scipy.special import stdtrit

    total = float(variances.sum())
    if total == 0:
        return 0.0
    return float(stdtrit(1 / (np.square(variances / total) / freedom).sum(), 0.975)) * math.sqrt(total)


def copies_of(rows: Array, inputs: Array) -> Array | None:
    """Numbers rows, which are copies if equal inputs always come with equal labels; returns None without copies.

    Otherwise rows are equal by chance, as those of a few categories are, which may determine the label, too.

    Args:
        rows: Equal numbers for rows of equal inputs and labels, ``[rows]``.
        inputs: Equal numbers for rows of equal inputs, ``[rows]``.
    """
    distinct, numbers = np.unique(rows, return_inverse=True)
    if not _FEWEST_DISTINCT <= len(distinct) < len(rows) or len(np.unique(inputs)) < _DETERMINED * len(distinct):
        return None
    return numbers.reshape(-1)


def even_weights(weights: Array | None, rows: int) -> Array:
    """Returns the weights of rows; 1 for each if they have none."""
    return np.ones(rows) if weights is None else weights


def total_weight(weights: Array | None) -> float | None:
    """Returns the sum of weights, if there are any."""
    return None if weights is None else float(weights.sum())


def interval(value: float, error: float) -> tuple[float, float]:
    """Returns the 95% interval of a figure with a standard error."""
    return value - _Z_95 * error, value + _Z_95 * error


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


def estimate(values: Array, weights: Array | None) -> Estimate:
    """Returns the weighted mean of values ``[rows]``, with the influence of each."""
    w = even_weights(weights, len(values))
    mean = float(np.average(values, weights=w))
    return Estimate(mean, (values - mean) * w / w.sum())


def values_and_intervals(
    estimates: Mapping[str, Estimate | None], bounds: Mapping[str, tuple[float, float]], sample: Sample
) -> tuple[dict[str, Any], dict[str, tuple[float, float]]]:
    """Returns the defined figures, and their 95% intervals within ``bounds``: Wilson's for the accuracy.

    That of a loss is symmetric on a logarithmic scale: rows whose loss is low by chance differ little, too.
    An interval that would be infinite, that of a loss of a single row, is left out.
    """
    values: dict[str, Any] = {}
    intervals: dict[str, tuple[float, float]] = {}
    for name, each in estimates.items():
        if each is not None:
            values[name] = each.value
            if name == "accuracy":
                intervals[name] = wilson(each.value, sample.effective_rows(np.ones(len(each.influence), bool)))
                continue
            half, (low, high) = sample.half_width(each), bounds[name]
            ends = max(low, each.value - half), min(high, each.value + half)
            if (low, high) == (0.0, math.inf) and each.value > 0:
                factor = math.exp(half / each.value) if half < _GREATEST_EXPONENT * each.value else math.inf
                ends = each.value / factor, each.value * factor
            if math.isfinite(ends[0]) and math.isfinite(ends[1]):
                intervals[name] = ends
    return values, intervals


def paired_difference(metric: str, candidate: Estimate, champion: Estimate, sign: float, sample: Sample) -> Difference:
    """Computes a candidate's gain over a champion on the same rows, by the influences of each row (the delta method).

    ``sign`` is 1 if a higher figure is better, else -1.
    """
    gain, influence = candidate.value - champion.value, candidate.influence - champion.influence
    if candidate.parts is None or champion.parts is None:
        w = even_weights(sample.weights, len(influence))
        parts = influence + gain * w / w.sum()
    else:
        parts = candidate.parts - champion.parts
    return _difference(metric, sign * gain, sample.half_width(Estimate(gain, influence, parts)))


def _difference(metric: str, gain: float, half: float) -> Difference:
    """Returns a gain and its 95% interval, within the difference that two figures can have."""
    low, high = RANGES.get(metric, (-math.inf, math.inf))
    return Difference(metric, gain, max(low - high, gain - half), min(high - low, gain + half))


def resampled_difference(
    metric: str,
    figure: Callable[[Array, Array, Array], float],
    labels: Array,
    candidate: Array,
    champion: Array,
    sample: Sample,
    sign: float,
) -> Difference:
    """Computes the gain in a figure that is not a mean over rows; resampled rows give the standard error.

    Args:
        metric: Name of the figure.
        figure: A function of labels, predictions and weights.
        labels: ``[rows]``.
        candidate: The candidate's predictions.
        champion: The champion's predictions.
        sample: Weights and copies of the rows, which are resampled together; and classes if the figure may depend on
            any as much as on all, so that the fewest rows count.
        sign: 1 if a higher figure is better, else -1.
    """
    rows, random = len(labels), np.random.default_rng(0)
    weights = even_weights(sample.weights, rows)

    def gain_of(chosen: Any) -> float:
        ours, theirs = (figure(labels[chosen], p[chosen], weights[chosen]) for p in (candidate, champion))
        return sign * (ours - theirs)

    draw = _resampler(np.arange(rows) if sample.copies is None else sample.copies)
    gains = [gain_of(draw(random)) for _ in range(_RESAMPLES)]
    defined = [gain for gain in gains if math.isfinite(gain)]
    if len(defined) < 2:
        return Difference(metric, math.nan, math.nan, math.nan)
    gain = gain_of(slice(None))
    size = sample.effective_classes(rows).min()
    variance = np.var(defined, ddof=1) + (gain / size) ** 2
    return _difference(metric, gain, _half_width(np.array([variance]), np.array([size])))


def _resampler(groups: Array) -> Callable[[np.random.Generator], Array]:
    """Returns a function that draws groups of rows with replacement, and returns the numbers of their rows."""
    order = np.argsort(groups, kind="stable")
    starts, sizes = np.unique(groups[order], return_index=True, return_counts=True)[1:]

    def draw(random: np.random.Generator) -> Array:
        drawn = random.integers(0, len(starts), len(starts))
        offsets = np.cumsum(sizes[drawn]) - sizes[drawn]
        rows: Array = order[np.repeat(starts[drawn] - offsets, sizes[drawn]) + np.arange(sizes[drawn].sum())]
        return rows

    return draw


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

    Influences are DeLong's (E. R. DeLong, D. M. DeLong, D. L. Clarke-Pearson, "Comparing the areas under two or more
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
    influence, parts, auc = np.zeros(len(scores)), np.zeros(len(scores)), 0.0
    for side, others, above in ((positive, ~positive, False), (~positive, positive, True)):
        tied = np.bincount(tie, (w * others)[order])
        below = np.cumsum(tied) - tied / 2
        total = w[others].sum()
        # Share of the others that each row of this side outranks or, for a negative row, that outrank it.
        share = np.empty(len(scores))
        share[order] = ((total - below) if above else below)[tie] / total
        weight = w[side] / w[side].sum()
        auc = min(1.0, float(np.sum(weight * share[side])))  # a sum of weights may be rounded above 1
        influence[side], parts[side] = weight * (share[side] - auc), weight * (share[side] - 0.5)
    return Estimate(auc, influence, parts)
