"""Schemas: a description of each feature, and differences between two schemas.

A schema is passed as text: the client knows which version is meant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from google.protobuf import text_format
from tensorflow_metadata.proto.v0 import schema_pb2

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.skew import SkewTest
from airflow_hops.ml.queries.place import Place
from airflow_hops.ml.schemas.comparators import DISTANCE, distance_of
from airflow_hops.ml.schemas.diff import describe_schema, diff_schemas, flat_features
from airflow_hops.ml.schemas.files import parse_schema

__all__ = ["compare", "describe", "feature"]
_PARSED = 4
"""Number of parsed schemas in the cache."""
_FEW_VALUES = 8
_MAX_VALUES = 10_000
_MAX_CHANGED_VALUES = 200
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


def describe(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the contents of the schema ``text`` (protobuf); ``source`` is its place, for messages.

    Returns:
        ``features``, in the schema's order, those of a struct after it; ``environments``; ``constraints`` of the schema
        as a whole, ``{name, text}`` each.

    Raises:
        BadInput: the text does not parse.
    """
    schema = _parse(params["text"], params["source"])
    aspects = describe_schema(schema)
    domains = {domain.name: domain for domain in schema.string_domain}
    environments = list(schema.default_environment)
    features = [
        _feature(name, result, aspects[name], domains, environments) for name, result in flat_features(schema.feature)
    ]
    whole = aspects[""]
    constraints = [{"name": name, "text": whole[name].phrase} for name in whole if name != "environments"]
    return {"features": features, "environments": environments, "constraints": constraints}


def feature(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a schema's full description of ``feature``; the name of a nested feature has dots.

    ``text`` and ``source`` are as in :func:`describe`.

    Returns:
        ``values``, those of its domain of strings, at most 10,000; ``text``, its part of the protobuf text.

    Raises:
        BadInput: the feature does not exist, or the text does not parse.
    """
    schema = _parse(params["text"], params["source"])
    result = dict(flat_features(schema.feature)).get(params["feature"])
    if result is None:
        raise BadInput(f"feature is {params['feature']!r}, expected one of the schema's {len(schema.feature)}")
    part = type(schema)()
    part.feature.add().CopyFrom(result)
    domain = _string_domain(result, {domain.name: domain for domain in schema.string_domain})
    if domain is not None and result.domain:
        part.string_domain.add().CopyFrom(domain)
    values = list(domain.value) if domain is not None else []
    return {"values": values[:_MAX_VALUES], "text": text_format.MessageToString(part, as_utf8=True)}


def compare(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Compares two schemas, aspect by aspect.

    Args:
        place: Not used.
        params: ``before`` and ``after``, protobuf texts; ``before_source`` and ``after_source``, their places.

    Returns:
        ``features`` that differ, in the order of ``before``, new ones last; the schema as a whole has an empty name.
        Each has ``name``, ``change`` (``added``, ``removed``, ``changed``), ``texts``, the changes in words, and
        ``aspects``, with those that stay the same: ``name``, ``before`` and ``after`` in words or null, ``changed``,
        and for a domain of strings ``gained`` and ``lost`` (200 values at most, their total numbers in ``gained_count``
        and ``lost_count``) and ``kept``, the number of values in both. ``unchanged`` is the number of the other
        features.

    Raises:
        BadInput: a text does not parse.
    """
    schemas = [_parse(params[side], params[f"{side}_source"]) for side in ("before", "after")]
    old, new = map(describe_schema, schemas)
    texts: dict[str, list[str]] = {}
    for change in diff_schemas(*schemas).changes:
        texts.setdefault(change.feature, []).append(change.text)
    features = []
    for name, phrases in texts.items():
        was, now = old.get(name) or {}, new.get(name) or {}
        kind = "changed" if name == "" or (was and now) else "added" if old.get(name) is None else "removed"
        aspects = [_aspect(aspect, was.get(aspect), now.get(aspect)) for aspect in dict.fromkeys([*was, *now])]
        features.append({"name": name, "change": kind, "texts": phrases, "aspects": aspects})
    unchanged = len((old.keys() | new.keys()) - texts.keys() - {""})
    return {"features": features, "unchanged": unchanged}


@lru_cache(_PARSED)
def _parse(text: str, source: str) -> Any:
    """Returns the ``Schema``, which must not be changed; cached, as parsing thousands of features takes a second."""
    return parse_schema(text, source)


def _feature(
    name: str, result: Any, aspects: Mapping[str, Any], domains: Mapping[str, Any], environments: Sequence[str]
) -> dict[str, Any]:
    phrases = {aspect: said.phrase for aspect, said in aspects.items()}
    named = dict.fromkeys([*environments, *result.in_environment])
    return {
        "name": name,
        "type": schema_pb2.FeatureType.Name(result.type),
        "deprecated": result.deprecated,
        "required": result.presence.min_fraction >= 1,
        "presence": phrases.get("presence", ""),
        "min_fraction": result.presence.min_fraction,
        "values_per_row": phrases.get("values per row", ""),
        "shape": [dim.size for dim in result.shape.dim] if result.HasField("shape") else None,
        "environments": [each for each in named if each not in result.not_in_environment],
        "domain": _domain(result, phrases, domains),
        "drift": _thresholds(result, "drift_comparator"),
        "skew": _thresholds(result, "skew_comparator"),
        "constraints": [
            {"name": aspect, "text": phrase} for aspect, phrase in phrases.items() if aspect not in _IN_COLUMNS
        ],
    }


def _domain(result: Any, phrases: Mapping[str, str], domains: Mapping[str, Any]) -> dict[str, Any] | None:
    field = result.WhichOneof("domain_info")
    if field is None or field == "struct_domain":
        return None
    said: dict[str, Any] = {"size": None, "values": [], "low": None, "high": None}
    if field in ("domain", "string_domain"):
        domain = _string_domain(result, domains)
        values = [] if domain is None else list(domain.value)
        return {
            **said,
            "kind": "strings",
            "text": phrases["domain"],
            "size": len(values),
            "values": values[:_FEW_VALUES],
        }
    if field in ("int_domain", "float_domain"):
        bounds = getattr(result, field)
        low, high = (getattr(bounds, side) if bounds.HasField(side) else None for side in ("min", "max"))
        return {**said, "kind": "range", "text": phrases["range"], "low": _finite(low), "high": _finite(high)}
    return {**said, "kind": field.removesuffix("_domain"), "text": phrases[field]}


def _string_domain(result: Any, domains: Mapping[str, Any]) -> Any:
    if result.WhichOneof("domain_info") == "string_domain":
        return result.string_domain
    return domains.get(result.domain) if result.domain else None


def _finite(value: float | None) -> float | None:
    return value if value is None or math.isfinite(value) else None


def _thresholds(result: Any, name: str) -> dict[str, float]:
    if not result.HasField(name):
        return {}
    tfdv = {field.name: measure.threshold for field, measure in getattr(result, name).ListFields()}
    threshold = distance_of(result)
    return tfdv or {DISTANCE: SkewTest.threshold if threshold is None else threshold}


def _aspect(name: str, was: Any, now: Any) -> dict[str, Any]:
    said = {
        "name": name,
        "before": was.phrase if was else None,
        "after": now.phrase if now else None,
        "changed": was is None or now is None or was.value != now.value,
    }
    before, after = (side.value if side and name == "domain" else [] for side in (was, now))
    known, still = set(before), set(after)
    gained, lost = [value for value in after if value not in known], [value for value in before if value not in still]
    return {
        **said,
        "gained": gained[:_MAX_CHANGED_VALUES],
        "gained_count": len(gained),
        "lost": lost[:_MAX_CHANGED_VALUES],
        "lost_count": len(lost),
        "kept": len(known & still),
    }
