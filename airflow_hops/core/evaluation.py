"""Result of an evaluation: the report ``evaluation.json``, and the properties of its artifact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_hops.core.artifacts.properties import BlessingProperties
from airflow_hops.core.json_fields import JsonFields, omit_if_none

REPORT_FILE = "evaluation.json"


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
