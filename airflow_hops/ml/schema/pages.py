"""Describes schemas for the pages (:mod:`airflow_hops.core.schema.page`)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from airflow_hops.core.schema.page import (
    Aspect,
    FeatureDomain,
    SchemaConstraint,
    SchemaDetail,
    SchemaFeature,
    SchemaFeatureDetail,
    SchemaPage,
    has_page,
    write_page,
)
from airflow_hops.core.skew import SkewTest
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.schema.comparators import DISTANCE, distance_of
from airflow_hops.ml.schema.diff import describe_schema, flat_features

_FEW_VALUES = 8
_MAX_VALUES = 10_000
_MAX_TEXT = 500_000
_IN_COLUMNS = {
    "type",
    "presence",
    "values per row",
    "shape",
    "domain",
    "range",
    "in_environment",
    "not_in_environment",
    "drift_comparator",
    "skew_comparator",
    "deprecated",
}
"""Aspects with their own fields in a described feature; all others are listed as constraints."""


def describe_page(schema: Any) -> SchemaPage:
    """Describes a ``Schema`` for the pages."""
    aspects = describe_schema(schema)
    domains = {domain.name: domain for domain in schema.string_domain}
    environments = list(schema.default_environment)
    features = dict(flat_features(schema.feature))
    detail = SchemaDetail(
        features=[_feature(name, each, aspects[name], domains, environments) for name, each in features.items()],
        environments=environments,
        constraints=[
            SchemaConstraint(name, aspect.phrase) for name, aspect in aspects[""].items() if name != "environments"
        ],
    )
    return SchemaPage(detail, {name: _in_full(each, domains) for name, each in features.items()}, aspects)


def write_schema_page(store: ArtifactStore, uri: str, text: str, schema: object) -> None:
    """Writes the description of a text of the frozen schema at ``uri``, unless it is there."""
    if not has_page(store, uri, text):
        write_page(store, uri, text, json.dumps(describe_page(schema).to_dict()))


def _in_full(feature: Any, domains: Mapping[str, object]) -> SchemaFeatureDetail:
    part = schema_pb2.Schema()
    part.feature.add().CopyFrom(feature)
    domain = _string_domain(feature, domains)
    if domain is not None and feature.domain:
        part.string_domain.add().CopyFrom(domain)
    values = list(domain.value) if domain is not None else []
    text = text_format.MessageToString(part, as_utf8=True)
    return SchemaFeatureDetail(values[:_MAX_VALUES], text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + "…")


def _feature(
    name: str, feature: Any, aspects: Mapping[str, Aspect], domains: Mapping[str, object], environments: Sequence[str]
) -> SchemaFeature:
    phrases = {aspect: fact.phrase for aspect, fact in aspects.items()}
    named = dict.fromkeys([*environments, *feature.in_environment])
    return SchemaFeature(
        name=name,
        type=schema_pb2.FeatureType.Name(feature.type),
        deprecated=feature.deprecated,
        required=feature.presence.min_fraction >= 1,
        presence=phrases.get("presence", ""),
        min_fraction=feature.presence.min_fraction,
        values_per_row=phrases.get("values per row", ""),
        shape=[dim.size for dim in feature.shape.dim] if feature.HasField("shape") else None,
        environments=[each for each in named if each not in feature.not_in_environment],
        domain=_domain(feature, phrases, domains),
        drift=_thresholds(feature, "drift_comparator"),
        skew=_thresholds(feature, "skew_comparator"),
        constraints=[SchemaConstraint(*each) for each in phrases.items() if each[0] not in _IN_COLUMNS],
    )


def _domain(feature: Any, phrases: Mapping[str, str], domains: Mapping[str, object]) -> FeatureDomain | None:
    field = feature.WhichOneof("domain_info")
    if field is None or field == "struct_domain":
        return None
    if field in ("domain", "string_domain"):
        domain = _string_domain(feature, domains)
        values = [] if domain is None else list(domain.value)
        return FeatureDomain("strings", phrases["domain"], len(values), tuple(values[:_FEW_VALUES]))
    if field in ("int_domain", "float_domain"):
        bounds = getattr(feature, field)
        low, high = (getattr(bounds, side) if bounds.HasField(side) else None for side in ("min", "max"))
        return FeatureDomain("range", phrases["range"], low=_finite(low), high=_finite(high))
    return FeatureDomain(field.removesuffix("_domain"), phrases[field])


def _string_domain(feature: Any, domains: Mapping[str, object]) -> Any:
    if feature.WhichOneof("domain_info") == "string_domain":
        return feature.string_domain
    return domains.get(feature.domain) if feature.domain else None


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


def _thresholds(feature: Any, name: str) -> dict[str, float]:
    if not feature.HasField(name):
        return {}
    tfdv = {field.name: measure.threshold for field, measure in getattr(feature, name).ListFields()}
    threshold = distance_of(feature)
    return tfdv or {DISTANCE: SkewTest.threshold if threshold is None else threshold}
