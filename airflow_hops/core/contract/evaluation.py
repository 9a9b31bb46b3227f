"""The result of an evaluation: the report ``evaluation.json``, and the properties of its artifact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_hops.core.contract.json_fields import JsonFields, omit_if_none
from airflow_hops.core.contract.properties import BlessingProperties

REPORT_FILE = "evaluation.json"


@dataclass(frozen=True)
class ModelReference(JsonFields):
    """A model that was evaluated.

    Attributes:
        uri: URI of the model artifact.
        fingerprint: Its fingerprint.
        version: Version of a champion.
    """

    uri: str = ""
    fingerprint: str = ""
    version: int | None = omit_if_none()


@dataclass(frozen=True)
class EvaluationProperties(BlessingProperties):
    """Properties of an ``evaluation``.

    Attributes:
        candidate: The model.
        champion: The champion at the time, with which it was compared; None if there was none.
    """

    candidate: ModelReference = field(default_factory=ModelReference)
    champion: ModelReference | None = None


@dataclass(frozen=True)
class Difference(JsonFields):
    """A candidate's gain over a champion on the same rows; positive is better, whatever the metric.

    Attributes:
        metric: The metric.
        difference: Candidate's gain over the champion.
        low: Lower end of its 95% interval.
        high: Upper end.
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
        candidate: Metrics of the candidate by name; with several classes also lists.
        champion: The same for the champion; None if there was none.
        gain: Difference in the metric of the comparison; None if there is no champion, or no such metric.
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
        problem: What the model predicts.
        rule: Requirements on the candidate; ``metric`` is the metric to show.
        splits: Metrics on each split, in the given order.
    """

    problem: str
    rule: Mapping[str, Any]
    splits: Mapping[str, Figures]


@dataclass(frozen=True)
class EvaluationReport(EvaluationProperties):
    """The content of ``evaluation.json``.

    Attributes:
        model_name: Name under which the model is served.
        rule: Requirements on the candidate; ``metric`` is the metric of the comparison.
        splits: Metrics on each split, in the given order.
        problem: The kind of problem; None in reports of older versions.
        label: Name of the label's column.
        more_labels: Evaluations of further labels, by column.
    """

    model_name: str = ""
    rule: Mapping[str, Any] = field(default_factory=dict)
    splits: Mapping[str, Figures] = field(kw_only=True)
    problem: str | None = omit_if_none()
    label: str | None = omit_if_none()
    more_labels: Mapping[str, LabelReport] | None = omit_if_none()

    @property
    def metric(self) -> str:
        """The metric by which candidate and champion are compared."""
        return str(self.rule["metric"])

    @property
    def properties(self) -> EvaluationProperties:
        """The part of it that is in the artifact's properties."""
        return EvaluationProperties(self.blessed, self.reasons, self.candidate, self.champion)
