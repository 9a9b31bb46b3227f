"""User-defined metrics: functions of labels, predictions and weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.metrics.metrics import Array, even_weights
from airflow_hops.ml.step.context import resolve

_DIRECTIONS = {"higher": True, "lower": False}


@dataclass(frozen=True)
class CustomMetric:
    """User-defined metric.

    Attributes:
        function: Takes labels ``[rows]`` (class numbers, or values), predictions (``[rows]``, or with several classes
            ``[rows, classes]``) and weights ``[rows]`` (1 if rows have none), and returns a number.
    """

    name: str
    function: Callable[[Array, Array, Array], float]
    higher_is_better: bool

    def value(self, labels: Array, predictions: Array, weights: Array | None = None) -> float:
        """Computes the metric; NaN if it is not defined.

        Raises:
            BadInput: the function fails, or does not return a number, or returns an infinite one.
        """
        try:
            result = float(self.function(labels, predictions, even_weights(weights, len(labels))))
        except Exception as error:  # user code can fail in any way
            raise BadInput(
                f"metrics: {self.name!r} failed on {len(labels)} rows ({type(error).__name__}: {error})"
            ) from error
        if math.isinf(result):
            raise BadInput(
                f"metrics: {self.name!r} is {result} on {len(labels)} rows, expected a finite number, or NaN where it "
                "is not defined"
            )
        return result


def custom_metrics(given: Mapping[str, Sequence[str]] | None, taken: Collection[str]) -> dict[str, CustomMetric]:
    """Resolves the entries of ``metrics``.

    Args:
        given: By name ``module:function``, and whether ``lower`` or ``higher`` is better.
        taken: Names of the existing figures.

    Raises:
        BadInput: an entry has another form, its name is taken, or the function does not exist.
    """
    results = {}
    for name, entry in (given or {}).items():
        if isinstance(entry, str) or len(entry) != 2 or entry[1] not in _DIRECTIONS:
            raise BadInput(
                f"metrics: {name!r} is {entry!r}; expected its function and whether 'lower' or 'higher' is better, as "
                "in ('flights.metrics:cost', 'lower')"
            )
        if not name.isidentifier() or name in taken or name.endswith(("_low", "_high")):
            raise BadInput(f"metrics: {name!r} is already used, or not a plain name; give the metric another name")
        results[name] = CustomMetric(name, resolve(entry[0]), _DIRECTIONS[entry[1]])
    return results


def values_of(
    metrics: Mapping[str, CustomMetric], labels: Array, predictions: Array, weights: Array | None
) -> dict[str, float | None]:
    """Computes all metrics on some rows; None if one is not defined."""
    results = {name: metric.value(labels, predictions, weights) for name, metric in metrics.items() if len(labels)}
    return {name: results[name] if math.isfinite(results.get(name, math.nan)) else None for name in metrics}
