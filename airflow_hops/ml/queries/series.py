"""Series of a metric: their best values, and as many points as a screen shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def figures_of(history: Sequence[Any]) -> dict[str, Any]:
    """The last, the smallest and the largest value of MLflow's ``Metric``s, each with its step, and their ``count``.

    What is no number is never smallest or largest.
    """
    ordered = sorted(history, key=lambda metric: (metric.step, metric.timestamp))
    numbers = [metric for metric in ordered if math.isfinite(metric.value)]

    def point(metric: Any) -> dict[str, Any]:
        return {"value": metric.value, "step": metric.step}

    return {
        "last": point(ordered[-1]),
        "min": point(min(numbers, key=lambda metric: metric.value)) if numbers else None,
        "max": point(max(numbers, key=lambda metric: metric.value)) if numbers else None,
        "count": len(ordered),
    }


def thin(history: Sequence[Any], most: int) -> list[Any]:
    """At most so many points of a series, in order: of each stretch the smallest and the largest, and both ends."""
    if len(history) <= most:
        return list(history)
    stretch = math.ceil(2 * len(history) / (most - 2))
    retained = {0, len(history) - 1}
    for first in range(0, len(history), stretch):
        part = [i for i in range(first, min(first + stretch, len(history))) if math.isfinite(history[i].value)]
        if part:
            retained |= {min(part, key=lambda i: history[i].value), max(part, key=lambda i: history[i].value)}
    return [history[index] for index in sorted(retained)]
