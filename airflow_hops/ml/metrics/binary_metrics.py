"""Metrics of a binary classifier."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from airflow_hops.ml.metrics.metrics import (
    Array,
    Estimate,
    Metrics,
    Sample,
    area_under_roc,
    calibration,
    estimate,
    even_weights,
    interval,
    paired_difference,
    total_weight,
    values_and_intervals,
)

SMALLEST = 1e-7
"""Least distance of probabilities from 0 and 1 in a logarithm (float32's resolution near 1)."""

_BOUNDS = {"auc": (0.0, 1.0), "accuracy": (0.0, 1.0), "log_loss": (0.0, math.inf), "brier": (0.0, 1.0)}


@dataclass(frozen=True, kw_only=True)
class BinaryMetrics(Metrics):
    """Figures of a model of two classes on some rows.

    Attributes:
        positives: Rows whose label is 1.
        auc: Area under the ROC curve, exact (by ranks, ties count half), with DeLong's interval; None if there is only
            one class.
        average_precision: Mean precision over the positives, each at its own threshold; by guessing, the share of
            positives. None if there is only one class.
        log_loss: Mean negative log-likelihood, in nats.
        brier: Mean squared error of the probability.
        accuracy: Share of correct rows at a threshold of 0.5, with Wilson's interval.
        mean_label: Share of positives; a model with another mean probability is not calibrated.
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
    labels: Array,
    probabilities: Array,
    weights: Array | None = None,
    *,
    copies: Array | None = None,
    detailed: bool = True,
) -> BinaryMetrics:
    """Computes the figures of a model.

    Args:
        labels: 0 or 1, ``[rows]``.
        probabilities: Probability of label 1, ``[rows]``.
        weights: Weights of the rows.
        copies: Equal numbers for rows that are copies of each other; None if there are none.
        detailed: Whether to include the calibration and the gain over a constant.
    """
    rows, positives = len(labels), int(np.sum(labels))
    if not rows:
        return BinaryMetrics(rows=0, reason="no rows")
    p, sample = probabilities.astype(np.float64), Sample(weights, labels, copies)
    estimates = {name: binary_estimate(name, labels, p, weights) for name in _BOUNDS}
    values, intervals = values_and_intervals(estimates, _BOUNDS, sample)
    precision = reason = over_constant = None
    if "auc" in values:
        precision = average_precision(labels, p, even_weights(weights, rows))
        hits, others = sample.effective_classes(rows)[::-1]
        odds = np.average(labels, weights=weights) / np.average(1 - labels, weights=weights)
        intervals["average_precision"] = _interval_of_precision(precision, min(hits, others * odds))
        constant = np.full(rows, np.average(labels, weights=weights))
        mine, theirs = (_log_loss(labels, each, weights) for each in (p, constant))
        over_constant = paired_difference("log_loss", mine, theirs, -1.0, sample) if detailed else None
    else:
        reason = f"all {rows} labels are {int(labels[0])}; the AUC needs both classes"
    return BinaryMetrics(
        rows=rows,
        weight=total_weight(weights),
        positives=positives,
        average_precision=precision,
        **values,
        mean_prediction=float(np.average(p, weights=weights)),
        mean_label=float(np.average(labels, weights=weights)),
        intervals=intervals,
        over_constant=over_constant,
        calibration=calibration(p, labels, weights) if detailed else (),
        reason=reason,
    )


def binary_estimate(metric: str, labels: Array, probabilities: Array, weights: Array | None) -> Estimate | None:
    """Computes a figure of a model by name; None for the AUC if there is only one class."""
    p = probabilities.astype(np.float64)
    if metric == "auc":
        return area_under_roc(labels == 1, p, weights) if 0 < np.sum(labels) < len(labels) else None
    if metric == "log_loss":
        return _log_loss(labels, p, weights)
    return estimate(np.square(p - labels) if metric == "brier" else (p >= 0.5) == (labels == 1), weights)


def _log_loss(labels: Array, probabilities: Array, weights: Array | None) -> Estimate:
    p = np.clip(probabilities, SMALLEST, 1 - SMALLEST)
    return estimate(-np.where(labels == 1, np.log(p), np.log1p(-p)), weights)


def average_precision(labels: Array, scores: Array, weights: Array) -> float:
    """Computes the mean precision over the positives, each at its own threshold; NaN if there is only one class."""
    if not 0 < np.sum(labels) < len(labels):
        return math.nan
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)  # rows of one score pass a threshold together
    hits = np.cumsum((weights * labels)[order])[last]
    return float(np.sum(np.diff(hits, prepend=0.0) * hits / np.cumsum(weights[order])[last]) / hits[-1])


def _interval_of_precision(value: float, positives: float) -> tuple[float, float]:
    """Returns the 95% interval of an average precision on the logit scale.

    ``positives`` are those of even rows that would tell as much, of both classes.

    K. Boyd, K. H. Eng, C. D. Page, "Area under the precision-recall curve", ECML PKDD 2013.
    """
    if not 0 < value < 1:
        return value, value
    information = positives * value * (1 - value)
    low, high = interval(math.log(value / (1 - value)), 1 / math.sqrt(information) if information else math.inf)
    return (1 + math.tanh(low / 2)) / 2, (1 + math.tanh(high / 2)) / 2  # of a rare class, exp() would overflow
