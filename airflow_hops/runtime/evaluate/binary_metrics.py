"""Metrics of a binary classifier, and the paired comparison of two on the same rows. NumPy alone."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from airflow_hops.contract.evaluation import Difference

HIGHER_IS_BETTER = {"auc": True, "accuracy": True, "log_loss": False, "brier": False}
"""The metrics by which two models can be compared, and in which direction they improve."""

_Z_95 = 1.959963984540054
_SMALLEST = 1e-7
"""Probabilities are kept so far from 0 and 1 in the logarithm (float32's resolution near 1)."""


@dataclass(frozen=True)
class Metrics:
    """Figures of one model on some rows.

    Attributes:
        rows: Number of rows.
        positives: Rows whose label is 1.
        auc: Area under the ROC curve, exact (by ranks, ties count half); None where there is only one class.
        auc_low: Lower end of its 95% interval (DeLong), or None.
        auc_high: Upper end.
        log_loss: Mean negative log-likelihood, in nats.
        brier: Mean squared error of the probability.
        accuracy: Share of rows right at a threshold of 0.5.
        mean_prediction: Mean probability.
        mean_label: Share of positives; where it differs from the mean probability, the model is not calibrated.
        reason: Why ``auc`` is None, or None.
    """

    rows: int
    positives: int
    auc: float | None
    auc_low: float | None
    auc_high: float | None
    log_loss: float | None
    brier: float | None
    accuracy: float | None
    mean_prediction: float | None
    mean_label: float | None
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON value."""
        return asdict(self)


def binary_metrics(labels: np.ndarray[Any, Any], probabilities: np.ndarray[Any, Any]) -> Metrics:
    """The figures of a model.

    Args:
        labels: 0 or 1, shape ``[rows]``.
        probabilities: Of label 1, shape ``[rows]``.
    """
    rows, positives = len(labels), int(np.sum(labels))
    if not rows:
        return Metrics(0, 0, None, None, None, None, None, None, None, None, reason="no rows")
    p: Any = probabilities.astype(np.float64)
    clipped = np.clip(p, _SMALLEST, 1 - _SMALLEST)
    auc = low = high = reason = None
    if 0 < positives < rows:
        by_positive, by_negative = _placements(labels, p)
        auc = float(by_positive.mean())
        error = math.sqrt(_variance(by_positive) + _variance(by_negative))
        low, high = max(0.0, auc - _Z_95 * error), min(1.0, auc + _Z_95 * error)
    else:
        reason = f"all {rows} labels are {int(labels[0])}; the AUC needs both classes"
    return Metrics(
        rows=rows,
        positives=positives,
        auc=auc,
        auc_low=low,
        auc_high=high,
        log_loss=float(_log_losses(labels, clipped).mean()),
        brier=float(np.square(p - labels).mean()),
        accuracy=float(((p >= 0.5) == (labels == 1)).mean()),
        mean_prediction=float(p.mean()),
        mean_label=positives / rows,
        reason=reason,
    )


def compare(
    metric: str,
    labels: np.ndarray[Any, Any],
    candidate: np.ndarray[Any, Any],
    champion: np.ndarray[Any, Any],
) -> Difference | None:
    """A candidate's gain over a champion on the same rows, with its 95% interval.

    For the AUC the interval is DeLong's for correlated curves (E. R. DeLong, D. M. DeLong, D. L. Clarke-Pearson,
    "Comparing the areas under two or more correlated receiver operating characteristic curves", Biometrics 44, 1988);
    for the others, which are means over rows, that of the mean of paired differences.

    Args:
        metric: One of :data:`HIGHER_IS_BETTER`.
        labels: 0 or 1, shape ``[rows]``.
        candidate: Its probabilities, shape ``[rows]``.
        champion: Its probabilities, shape ``[rows]``.

    Returns:
        None where the metric is not defined: no rows, or for the AUC one class only.
    """
    rows, positives = len(labels), int(np.sum(labels))
    if not rows or (metric == "auc" and not 0 < positives < rows):
        return None
    if metric == "auc":
        (mine_p, mine_n), (theirs_p, theirs_n) = _placements(labels, candidate), _placements(labels, champion)
        gain = float(mine_p.mean() - theirs_p.mean())
        error = math.sqrt(_variance(mine_p - theirs_p) + _variance(mine_n - theirs_n))
        return Difference(metric, gain, gain - _Z_95 * error, gain + _Z_95 * error)
    return paired_difference(metric, _row_scores(metric, labels, candidate) - _row_scores(metric, labels, champion))


def paired_difference(metric: str, gains: np.ndarray[Any, Any]) -> Difference:
    """The mean of paired differences, with its 95% interval.

    Args:
        metric: Its name.
        gains: By how much each row's score is better, shape ``[rows]``.
    """
    gain, error = float(gains.mean()), math.sqrt(_variance(gains))
    return Difference(metric, gain, gain - _Z_95 * error, gain + _Z_95 * error)


def _row_scores(metric: str, labels: np.ndarray[Any, Any], probabilities: np.ndarray[Any, Any]) -> Any:
    """A score for each row, more being better, whose mean is the metric but for its sign."""
    p: Any = probabilities.astype(np.float64)
    if metric == "log_loss":
        return -_log_losses(labels, np.clip(p, _SMALLEST, 1 - _SMALLEST))
    if metric == "brier":
        return -np.square(p - labels)
    return ((p >= 0.5) == (labels == 1)).astype(np.float64)


def _log_losses(labels: np.ndarray[Any, Any], p: np.ndarray[Any, Any]) -> Any:
    return -np.where(labels == 1, np.log(p), np.log1p(-p))


def _placements(labels: np.ndarray[Any, Any], scores: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """DeLong's structural components, in n log n (X. Sun, W. Xu, IEEE Signal Processing Letters 21, 2014).

    Returns:
        For each positive row, the share of negatives that it outranks; for each negative, the share of positives that
        outrank it. A tie counts half. The mean of either is the AUC.
    """
    scores = scores.astype(np.float64)
    positive, negative = np.sort(scores[labels == 1]), np.sort(scores[labels != 1])

    def below(values: Any, others: Any) -> Any:
        left = np.searchsorted(others, values, side="left")
        return (left + np.searchsorted(others, values, side="right")) / (2 * len(others))

    # In the order of the rows, so that two models' components belong to the same rows.
    return below(scores[labels == 1], negative), 1 - below(scores[labels != 1], positive)


def _variance(values: Any) -> float:
    """Variance of the mean of the values; 0 for a single one, about which nothing is known."""
    return float(np.var(values, ddof=1) / len(values)) if len(values) > 1 else 0.0
