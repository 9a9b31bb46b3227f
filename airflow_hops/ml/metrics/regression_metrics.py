"""Metrics of a model that predicts a number, and the paired comparison of two on the same rows. NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from airflow_hops.core.contract.evaluation import Difference
from airflow_hops.ml.metrics.metrics import (
    Array,
    Metrics,
    calibration,
    difference,
    even_weights,
    interval,
    mean_influence,
    resampled_difference,
    spread,
    total_weight,
)

HIGHER_IS_BETTER = {"rmse": False, "mae": False, "r2": True, "median_absolute_error": False}
"""The metrics by which two models can be compared, and in which direction they improve."""

IN_LABELS_UNITS = ("rmse", "mae", "median_absolute_error")

RESIDUAL_QUANTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True, kw_only=True)
class RegressionMetrics(Metrics):
    """Figures of one model on some rows, in the units of the label but for ``r2``.

    Attributes:
        rmse: Root of the mean squared error.
        mae: Mean absolute error.
        r2: Share of the labels' variance that is explained; None if all labels are the same.
        median_absolute_error: Half of the rows (by weight) are predicted no worse.
        mean_prediction: Mean prediction.
        mean_label: Mean label; where it differs from the mean prediction, the model is biased.
        residual_quantiles: Of label less prediction, by percent.
    """

    rmse: float | None = None
    mae: float | None = None
    r2: float | None = None
    median_absolute_error: float | None = None
    mean_prediction: float | None = None
    mean_label: float | None = None
    residual_quantiles: Mapping[str, float] = field(default_factory=dict)


def regression_metrics(
    labels: Array, predictions: Array, weights: Array | None = None, *, detailed: bool = True
) -> RegressionMetrics:
    """The figures of a model.

    Args:
        labels: Shape ``[rows]``.
        predictions: Shape ``[rows]``.
        weights: Of the rows.
        detailed: Whether the calibration is wanted: observed against predicted, by decile.
    """
    rows = len(labels)
    if not rows:
        return RegressionMetrics(rows=0, reason="no rows")
    predictions = predictions.astype(np.float64)
    results = {name: _value_and_influence(name, labels, predictions, weights) for name in ("rmse", "mae", "r2")}
    values = {name: each[0] for name, each in results.items() if each is not None}
    intervals = {
        name: interval(each[0], spread(each[1]), *((-math.inf, 1.0) if name == "r2" else (0.0, math.inf)))
        for name, each in results.items()
        if each is not None
    }
    quantiles = weighted_quantiles(labels - predictions, RESIDUAL_QUANTILES, weights)
    return RegressionMetrics(
        rows=rows,
        weight=total_weight(weights),
        rmse=values["rmse"],
        mae=values["mae"],
        r2=values.get("r2"),
        median_absolute_error=_median_absolute_error(labels, predictions, weights),
        mean_prediction=float(np.average(predictions, weights=weights)),
        mean_label=float(np.average(labels, weights=weights)),
        residual_quantiles={str(percent): v for percent, v in zip(RESIDUAL_QUANTILES, quantiles, strict=True)},
        intervals=intervals,
        calibration=calibration(predictions, labels, weights) if detailed else (),
        reason=None if "r2" in values else f"all {rows} labels are {labels[0]:g}; R² needs labels that differ",
    )


def compare_regressions(
    metric: str, labels: Array, candidate: Array, champion: Array, weights: Array | None = None
) -> Difference | None:
    """A candidate's gain over a champion on the same rows, with its 95% interval.

    The interval is that of the rows' paired influences on the two figures (the delta method); for the median absolute
    error that of resampled rows.

    Args:
        metric: One of :data:`HIGHER_IS_BETTER`.
        labels: Shape ``[rows]``.
        candidate: Its predictions, shape ``[rows]``.
        champion: Its predictions, shape ``[rows]``.
        weights: Of the rows.

    Returns:
        None if the metric is not defined: no rows, or for R² labels that are all the same.
    """
    if not len(labels):
        return None
    if metric == "median_absolute_error":
        return resampled_difference(
            metric,
            lambda y, ours, theirs, w: _median_absolute_error(y, theirs, w) - _median_absolute_error(y, ours, w),
            labels,
            candidate.astype(np.float64),
            champion.astype(np.float64),
            weights,
        )
    mine, theirs = (_value_and_influence(metric, labels, p.astype(np.float64), weights) for p in (candidate, champion))
    if mine is None or theirs is None:
        return None
    sign = 1.0 if HIGHER_IS_BETTER[metric] else -1.0
    return difference(metric, sign * (mine[0] - theirs[0]), spread(mine[1] - theirs[1]))


def weighted_quantiles(values: Array, percents: tuple[int, ...], weights: Array | None) -> list[float]:
    """Quantiles of values: interpolated where rows have no weights, else the least value that reaches the share."""
    if weights is None:
        return [float(value) for value in np.percentile(values, percents)]
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    at = np.searchsorted(reached, np.array(percents) / 100 * reached[-1])
    return [float(value) for value in values[order][np.minimum(at, len(values) - 1)]]


def _median_absolute_error(labels: Array, predictions: Array, weights: Array | None) -> float:
    even = weights is None or bool(np.ptp(weights) == 0)
    return weighted_quantiles(np.abs(labels - predictions), (50,), None if even else weights)[0]


def _value_and_influence(
    metric: str, labels: Array, predictions: Array, weights: Array | None
) -> tuple[float, Array] | None:
    """A figure, and by how much each row moves it."""
    w = even_weights(weights, len(labels))
    errors = labels - predictions
    if metric == "mae":
        return float(np.average(np.abs(errors), weights=w)), mean_influence(np.abs(errors), w)
    mse, influence = float(np.average(np.square(errors), weights=w)), mean_influence(np.square(errors), w)
    if metric == "rmse":
        root = math.sqrt(mse)
        return root, influence / (2 * root) if root else np.zeros(len(labels))
    squares = np.square(labels - np.average(labels, weights=w))
    variance = float(np.average(squares, weights=w))
    if variance == 0:
        return None
    return 1 - mse / variance, (mse / variance * mean_influence(squares, w) - influence) / variance
