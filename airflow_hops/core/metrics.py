"""Metrics by which models are compared and measured, with their ranges and directions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from airflow_hops.core.artifacts.target import BINARY, MULTICLASS, REGRESSION
from airflow_hops.core.errors import BadInput

Interval = tuple[float, float, float]
"""A value, and the lower and upper end of its 95% interval."""

METRICS: Mapping[str, Mapping[str, bool]] = {
    BINARY: {"auc": True, "average_precision": True, "accuracy": True, "log_loss": False, "brier": False},
    MULTICLASS: {
        "log_loss": False, "accuracy": True, "balanced_accuracy": True, "macro_f1": True, "weighted_f1": True,
        "auc": True, "worst_auc": True, "brier": False,
    },
    REGRESSION: {"rmse": False, "mae": False, "r2": True, "median_absolute_error": False},
}  # fmt: skip
"""Metrics by problem, with whether higher values are better; models are compared by the first."""

LOWER_IS_BETTER = frozenset(name for metrics in METRICS.values() for name, higher in metrics.items() if not higher)

RANGES = {
    **{name: (0.0, 1.0) for metrics in METRICS.values() for name in metrics},
    **dict.fromkeys(("rmse", "mae", "median_absolute_error", "log_loss"), (0.0, math.inf)),
    "r2": (-math.inf, 1.0),
    "brier": (0.0, 2.0),
}
"""Range of each metric."""


def worse_by(metric: str, now: Interval, before: Interval) -> Interval:
    """Returns how much worse a metric is than on other, independent rows, with a 95% interval.

    Of each interval the side counts that is towards the other one (G. Y. Zou, A. Donner, "Construction of confidence
    limits about effect measures: a general approach", Statistics in Medicine 27, 2008).
    """
    less, more = (before, now) if metric in LOWER_IS_BETTER else (now, before)
    drop = more[0] - less[0]
    low = math.hypot(more[0] - more[1], less[2] - less[0])
    return drop, drop - low, drop + math.hypot(more[2] - more[0], less[0] - less[1])


def check_minimum_value(metric: str, value: Any, is_custom: bool, where: str = "") -> None:
    """Checks the minimum of a metric; a user-defined one may have any finite value.

    Raises:
        BadInput: it is not a finite number in the metric's range.
    """
    low, high = (-math.inf, math.inf) if is_custom else RANGES[metric]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:
        ends = "" if low == -math.inf and high == math.inf else f", {low:g} to {high:g}"
        ends = {(0.0, math.inf): ", 0 or more", (-math.inf, 1.0): ", 1 or less"}.get((low, high), ends)
        percent = (
            f" ({value:g}% is {value / 100:g})" if is_number and high == 1 and low == 0 and 1 < value <= 100 else ""
        )
        raise BadInput(f"{where}minimum of {metric!r} is {value!r}, expected a finite number{ends}{percent}")
