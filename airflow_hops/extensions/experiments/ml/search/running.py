"""Running trial: its reports so far, and its outcome once its process has ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_hops.extensions.experiments.core.search import TrialRecord
from airflow_hops.extensions.experiments.core.search.study import TrialState
from airflow_hops.ml.training.gang.supervisor import describe_exit
from airflow_hops.ml.training.stage.step import metrics_of


@dataclass
class RunningTrial:
    """Trial that runs. Times are on the monotonic clock, in seconds.

    Attributes:
        output: Folder of its training.
        slot: Number of its slot.
        steps: Steps of which the first metric was reported.
        curves: All reports, by step.
        metrics: Last finite value of each metric.
        ending: State and reason of the request to end; None without a request.
        kill_at: Time at which to kill it, if it is to end.
        result: Summary of its training.
        error: Event of a failed training.
        lacks_metric: Whether it has ended without a metric of the search.
    """

    began: float
    output: Path
    slot: int
    steps: set[int] = field(default_factory=set)
    curves: list[tuple[int, Mapping[str, float]]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    ending: tuple[TrialState, str] | None = None
    kill_at: float | None = None
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None
    lacks_metric: bool = False

    def take(self, step: int, metrics: Mapping[str, float], name: str) -> float | None:
        """Adds a report; returns the named metric's value if it is finite and the first one of that step."""
        self.metrics.update(metrics)
        self.curves.append((step, metrics))
        value = metrics.get(name)
        if value is None or not math.isfinite(value) or step in self.steps or step < 0 or self.ending:
            return None
        self.steps.add(step)
        return value

    def measured(self, metric: str) -> dict[str, float]:
        """Returns the metrics of a finished training; ``metric`` names a single number that the function returned."""
        assert self.result is not None
        return {**self.metrics, **metrics_of(self.result), **returned_numbers(self.result["value"], metric)}

    def outcome(
        self, names: Sequence[str], code: int, measured: Callable[[RunningTrial], dict[str, float]] | None = None
    ) -> tuple[TrialState, str, dict[str, float]]:
        """Returns state, reason if not complete, and the finite metrics if complete.

        Args:
            names: Metrics of the search.
            code: Exit code of its process, or the negative number of a signal.
            measured: Computes the metrics, instead of :meth:`measured`.
        """
        if self.ending is not None:
            return *self.ending, {}
        if self.result is None:
            reason = f"its process was ended by {describe_exit(code)}" if self.error is None else self.error["message"]
            return "failed", reason, {}
        metrics = self.measured(names[0]) if measured is None else measured(self)
        for name in names:
            if name not in metrics:
                self.lacks_metric = True
                known = ", ".join(sorted(metrics)) or "none at all"
                return (
                    "failed",
                    f"metric {name!r} was not reported; reported were: {known}. Report it with context.report(step, "
                    f"{name}=…), return it, or name one of those",
                    {},
                )
            if not math.isfinite(metrics[name]):
                return "failed", f"metric {name!r} is {metrics[name]}, expected a finite number", {}
        return "complete", "", {name: value for name, value in metrics.items() if math.isfinite(value)}


def returned_numbers(value: object, metric: str) -> dict[str, float]:
    """Returns the numbers in a function's result that is not a model; a single number is the metric."""
    values = value if isinstance(value, Mapping) else {metric: value}
    return {n: _as_float(v) for n, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # an integer of more than 308 digits


def described(trial: TrialRecord, metrics: Sequence[str]) -> str:
    """Describes an ended trial in a line, for the log."""
    params = ", ".join(
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in trial.params.items()
    )
    if trial.state == "failed":
        return f"trial {trial.number} failed ({params}): {trial.reason}"
    values = " ".join(f"{n}={v:.5g}" for n, v in zip(metrics, trial.values, strict=False))
    return f"trial {trial.number} {trial.state}: {values or trial.reason} ({params}; {trial.seconds or 0.0:.1f} s)"
