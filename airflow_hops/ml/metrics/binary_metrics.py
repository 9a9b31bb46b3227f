"""Metrics of a binary classifier, and the paired comparison of two on the same rows. NumPy alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from airflow_hops.core.contract.evaluation import Difference
from airflow_hops.ml.metrics.metrics import (
    Array,
    Metrics,
    area_under_roc,
    calibration,
    difference,
    error_of_mean,
    even_weights,
    interval,
    paired_difference,
    resampled_difference,
    total_weight,
    wilson,
)

HIGHER_IS_BETTER = {"auc": True, "average_precision": True, "accuracy": True, "log_loss": False, "brier": False}
"""The metrics by which two models can be compared, and in which direction they improve."""

SMALLEST = 1e-7
"""Probabilities are kept so far from 0 and 1 in the logarithm (float32's resolution near 1)."""


@dataclass(frozen=True, kw_only=True)
class BinaryMetrics(Metrics):
    """Figures of one model of two classes on some rows.

    Attributes:
        positives: Rows whose label is 1.
        auc: Area under the ROC curve, exact (by ranks, ties count half), with DeLong's interval; None if there is
            only one class.
        average_precision: Mean precision over the positives, each at its own threshold: of a guess, the share of
            positives. None if there is only one class.
        log_loss: Mean negative log-likelihood, in nats.
        brier: Mean squared error of the probability.
        accuracy: Share of rows right at a threshold of 0.5; with Wilson's interval.
        mean_prediction: Mean probability.
        mean_label: Share of positives; where it differs from the mean probability, the model is not calibrated.
    """

    positives: int = 0
    auc: float | None = None
    average_precision: float | None = None
    log_loss: float | None = None
    brier: float | None = None
    accuracy: float | None = None
    mean_prediction: float | None = None
    mean_label: float | None = None


def binary_metrics(
    labels: Array, probabilities: Array, weights: Array | None = None, *, detailed: bool = True
) -> BinaryMetrics:
    """The figures of a model.

    Args:
        labels: 0 or 1, shape ``[rows]``.
        probabilities: Of label 1, shape ``[rows]``.
        weights: Of the rows.
        detailed: Whether the calibration is wanted.
    """
    rows, positives = len(labels), int(np.sum(labels))
    if not rows:
        return BinaryMetrics(rows=0, reason="no rows")
    p = probabilities.astype(np.float64)
    scores = {name: row_scores(name, labels, p) for name in ("log_loss", "brier", "accuracy")}
    w = even_weights(weights, rows)
    means = {name: abs(float(np.average(of, weights=weights))) for name, of in scores.items()}
    intervals = {
        name: interval(means[name], error_of_mean(of, weights), 0.0, math.inf if name == "log_loss" else 1.0)
        for name, of in scores.items()
    }
    intervals["accuracy"] = wilson(means["accuracy"], float(w.sum() ** 2 / np.square(w).sum()))
    auc = reason = precision = None
    if 0 < positives < rows:
        precision = average_precision(labels, p, w)
        intervals["average_precision"] = _interval_of_precision(precision, positives)
        auc, influence = area_under_roc(labels == 1, p, weights)
        intervals["auc"] = interval(auc, float(np.linalg.norm(influence)), 0.0, 1.0)
    else:
        reason = f"all {rows} labels are {int(labels[0])}; the AUC needs both classes"
    return BinaryMetrics(
        rows=rows,
        weight=total_weight(weights),
        positives=positives,
        auc=auc,
        average_precision=precision,
        log_loss=means["log_loss"],
        brier=means["brier"],
        accuracy=means["accuracy"],
        mean_prediction=float(np.average(p, weights=weights)),
        mean_label=float(np.average(labels, weights=weights)),
        intervals=intervals,
        calibration=calibration(p, labels, weights) if detailed else (),
        reason=reason,
    )


def compare(
    metric: str, labels: Array, candidate: Array, champion: Array, weights: Array | None = None
) -> Difference | None:
    """A candidate's gain over a champion on the same rows, with its 95% interval.

    For the AUC the interval is DeLong's for correlated curves, for the average precision that of resampled rows; for
    the others, which are means over rows, that of the mean of paired differences.

    Args:
        metric: One of :data:`HIGHER_IS_BETTER`.
        labels: 0 or 1, shape ``[rows]``.
        candidate: Its probabilities, shape ``[rows]``.
        champion: Its probabilities, shape ``[rows]``.
        weights: Of the rows.

    Returns:
        None if the metric is not defined: no rows, or for the AUC and the average precision one class only.
    """
    rows, positives = len(labels), int(np.sum(labels))
    if not rows or (metric in ("auc", "average_precision") and not 0 < positives < rows):
        return None
    if metric == "average_precision":
        gain = lambda y, ours, others, w: average_precision(y, ours, w) - average_precision(y, others, w)  # noqa: E731
        return resampled_difference(metric, gain, labels, candidate, champion, weights)
    if metric == "auc":
        mine, theirs = (area_under_roc(labels == 1, p, weights) for p in (candidate, champion))
        return difference(metric, mine[0] - theirs[0], float(np.linalg.norm(mine[1] - theirs[1])))
    ours, others = (row_scores(metric, labels, p) for p in (candidate, champion))
    return paired_difference(metric, ours - others, even_weights(weights, rows))


def average_precision(labels: Array, scores: Array, weights: Array) -> float:
    """The mean precision over the positives, each at the threshold of its own score; NaN without positives."""
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)  # rows of one score pass a threshold together
    hits = np.cumsum((weights * labels)[order])[last]
    with np.errstate(invalid="ignore"):
        return float(np.sum(np.diff(hits, prepend=0.0) * hits / np.cumsum(weights[order])[last]) / hits[-1])


def _interval_of_precision(value: float, positives: int) -> tuple[float, float]:
    """The 95% interval of an average precision on the scale of its logit.

    K. Boyd, K. H. Eng, C. D. Page, "Area under the precision-recall curve", ECML PKDD 2013.
    """
    if not 0 < value < 1:
        return value, value
    low, high = interval(math.log(value / (1 - value)), 1 / math.sqrt(positives * value * (1 - value)))
    return 1 / (1 + math.exp(-low)), 1 / (1 + math.exp(-high))


def row_scores(metric: str, labels: Array, probabilities: Array) -> Array:
    """A score for each row, more being better, whose mean is the metric but for its sign."""
    p = probabilities.astype(np.float64)
    scores: Array
    if metric == "log_loss":
        p = np.clip(p, SMALLEST, 1 - SMALLEST)
        scores = np.where(labels == 1, np.log(p), np.log1p(-p))
    elif metric == "brier":
        scores = -np.square(p - labels)
    else:
        scores = ((p >= 0.5) == (labels == 1)).astype(np.float64)
    return scores
