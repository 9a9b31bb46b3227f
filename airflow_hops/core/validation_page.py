"""Contents of the page of a validation, which the step writes beside ``anomalies.json``.

``page.json`` is a :class:`ValidationContents`; ``<split>.quarantine.json``, of a split with rows in quarantine, is a
:class:`QuarantinedRows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from airflow_hops.core.json_fields import JsonFields

VALIDATION_PAGE = "page.json"
Severity = Literal["error", "warning"]


def quarantine_page(split: str) -> str:
    """Returns the path of the file with a split's rows in quarantine."""
    return f"{split}.quarantine.json"


@dataclass(frozen=True)
class OffendingValue(JsonFields):
    """A value that violates the schema and its number of rows, or null if the statistics do not contain it."""

    value: str
    rows: int | None


@dataclass(frozen=True)
class AnomalyReason(JsonFields):
    """Why a feature is anomalous.

    Attributes:
        type: TFDV's name.
        rows: Number of affected rows; null if the anomaly does not concern single rows, or the number is unknown.
        is_exact: Whether the rows were counted; otherwise they are estimated from the statistics.
        values: The most frequent offending values.
        quarantined: Rows that were quarantined for it.
    """

    type: str
    summary: str
    description: str
    rows: int | None
    is_exact: bool
    values: list[OffendingValue]
    values_count: int
    quarantined: int


@dataclass(frozen=True)
class AnomalyEntry(JsonFields):
    """An anomaly of a feature in a split; an empty feature name means the data set."""

    split: str
    feature: str
    severity: Severity
    reasons: list[AnomalyReason]


@dataclass(frozen=True)
class MeasuredDistance(JsonFields):
    """A distance that TFDV measured between the data and an earlier span."""

    split: str
    feature: str
    measure: str
    value: float | None
    threshold: float | None


@dataclass(frozen=True)
class ValidationContents(JsonFields):
    """The anomalies of all splits, errors first, and the distances."""

    anomalies: list[AnomalyEntry]
    measures: list[MeasuredDistance]


@dataclass(frozen=True)
class QuarantineReason(JsonFields):
    """A rule that a row violates; ``type`` is TFDV's name of the anomaly."""

    feature: str
    type: str
    text: str


@dataclass(frozen=True)
class QuarantinedRows(JsonFields):
    """Rows that violate the schema, in the order of the source, each with its reasons.

    Attributes:
        total: Rows in quarantine.
        listed: Rows in this file: the first ones, and some of each violated rule.
    """

    columns: list[str]
    rows: list[list[str | None]]
    reasons: list[list[QuarantineReason]]
    total: int
    listed: int
