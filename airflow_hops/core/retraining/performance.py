"""Condition that a model performs worse than before, by labels that arrive later."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import ClassVar

from airflow_hops.core.errors import BadInput
from airflow_hops.core.metrics import LOWER_IS_BETTER, METRICS, check_minimum_value, worse_by
from airflow_hops.core.names import suggestion
from airflow_hops.core.performance import PerformanceProperties
from airflow_hops.core.retraining.conditions import Condition, Finding, Memory
from airflow_hops.core.retraining.situation import Situation
from airflow_hops.core.times import as_utc

_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Performance(Condition):
    """Holds if a metric of the champion is worse than at training, or than a limit, by more than chance.

    ``PerformanceOperator`` measures the metric over its window on labels that arrive later; the finding names that
    time. The test uses 95% intervals: that of the drop must be above ``drop``, or that of the metric beyond
    ``minimum``. So one in forty measurements is a false alarm if the true value is at the limit, and fewer if it is
    within the limit; overlapping windows share their random errors.

    If the condition cannot be evaluated (the measurement failed, no labels arrive, the baseline of ``drop`` is gone),
    and no other condition requests a retraining, the decision's ``why`` is "monitor".

    Attributes:
        metric: The metric: ``auc``, ``log_loss``, ``rmse`` and so on.
        drop: Tolerated decrease from the held-out split of its training, in the metric's unit; None for any.
        minimum: Minimum value (for a loss, the maximum); None for any.
        window: Window of the measurement; None for that of ``PerformanceOperator``.
            :func:`~airflow_hops.operators.retraining_loop` passes it to its measurement.
        estimates: Whether an estimate is used if there are too few labels. It cannot detect concept drift.

    Raises:
        BadInput: neither limit is set, ``drop`` is below 0, or the metric cannot be ``minimum``; or, when checked,
            there is no measurement, or it has another metric or window.
    """

    metric: str
    drop: float | None = None
    minimum: float | None = None
    window: timedelta | None = None
    estimates: bool = False
    kind: ClassVar[str] = "performance"

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise BadInput(f"Performance: metric is {self.metric!r}, expected the name of a metric")
        if self.drop is None and self.minimum is None:
            raise BadInput("Performance: drop and minimum are None, expected at least one of them")
        self._number(least=0, drop=self.drop)
        self._number(minimum=self.minimum)
        if self.minimum is not None:
            is_known = any(self.metric in names for names in METRICS.values())
            check_minimum_value(self.metric, self.minimum, not is_known, "Performance: ")
        self._flag(estimates=self.estimates)
        if self.window is not None:
            self._duration(window=self.window)

    def check(self, situation: Situation, memory: Memory) -> Finding:
        """Returns whether the condition holds; see :meth:`Condition.check`."""
        if situation.unmeasured:
            return replace(self._found(False, situation.unmeasured), blind=True)
        if situation.measured is None:
            raise BadInput(
                "policy: Performance needs a measurement; give RequestRetrainingOperator performance=, or "
                "retraining_loop performance={…}, the arguments of a PerformanceOperator"
            )
        measured = PerformanceProperties.of(situation.measured)
        number = situation.skew.reference.version
        result = None if number is None else measured.of_version(number)
        if result is None:
            return self._found(False, f"version {number} has answered nothing that is measured")
        known = {**(result.baseline or {}), **result.estimates, **result.figures}
        if known and self.metric not in known:
            raise BadInput(
                f"policy: Performance names the metric {self.metric!r}; measured are "
                f"{', '.join(known)}{suggestion(self.metric, tuple(known))}"
            )
        start, end = as_utc(result.start), as_utc(result.end)
        if self.window is not None and end - start != self.window:
            raise BadInput(
                f"policy: the window of Performance is {self.window / _DAY:g} days, but {(end - start) / _DAY:g} days "
                f"were measured, from {result.start} to {result.end}; give PerformanceOperator the same window, or "
                "leave out that of Performance"
            )
        over = f"from {start:%Y-%m-%d} to {end:%Y-%m-%d}"
        is_estimate = self.estimates and not result.figures and self.metric in result.estimates
        figure = (result.estimates if is_estimate else result.figures).get(self.metric)
        unwell = (not is_estimate and bool(measured.unwell)) or None
        if figure is None:
            text = f"{self.metric} is not known: {result.labelled:,} of {result.rows:,} predictions {over} have labels"
            text += "".join(f"; {each}" for each in measured.unwell)
            return replace(self._found(False, text, rows=result.rows, labelled=result.labelled), blind=unwell)
        baseline = (result.baseline or {}).get(self.metric)
        value, low, high = figure
        numbers = {"value": value, "low": low, "high": high, "rows": result.rows, "labelled": result.labelled}
        text = f"{self.metric} {over} is {'estimated as ' * is_estimate}{value:.4g} ({low:.4g} to {high:.4g})"
        report = "".join(f"; {each}" for each in measured.unwell)
        held = False
        if self.minimum is not None:
            held = low > self.minimum if self.metric in LOWER_IS_BETTER else high < self.minimum
            text += f", {'beyond' if held else 'not surely beyond'} the limit of {self.minimum:g}"
        if self.drop is not None and baseline is None:
            text += ", and that of its training is not known: its model or its examples are gone"
            unwell = True
        elif self.drop is not None and baseline is not None:
            drop, least, most = worse_by(self.metric, figure, baseline)
            numbers |= {"drop": drop, "drop_low": least, "drop_high": most, "baseline": baseline[0]}
            held = held or least > self.drop
            word, loss, low, high = ("worse", drop, least, most) if drop > 0 else ("better", -drop, -most, -least)
            allowed = f"{'' if drop > 0 else 'worse by '}{self.drop:g} is allowed"
            text += f", {word} than at training by {loss:.4g} ({low:.4g} to {high:.4g}; {allowed})"
        return replace(self._found(held, text + report, **numbers), blind=unwell)
