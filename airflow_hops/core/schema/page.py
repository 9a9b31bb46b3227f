"""Description of a schema for the pages, which a step writes: ``pages/<SHA-256 of the text>.json`` of a frozen schema.

A validation writes that of the schema that it proposes, ``proposed_page.json``, which an approval copies there, and the
differences, ``proposed_changes.json`` (:class:`~airflow_hops.core.schema.changes.SchemaComparison`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_hops.core.json_fields import JsonFields

PROPOSED_PAGE, PROPOSED_CHANGES = "proposed_page.json", "proposed_changes.json"


@dataclass(frozen=True)
class Aspect(JsonFields):
    """Aspect of a schema: its value as JSON, to compare, and in words."""

    value: Any
    phrase: str


@dataclass(frozen=True)
class SchemaConstraint(JsonFields):
    """A constraint of a schema, in words."""

    name: str
    text: str


@dataclass(frozen=True)
class FeatureDomain(JsonFields):
    """The values that a feature may have.

    Attributes:
        kind: ``strings``, ``range``, or the kind of domain as the schema names it (``bool``, ``time``, …).
        values: The first values.
    """

    kind: str
    text: str
    size: int | None = None
    values: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class SchemaFeature(JsonFields):
    """A feature of a schema; ``drift`` and ``skew`` are thresholds by measure."""

    name: str
    type: str
    deprecated: bool
    required: bool
    presence: str
    min_fraction: float
    values_per_row: str
    shape: list[int] | None
    environments: list[str]
    domain: FeatureDomain | None
    drift: dict[str, float]
    skew: dict[str, float]
    constraints: list[SchemaConstraint]


@dataclass(frozen=True)
class SchemaDetail(JsonFields):
    """The contents of a schema: features in its order, those of a struct after it."""

    features: list[SchemaFeature]
    environments: list[str]
    constraints: list[SchemaConstraint]


@dataclass(frozen=True)
class SchemaFeatureDetail(JsonFields):
    """A feature of a schema: values of its domain, at most 10,000, and its protobuf text."""

    values: list[str]
    text: str


@dataclass(frozen=True)
class SchemaPage(JsonFields):
    """All that the pages show of a schema.

    Attributes:
        features: Single features in full, by name.
        aspects: Aspects of each feature by name, and of the schema as a whole under the empty name.
    """

    detail: SchemaDetail
    features: Mapping[str, SchemaFeatureDetail] = field(default_factory=dict)
    aspects: Mapping[str, Mapping[str, Aspect]] = field(default_factory=dict)
