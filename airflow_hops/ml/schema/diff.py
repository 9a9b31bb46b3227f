"""Compares two schemas by feature, in a form for people to approve."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import Message

from airflow_hops.core.schema.changes import Change, changes_of, few
from airflow_hops.core.schema.page import Aspect
from airflow_hops.ml.schema_files import load_schema

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+|~&:])")


@dataclass(frozen=True)
class SchemaDiff:
    """Differences between two schemas; false if there are none."""

    changes: tuple[Change, ...]

    def __bool__(self) -> bool:
        return bool(self.changes)

    def __str__(self) -> str:
        return "\n".join(map(str, self.changes))

    def to_markdown(self, *, limit: int = 100) -> str:
        """Lists up to ``limit`` differences in Markdown, with text from the data escaped, and a count of the rest."""
        lines = [f"- **{_escaped(c.feature or 'schema')}**: {_escaped(c.text)}" for c in self.changes[:limit]]
        if len(self.changes) > limit:
            lines.append(f"- and {len(self.changes) - limit} more")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Returns the differences as JSON: ``changes``, a list of :class:`Change`, and ``text``."""
        return {"changes": [asdict(change) for change in self.changes], "text": str(self)}


def diff_schemas(before: object, after: object) -> SchemaDiff:
    """Compares two schemas by their meaning: the order of features and of a domain's values is ignored.

    Args:
        before: ``Schema``, or the path of a ``schema.pbtxt``.
        after: The same.

    Returns:
        The differences in the schema as a whole, then in each feature in the order of ``before``, with new ones last.

    Raises:
        BadInput: a file is missing or does not parse.
    """
    return SchemaDiff(tuple(changes_of(describe_schema(before), describe_schema(after))))


def describe_schema(given: Any) -> dict[str, dict[str, Aspect]]:
    """Returns the aspects of each feature by name, and of the schema as a whole under the empty name."""
    schema = load_schema(given) if isinstance(given, str | Path) else given
    domains = {domain.name: domain for domain in schema.string_domain}
    features: dict[str, dict[str, Aspect]] = {}
    used: set[str] = set()
    for name, feature in flat_features(schema.feature):
        features[name] = _feature_aspects(feature, domains)
        used.add(feature.domain)
    return {"": _schema_aspects(schema, domains.keys() - used), **features}


def flat_features(features: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields features with their names; a struct's features follow it, with dotted names."""
    for feature in features:
        name = f"{prefix}{feature.name}"
        yield name, feature
        yield from flat_features(feature.struct_domain.feature, f"{name}.")


def _schema_aspects(schema: Any, unused_domains: set[str]) -> dict[str, Aspect]:
    aspects: dict[str, Aspect] = {}
    for field, value in schema.ListFields():
        if field.name == "default_environment":
            aspects["environments"] = _names(value)
        elif field.name == "string_domain":
            for domain in value:
                if domain.name in unused_domains:
                    aspects[f"unused string_domain {domain.name!r}"] = _domain(domain)
        elif field.name in ("sparse_feature", "weighted_feature", "int_domain", "float_domain"):
            for item in value:
                aspects[f"{field.name} {item.name!r}"] = _as_text(item)
        elif field.name == "tensor_representation_group":
            for name in sorted(value):
                aspects[f"{field.name} {name!r}"] = _as_text(value[name])
        elif field.name != "feature":
            aspects[field.name] = _as_text(value)
    return aspects


def _feature_aspects(feature: Any, domains: dict[str, object]) -> dict[str, Aspect]:
    aspects: dict[str, Aspect] = {}
    for field, value in feature.ListFields():
        match field.name:
            case "name" | "struct_domain":
                pass
            case "type" | "lifecycle_stage":
                name = field.enum_type.values_by_number[value].name
                aspects[field.name] = Aspect(name, name)
            case "presence":
                aspects["presence"] = _presence(value)
            case "value_count":
                aspects["values per row"] = _bounds(value)
            case "domain" | "string_domain":
                # TFDV 1.16: ignores a domain that is not defined.
                aspects |= _domain_aspects(domains.get(value) if field.name == "domain" else value, value)
            case "int_domain" | "float_domain":
                aspects["range"] = _bounds(value)
                aspects |= _rest(field.name, value, "name", "min", "max")
            case "in_environment" | "not_in_environment":
                aspects[field.name] = _names(value)
            case "drift_comparator" | "skew_comparator":
                aspects[field.name] = _comparator(value)
            case _:
                aspects[field.name] = _as_text(value)
    return aspects


def _domain_aspects(domain: object, name: object) -> dict[str, Aspect]:
    if domain is None:
        return {"domain": Aspect([], f"{name!r}, which is not defined")}
    return {"domain": _domain(domain), **_rest("string_domain", domain, "name", "value")}


def _domain(domain: Any) -> Aspect:
    values = sorted(set(domain.value))
    return Aspect(values, f"{len(values)} value{'s' * (len(values) != 1)} ({few(values)})")


def _presence(presence: Any) -> Aspect:
    value = {"min_fraction": presence.min_fraction, "min_count": presence.min_count}
    share = f"in at least {_number(100 * presence.min_fraction)}% of the rows" if presence.min_fraction else ""
    count = f"at least {presence.min_count} times" if presence.min_count > 1 or not share else ""
    return Aspect(value, ", ".join(part for part in (share, count) if part))


def _bounds(message: Any) -> Aspect:
    """Describes the optional ``min`` and ``max`` of a ValueCount, an IntDomain or a FloatDomain."""
    low: Any = message.min if message.HasField("min") else None
    high: Any = message.max if message.HasField("max") else None
    if low is not None and high is not None:
        phrase = _number(low) if low == high else f"{_number(low)} to {_number(high)}"
    elif low is None and high is None:
        phrase = "any"
    else:
        phrase = f"at most {_number(high)}" if low is None else f"at least {_number(low)}"
    # JSON has no infinity.
    return Aspect({"min": _json_number(low), "max": _json_number(high)}, phrase)


def _comparator(comparator: Any) -> Aspect:
    value = {field.name: measure.threshold for field, measure in comparator.ListFields()}
    return Aspect(value, ", ".join(f"{name} {_number(threshold)}" for name, threshold in value.items()) or "distance")


def _names(values: Any) -> Aspect:
    return Aspect(sorted(values), ", ".join(sorted(values)))


def _rest(name: str, message: Any, *known: str) -> dict[str, Aspect]:
    """Returns the part of a message besides the fields that are described in words."""
    rest = type(message)()
    rest.CopyFrom(message)
    for field in known:
        rest.ClearField(field)
    return {name: _as_text(rest)} if rest.ListFields() else {}


def _as_text(value: Any) -> Aspect:
    if isinstance(value, Message):
        text = text_format.MessageToString(value, as_one_line=True, as_utf8=True)
    elif isinstance(value, bool | int | float | str):
        text = str(value)
    else:
        text = "; ".join(_as_text(item).phrase for item in value)
    return Aspect(text, f"{{{text}}}" if isinstance(value, Message) else text)


def _number(value: float) -> str:
    # A FloatDomain's bounds are float32, which has seven digits.
    return str(value) if isinstance(value, int) else f"{value:.7g}"


def _json_number(value: float | None) -> float | str | None:
    return value if value is None or isinstance(value, int) or abs(value) < float("inf") else str(value)


def _escaped(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", text)
