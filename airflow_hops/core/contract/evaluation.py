"""Result of an evaluation: the report ``evaluation.json``, and the properties of its artifact."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.json_fields import JsonFields, omit_if_none
from airflow_hops.core.contract.properties import BlessingProperties

REPORT_FILE = "evaluation.json"
_RANGES = {
    **dict.fromkeys(("rmse", "mae", "median_absolute_error", "log_loss"), (0.0, math.inf)),
    "r2": (-math.inf, 1.0),
    "brier": (0.0, 2.0),
}
"""Range of a metric; of the others, 0 to 1."""


def check_minimum_value(metric: str, value: Any, is_custom: bool, where: str = "") -> None:
    """Checks the minimum of a metric; a user-defined one may have any finite value.

    Raises:
        BadInput: it is not a finite number in the metric's range.
    """
    low, high = (-math.inf, math.inf) if is_custom else _RANGES.get(metric, (0.0, 1.0))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not low <= value <= high:
        ends = "" if low == -math.inf and high == math.inf else f", {low:g} to {high:g}"
        ends = {(0.0, math.inf): ", 0 or more", (-math.inf, 1.0): ", 1 or less"}.get((low, high), ends)
        percent = (
            f" ({value:g}% is {value / 100:g})" if is_number and high == 1 and low == 0 and 1 < value <= 100 else ""
        )
        raise BadInput(f"{where}minimum of {metric!r} is {value!r}, expected a finite number{ends}{percent}")


@dataclass(frozen=True)
class ModelReference(JsonFields):
    """A model that was evaluated; ``version`` is a champion's."""

    uri: str = ""
    fingerprint: str = ""
    version: int | None = omit_if_none()


@dataclass(frozen=True)
class EvaluationProperties(BlessingProperties):
    """Properties of an ``evaluation``. A blessing is for this name, this candidate and this champion only.

    Attributes:
        champion: The champion that the candidate was compared with; None if there was none.
        model_name: Name under which the model is served; None in evaluations of older versions.
    """

    candidate: ModelReference = field(default_factory=ModelReference)
    champion: ModelReference | None = None
    model_name: str | None = omit_if_none()


@dataclass(frozen=True)
class Difference(JsonFields):
    """A candidate's gain over a champion on the same rows; positive is better for every metric.

    Attributes:
        low: Lower end of the 95% interval.
        high: Upper end of the 95% interval.
    """

    metric: str
    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class Figures(JsonFields):
    """The metrics on some rows.

    Attributes:
        rows: Number of rows.
        candidate: Metrics of the candidate by name; lists for several classes.
        champion: The same for the champion; None if there was none.
        gain: Difference in the metric of the comparison; None without a champion or without the metric.
        value: For a slice: the value of its rows.
        slices: For a split: by feature, the metrics of the rows with each of its values.
    """

    rows: int
    candidate: Mapping[str, Any]
    champion: Mapping[str, Any] | None = None
    gain: Difference | None = None
    value: str | None = omit_if_none()
    slices: Mapping[str, tuple[Figures, ...]] | None = omit_if_none()


@dataclass(frozen=True)
class LabelReport(JsonFields):
    """The evaluation of a further label.

    Attributes:
        rule: Requirements on the candidate; ``metric`` is the metric to show.
        splits: Metrics on each split, in the order of the arguments.
    """

    problem: str
    rule: Mapping[str, Any]
    splits: Mapping[str, Figures]


@dataclass(frozen=True)
class EvaluationReport(EvaluationProperties):
    """The content of ``evaluation.json``.

    Attributes:
        rule: Requirements on the candidate; ``metric`` is the metric of the comparison.
        splits: Metrics on each split, in the order of the arguments.
        problem: Kind of problem; None in reports of older versions.
        label: Name of the label's column.
        more_labels: Evaluations of further labels, by column.
    """

    rule: Mapping[str, Any] = field(default_factory=dict)
    splits: Mapping[str, Figures] = field(kw_only=True)
    problem: str | None = omit_if_none()
    label: str | None = omit_if_none()
    more_labels: Mapping[str, LabelReport] | None = omit_if_none()

    @property
    def metric(self) -> str:
        """Returns the metric by which candidate and champion are compared."""
        return str(self.rule["metric"])

    @property
    def properties(self) -> EvaluationProperties:
        """Returns the properties of the artifact."""
        return EvaluationProperties(self.blessed, self.reasons, self.candidate, self.champion, self.model_name)
