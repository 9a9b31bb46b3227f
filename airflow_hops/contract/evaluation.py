"""What an evaluation says of a model: the report ``evaluation.json``, and the properties of its artifact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from airflow_hops.contract.json_fields import JsonFields, where_told
from airflow_hops.contract.properties import BlessingProperties

REPORT_FILE = "evaluation.json"


@dataclass(frozen=True)
class ModelReference(JsonFields):
    """A model that was evaluated.

    Attributes:
        uri: Of the model artifact.
        fingerprint: Its fingerprint.
        version: Of a champion.
    """

    uri: str = ""
    fingerprint: str = ""
    version: int | None = where_told()

    @classmethod
    def or_none(cls, value: Mapping[str, Any] | None) -> Self | None:
        """The reference that a report gives, or None where there is no such model."""
        return cls.from_dict(value) if value else None


@dataclass(frozen=True)
class EvaluationProperties(BlessingProperties):
    """Of ``evaluation``.

    Attributes:
        candidate: The model.
        champion: The champion of then, with which it was compared; None where there was none.
    """

    candidate: ModelReference = field(default_factory=ModelReference)
    champion: ModelReference | None = None

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`."""
        candidate, champion = (ModelReference.or_none(value.get(name)) for name in ("candidate", "champion"))
        return super().from_dict({**value, "candidate": candidate, "champion": champion})


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
    """What was found on some rows.

    Attributes:
        rows: How many they are.
        candidate: Figures of the candidate by name; of several classes also lists.
        champion: The same of the champion; None where there was none.
        gain: By the metric that the two are compared by; None where there is no champion, or no such figure.
        value: Of a slice: the value that its rows have.
        slices: Of a split: by feature, the figures of the rows with each of its values.
    """

    rows: int
    candidate: Mapping[str, Any]
    champion: Mapping[str, Any] | None = None
    gain: Difference | None = None
    value: str | None = where_told()
    slices: Mapping[str, tuple[Figures, ...]] | None = where_told()

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`."""
        gain = Difference.from_dict(value["gain"]) if value.get("gain") else None
        slices = value.get("slices")
        if slices is not None:
            slices = {name: tuple(Figures.from_dict(each) for each in found) for name, found in slices.items()}
        return super().from_dict({**value, "gain": gain, "slices": slices})


@dataclass(frozen=True)
class LabelReport(JsonFields):
    """What was found of a further label.

    Attributes:
        problem: What the model predicts.
        rule: What was asked of the candidate; ``metric`` is what it is shown by.
        splits: What was found on each split, in the order in which they were given.
    """

    problem: str
    rule: Mapping[str, Any] = field(default_factory=dict)
    splits: Mapping[str, Figures] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`."""
        splits = {name: Figures.from_dict(found) for name, found in value["splits"].items()}
        return super().from_dict({**value, "splits": splits})


@dataclass(frozen=True)
class EvaluationReport(EvaluationProperties):
    """What ``evaluation.json`` holds.

    Attributes:
        model_name: Name under which the model is served.
        rule: What was asked of the candidate; ``metric`` is what the two are compared by.
        splits: What was found on each split, in the order in which they were given.
        problem: What the model predicts; None in what was written before there were several kinds.
        label: Name of the label's column.
        more_labels: What was found of further labels, by the names of their columns.
    """

    model_name: str = ""
    rule: Mapping[str, Any] = field(default_factory=dict)
    splits: Mapping[str, Figures] = field(default_factory=dict)
    problem: str | None = where_told()
    label: str | None = where_told()
    more_labels: Mapping[str, LabelReport] | None = where_told()

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`."""
        splits = {name: Figures.from_dict(found) for name, found in value["splits"].items()}
        more = {name: LabelReport.from_dict(found) for name, found in (value.get("more_labels") or {}).items()}
        return super().from_dict({**value, "splits": splits, "more_labels": more or None})

    @property
    def metric(self) -> str:
        """The metric that candidate and champion are compared by."""
        return str(self.rule["metric"])

    @property
    def properties(self) -> EvaluationProperties:
        """What of it stands in the artifact's properties."""
        return EvaluationProperties(self.blessed, self.reasons, self.candidate, self.champion)
