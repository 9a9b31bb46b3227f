"""Metrics of a model that predicts a number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from airflow_hops.ml.metrics.metrics import (
    Array,
    Estimate,
    Metrics,
    Sample,
    calibration,
    estimate,
    paired_difference,
    total_weight,
    values_and_intervals,
)

IN_LABELS_UNITS = ("rmse", "mae", "median_absolute_error")

_BOUNDS = {"rmse": (0.0, math.inf), "mae": (0.0, math.inf), "r2": (-math.inf, 1.0)}
RESIDUAL_QUANTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True, kw_only=True)
class RegressionMetrics(Metrics):
    """Figures of a model on some rows, in the units of the label except for ``r2``.

    Attributes:
        rmse: Root of the mean squared error.
        r2: Share of the labels' variance that is explained; None if all labels are the same.
        median_absolute_error: Error that half of the rows (by weight) do not exceed.
        mean_label: Mean label; a model with another mean prediction is biased.
        residual_quantiles: Quantiles of label minus prediction, by percent.
    """

    rmse: float | None = None
    mae: float | None = None
    r2: float | None = None
    median_absolute_error: float | None = None
    mean_prediction: float | None = None
    mean_label: float | None = None
    residual_quantiles: Mapping[str, float] = field(default_factory=dict)


def regression_metrics(
    labels: Array,
    predictions: Array,
    weights: Array | None = None,
    *,
    copies: Array | None = None,
    detailed: bool = True,
) -> RegressionMetrics:
    """Computes the figures of a model.

    Args:
        labels: ``[rows]``.
        predictions: ``[rows]``.
        weights: Weights of the rows.
        copies: Equal numbers for rows that are copies of each other; None if there are none.
        detailed: Whether to include the gain over a constant, and the calibration: observed against predicted, by
            decile.
    """
    rows = len(labels)
    if not rows:
        return RegressionMetrics(rows=0, reason="no rows")
    predictions, sample = predictions.astype(np.float64), Sample(weights, copies=copies)
    estimates = {name: regression_estimate(name, labels, predictions, weights) for name in _BOUNDS}
    values, intervals = values_and_intervals(estimates, _BOUNDS, sample)
    over_constant = None
    if detailed and "r2" in values:
        squares = [np.square(labels - each) for each in (predictions, np.average(labels, weights=weights))]
        scale = np.average(squares[1], weights=weights)
        mine, theirs = (estimate(each / scale, weights) for each in squares)
        over_constant = paired_difference("r2", mine, theirs, -1.0, sample)
    half = 98 / math.sqrt(sample.effective_rows(np.ones(rows)))  # in percent, of order statistics
    if half <= 50:
        ends = weighted_quantiles(np.abs(labels - predictions), (50 - half, 50 + half), weights)
        intervals["median_absolute_error"] = ends[0], ends[1]
    quantiles = weighted_quantiles(labels - predictions, RESIDUAL_QUANTILES, weights)
    return RegressionMetrics(
        rows=rows,
        weight=total_weight(weights),
        **values,
        median_absolute_error=median_absolute_error(labels, predictions, weights),
        mean_prediction=float(np.average(predictions, weights=weights)),
        mean_label=float(np.average(labels, weights=weights)),
        residual_quantiles={str(percent): v for percent, v in zip(RESIDUAL_QUANTILES, quantiles, strict=True)},
        intervals=intervals,
        over_constant=over_constant,
        calibration=calibration(predictions, labels, weights) if detailed else (),
        reason=None if "r2" in values else f"all {rows} labels are {labels[0]:g}; R² needs labels that differ",
    )


def regression_estimate(metric: str, labels: Array, predictions: Array, weights: Array | None) -> Estimate | None:
    """Computes a figure by name, except the median absolute error; None for R² if all labels are the same."""
    errors = labels - predictions.astype(np.float64)
    if metric == "mae":
        return estimate(np.abs(errors), weights)
    mse = estimate(np.square(errors), weights)
    if metric == "rmse":
        root = math.sqrt(mse.value)
        return Estimate(root, mse.influence / (2 * root) if root else np.zeros(len(labels)))
    variance = estimate(np.square(labels - np.average(labels, weights=weights)), weights)
    if np.ptp(labels) == 0 or variance.value == 0:  # the mean of equal labels may be rounded
        return None
    share = mse.value / variance.value
    return Estimate(1 - share, (share * variance.influence - mse.influence) / variance.value)


def weighted_quantiles(values: Array, percents: tuple[float, ...], weights: Array | None) -> list[float]:
    """Returns quantiles of values: interpolated if weights are even, else the smallest value that reaches the share."""
    if weights is None or np.ptp(weights) == 0:
        return [float(value) for value in np.percentile(values, percents)]
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    indices = np.searchsorted(reached, np.array(percents) / 100 * reached[-1])
    return [float(value) for value in values[order][np.minimum(indices, len(values) - 1)]]


def median_absolute_error(labels: Array, predictions: Array, weights: Array | None) -> float:
    """Computes the error that half of the rows, by weight, do not exceed."""
    return weighted_quantiles(np.abs(labels - predictions), (50,), weights)[0]
