"""Computes metrics of predictions with intervals, measured with labels or estimated without."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from airflow_hops.core.artifacts.target import REGRESSION
from airflow_hops.core.metrics import LOWER_IS_BETTER, Interval
from airflow_hops.ml.metrics.binary_metrics import SMALLEST
from airflow_hops.ml.metrics.class_metrics import MAX_CONFUSION_CLASSES
from airflow_hops.ml.metrics.judging import METRICS, Judge
from airflow_hops.ml.metrics.metrics import Array, interval

_RESAMPLES = 50
"""Enough for a standard error (B. Efron, R. Tibshirani, "An Introduction to the Bootstrap", 1993, section 6.4)."""
_MOST_ROWS = 20_000
"""Maximum rows of an estimate, and of its interval."""


def measure(
    judge: Judge, labels: Array, outputs: Array, shared: Array | None = None, weights: Array | None = None
) -> dict[str, Interval]:
    """Returns the problem's metrics with 95% intervals; leaves out those whose interval is not known, as of one row.

    Intervals are those of an evaluation. Predictions that share a label are not independent rows: they count as one.

    Args:
        judge: Problem and classes.
        labels: Class numbers or values, shape ``[rows]``.
        outputs: Shape ``[rows]`` or ``[rows, classes]``.
        shared: Number of the label of each row, shape ``[rows]``; None if each row has its own.
        weights: Weights of the rows, shape ``[rows]``, or None.
    """
    labels = labels if judge.problem == REGRESSION else labels.astype(np.int64)
    result = judge.figures(labels, outputs, weights, copies=shared, detailed=False)
    values = {name: result.value(name) for name in METRICS[judge.problem].higher_is_better}
    figures = {
        name: (v, *result.intervals[name]) for name, v in values.items() if v is not None and name in result.intervals
    }
    # Very large labels, such as 1e200, have no finite square.
    return {name: figure for name, figure in figures.items() if np.isfinite(figure).all()}


Calibration: TypeAlias = Callable[[Array], Array]
"""Maps probabilities of each class to calibrated ones, both of shape ``[rows, classes]``."""


def find_calibration(labels: Array, outputs: Array, weights: Array | None = None) -> Calibration | None:
    """Calibrates a classifier on held-out rows; returns None if all labels are equal, or beyond 100 classes.

    By a multinomial regression on logarithms of probabilities (M. Kull et al., "Beyond temperature scaling: Obtaining
    well-calibrated multi-class probabilities with Dirichlet calibration", 2019; for two classes that is beta
    calibration). Isotonic regression overfits, so estimates by it are too good: with three classes and 3,000 rows by
    0.012 in the AUC.

    Args:
        labels: Class numbers, shape ``[rows]``.
        outputs: Probabilities, shape ``[rows]`` or ``[rows, classes]``.
        weights: Weights of the rows, shape ``[rows]``, or None.
    """
    from sklearn.linear_model import LogisticRegression

    values = _of_each_class(outputs)
    if len(np.unique(labels)) < 2 or values.shape[1] > MAX_CONFUSION_CLASSES:
        return None
    even = None if weights is None else weights / weights.mean()
    fitted = LogisticRegression(C=100.0, max_iter=1000).fit(_logarithms(values), labels, sample_weight=even)

    def calibrate(probabilities: Array) -> Array:
        result = np.zeros(probabilities.shape)
        result[:, fitted.classes_.astype(np.int64)] = fitted.predict_proba(_logarithms(probabilities))
        return result

    return calibrate


def estimate(
    judge: Judge, calibrate: Calibration, outputs: Array, baseline: Mapping[str, Interval]
) -> dict[str, Interval]:
    """Estimates the problem's metrics of predictions without labels, with 95% intervals, from calibrated probabilities.

    Labels are drawn, and the metrics computed as if they had arrived. The estimate is their mean; its interval covers
    the randomness of the labels and, as wide as the baseline's, that of the calibration, which is fitted on the same
    rows. It is valid if the relation between features and label is unchanged: it cannot detect concept drift
    (J. Kivimäki, J. Białek, J. K. Nurminen, W. Kuberski, "Confidence-based Estimators for Predictive Performance in
    Model Monitoring", 2024, arXiv:2407.08649; for metrics other than accuracy J. Kivimäki et al., "Performance
    Estimation in Binary Classification Using Calibrated Confidence", 2025).

    Args:
        judge: Problem and classes.
        calibrate: The model's calibration.
        outputs: Probabilities, shape ``[rows]`` or ``[rows, classes]``.
        baseline: Metrics on the rows of the calibration.
    """
    if len(outputs) > _MOST_ROWS:
        outputs = outputs[np.random.default_rng(0).choice(len(outputs), _MOST_ROWS, replace=False)]
    reached = calibrate(_of_each_class(outputs)).cumsum(axis=1)[:, :-1]

    def draw(random: np.random.Generator) -> tuple[Array, Array]:
        return (random.random((len(outputs), 1)) >= reached).sum(axis=1), outputs

    estimates = {}
    for name, (mean, error) in _simulated(judge, draw).items():
        _, low, high = baseline.get(name, (mean, mean, mean))
        half = math.hypot(interval(0.0, error)[1], (high - low) / 2)
        estimates[name] = (mean, max(mean - half, 0.0), min(mean + half, _greatest(name)))
    return estimates


def _greatest(name: str) -> float:
    """Returns the greatest value of a metric; the smallest is 0, except for R²."""
    return math.inf if name in LOWER_IS_BETTER else 1.0


def _simulated(
    judge: Judge, draw: Callable[[np.random.Generator], tuple[Array, Array]]
) -> dict[str, tuple[float, float]]:
    """Returns mean and standard deviation of each metric over draws; omits metrics defined less than twice."""
    random = np.random.default_rng(0)
    drawn = [judge.figures(*draw(random), None, detailed=False) for _ in range(_RESAMPLES)]
    results = {}
    for name in METRICS[judge.problem].higher_is_better:
        values = [value for each in drawn if (value := each.value(name)) is not None]
        if len(values) > 1:
            results[name] = (float(np.mean(values)), float(np.std(values, ddof=1)))
    return results


def _of_each_class(outputs: Array) -> Array:
    return outputs if outputs.ndim == 2 else np.stack([1 - outputs, outputs], axis=1)


def _logarithms(probabilities: Array) -> Array:
    logarithms: Array = np.log(np.clip(probabilities, SMALLEST, 1.0))
    return logarithms
