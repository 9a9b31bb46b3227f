"""The metrics of predictions with intervals, measured with labels or estimated without."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from airflow_hops.contract.performance import Interval
from airflow_hops.contract.target import REGRESSION
from airflow_hops.runtime.evaluate.judging import METRICS, Judge
from airflow_hops.runtime.evaluate.metrics import Array, interval

_RESAMPLES = 50
"""Enough for a standard error (B. Efron, R. Tibshirani, "An Introduction to the Bootstrap", 1993, section 6.4)."""
_MOST_ROWS = 20_000
"""Rows from which an estimate is made at most; its interval is then that of so many."""


def measure(judge: Judge, labels: Array, outputs: Array) -> dict[str, Interval]:
    """The problem's metrics with 95% intervals.

    Intervals are those of an evaluation (DeLong's of the AUC, Wilson's, or of means over rows); of metrics that have
    none there, they come from resampled rows.

    Args:
        judge: What the metrics are of.
        labels: Classes' numbers or values, shape ``[rows]``.
        outputs: Shape ``[rows]`` or ``[rows, classes]``.
    """
    labels = labels if judge.problem == REGRESSION else labels.astype(np.int64)
    found = judge.figures(labels, outputs, None, detailed=False)
    values = {name: found.value(name) for name in METRICS[judge.problem].higher_is_better}
    figures = {
        name: (v, *found.intervals[name]) for name, v in values.items() if v is not None and name in found.intervals
    }
    if len(rest := [name for name, v in values.items() if v is not None and name not in figures]):

        def resample(random: np.random.Generator) -> tuple[Array, Array]:
            chosen = random.integers(0, len(labels), len(labels))
            return labels[chosen], outputs[chosen]

        errors = {name: error for name, (_, error) in _simulated(judge, resample).items()}
        figures |= {name: (float(values[name] or 0), *interval(values[name] or 0, errors[name])) for name in rest}
    return {name: figures[name] for name in values if name in figures}


def worsening(judge: Judge, figures: Mapping[str, Interval], baseline: Mapping[str, Interval]) -> dict[str, Interval]:
    """By how much metrics are worse than the baseline's; both are of independent rows, so their variances add up.

    Args:
        judge: What the metrics are of.
        figures: Measured.
        baseline: Of other rows.
    """
    found = {}
    for name, higher_is_better in METRICS[judge.problem].higher_is_better.items():
        if name in figures and name in baseline:
            sign = 1.0 if higher_is_better else -1.0
            (now, *ends), (before, *earlier) = figures[name], baseline[name]
            half = math.hypot((ends[1] - ends[0]) / 2, (earlier[1] - earlier[0]) / 2)
            drop = sign * (before - now)
            found[name] = (drop, drop - half, drop + half)
    return found


@dataclass(frozen=True)
class Estimator:
    """Confidence-based performance estimation: the metrics that a classifier's calibrated probabilities promise.

    Probabilities are calibrated by isotonic regression on held-out rows with labels; of several classes one by one, and
    normalised. Labels are then drawn from them, and the metrics computed as if they had come. The estimate is their
    mean; its interval is the chance of the labels alone. It is right as long as the features still mean the same for
    the label: it cannot see concept drift (J. Kivimäki, J. Białek, J. K. Nurminen, W. Kuberski, "Confidence-based
    Estimators for Predictive Performance in Model Monitoring", 2024, arXiv:2407.08649; of metrics beyond the accuracy
    J. Kivimäki et al., "Performance Estimation in Binary Classification Using Calibrated Confidence", 2025).

    Attributes:
        calibrators: Of each class, or of the second of two: from probability to probability.
    """

    calibrators: tuple[Callable[[Array], Array], ...] = field(default=())

    @classmethod
    def fit(cls, labels: Array, outputs: Array) -> Estimator:
        """Calibrates on rows that the model did not learn from.

        Args:
            labels: Classes' numbers, shape ``[rows]``.
            outputs: Probabilities, shape ``[rows]`` or ``[rows, classes]``.
        """
        from sklearn.isotonic import IsotonicRegression

        columns = [(outputs, 1)] if outputs.ndim == 1 else [(outputs[:, n], n) for n in range(outputs.shape[1])]
        fitted = (
            IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(column, labels == number)
            for column, number in columns
        )
        return cls(tuple(each.predict for each in fitted))

    def probabilities(self, outputs: Array) -> Array:
        """Calibrated probabilities of each class, shape ``[rows, classes]``."""
        if outputs.ndim == 1:
            second = self.calibrators[0](outputs)
            return np.stack([1 - second, second], axis=1)
        found = np.stack([each(outputs[:, number]) for number, each in enumerate(self.calibrators)], axis=1)
        total = found.sum(axis=1, keepdims=True)
        # Where no class has any probability left, what the model says stands.
        shares: Array = np.where(total > 0, found / np.where(total > 0, total, 1), outputs)
        return shares

    def estimate(self, judge: Judge, outputs: Array) -> dict[str, Interval]:
        """The problem's metrics of predictions without labels, with 95% intervals.

        Args:
            judge: What the metrics are of.
            outputs: Probabilities, shape ``[rows]`` or ``[rows, classes]``.
        """
        if len(outputs) > _MOST_ROWS:
            outputs = outputs[np.random.default_rng(0).choice(len(outputs), _MOST_ROWS, replace=False)]
        reached = self.probabilities(outputs).cumsum(axis=1)[:, :-1]

        def draw(random: np.random.Generator) -> tuple[Array, Array]:
            return (random.random((len(outputs), 1)) >= reached).sum(axis=1), outputs

        return {name: (mean, *interval(mean, error)) for name, (mean, error) in _simulated(judge, draw).items()}


def _simulated(
    judge: Judge, draw: Callable[[np.random.Generator], tuple[Array, Array]]
) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of each metric over draws of labels and outputs; without those never defined."""
    random = np.random.default_rng(0)
    drawn = [judge.figures(*draw(random), None, detailed=False) for _ in range(_RESAMPLES)]
    found = {}
    for name in METRICS[judge.problem].higher_is_better:
        values = [value for each in drawn if (value := each.value(name)) is not None]
        if len(values) > 1:
            found[name] = (float(np.mean(values)), float(np.std(values, ddof=1)))
    return found
