"""Description of a schema for the pages, which a step writes: ``pages/<SHA-256 of the text>.json`` of a frozen schema.

A validation writes that of the schema that it proposes, ``proposed_page.json``, which an approval copies there, and the
differences, ``proposed_changes.json`` (:class:`~airflow_hops.core.schema.changes.SchemaComparison`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_hops.core.errors import UnreadableText
from airflow_hops.core.json_fields import JsonFields
from airflow_hops.core.store.artifact_store import ArtifactStore

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


def read_page(store: ArtifactStore, uri: str, text: str) -> SchemaPage | None:
    """Returns the description of a text of the schema at ``uri``; None if no step has written it.

    Raises:
        UnreadableText: the file is not a description.
    """
    try:
        return SchemaPage.from_dict(store.read_json(_uri(uri, text)))
    except FileNotFoundError:
        return None
    except TypeError as error:
        raise UnreadableText(_uri(uri, text), f": not the description of a schema ({error}); remove it") from error


def has_page(store: ArtifactStore, uri: str, text: str) -> bool:
    """Returns whether a step has described a text of the schema at ``uri``."""
    return store.files.exists(_uri(uri, text))


def write_page(store: ArtifactStore, uri: str, text: str, page: str) -> None:
    """Writes the description of a text of the schema at ``uri``; ``page`` is JSON of a ``SchemaPage``."""
    store.write_text(_uri(uri, text), page)


def _uri(uri: str, text: str) -> str:
    return f"{uri.rpartition('/')[0]}/pages/{hashlib.sha256(text.encode()).hexdigest()}.json"
