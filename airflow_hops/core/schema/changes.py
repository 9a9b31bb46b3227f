"""Differences between two schemas, aspect by aspect, from their descriptions: ``aspects`` of a :class:`SchemaPage`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from airflow_hops.core.json_fields import JsonFields
from airflow_hops.core.schema.page import Aspect

_FEW_VALUES = 5
_MAX_CHANGED_VALUES = 200
_SUMMARY = ("type", "presence", "values per row", "domain", "range")
"""Aspects that summarize a new feature."""
Aspects = Mapping[str, Mapping[str, Aspect]]


@dataclass(frozen=True)
class Change:
    """Difference between two schemas.

    Attributes:
        feature: Name of the feature, with dots if nested; empty for the schema as a whole.
        aspect: The changed aspect: ``feature`` (added or removed), ``type``, ``presence``, ``values per row``,
            ``shape``, ``domain``, ``range``, or the name of the field of ``Feature`` or ``Schema``.
        before: The old value as JSON, or None.
        after: The new value as JSON, or None.
        text: The change in words.
    """

    feature: str
    aspect: str
    before: Any
    after: Any
    text: str

    def __str__(self) -> str:
        return f"{self.feature or 'schema'}: {self.text}"


@dataclass(frozen=True)
class AspectChange(JsonFields):
    """An aspect of a feature in two schemas, as text; null if a schema does not define it.

    Attributes:
        gained: New values of a domain of strings, 200 at most.
        kept: Number of values in both.
    """

    name: str
    before: str | None
    after: str | None
    changed: bool
    gained: list[str]
    gained_count: int
    lost: list[str]
    lost_count: int
    kept: int


@dataclass(frozen=True)
class FeatureChange(JsonFields):
    """A feature that differs between two schemas, with all its aspects; an empty name means the schema as a whole."""

    name: str
    change: Literal["added", "removed", "changed"]
    texts: list[str]
    aspects: list[AspectChange]


@dataclass(frozen=True)
class SchemaComparison(JsonFields):
    """The features that differ between two schemas, in the order of the first, and the number of the others."""

    features: list[FeatureChange]
    unchanged: int


def changes_of(before: Aspects, after: Aspects) -> Iterator[Change]:
    """Yields the differences in the schema as a whole, then in each feature in the order of ``before``, new ones last.

    The order of features and of a domain's values is ignored.
    """
    for name in dict.fromkeys([*before, *after]):
        yield from _compared(name, before.get(name), after.get(name))


def compare_aspects(before: Aspects, after: Aspects) -> SchemaComparison:
    """Compares two schemas for the pages."""
    texts: dict[str, list[str]] = {}
    for change in changes_of(before, after):
        texts.setdefault(change.feature, []).append(change.text)
    features = []
    for name, phrases in texts.items():
        was, now = before.get(name) or {}, after.get(name) or {}
        kind: Literal["added", "removed", "changed"] = "added" if before.get(name) is None else "removed"
        if name == "" or (was and now):
            kind = "changed"
        aspects = [_aspect(aspect, was.get(aspect), now.get(aspect)) for aspect in dict.fromkeys([*was, *now])]
        features.append(FeatureChange(name, kind, phrases, aspects))
    return SchemaComparison(features, len((before.keys() | after.keys()) - texts.keys() - {""}))


def _compared(name: str, old: Mapping[str, Aspect] | None, new: Mapping[str, Aspect] | None) -> Iterator[Change]:
    if old is None or new is None:
        result = new or old or {}
        value = {aspect: result[aspect].value for aspect in result}
        report = ", ".join(f"{aspect} {result[aspect].phrase}" for aspect in _SUMMARY if aspect in result)
        if old is None:
            yield Change(name, "feature", None, value, f"new feature: {report}" if report else "new feature")
        else:
            yield Change(name, "feature", value, None, "removed")
        return
    for aspect in dict.fromkeys([*old, *new]):
        was, now = old.get(aspect), new.get(aspect)
        if was is not None and now is not None and was.value == now.value:
            continue
        if aspect == "domain" and was is not None and now is not None and was.value and now.value:
            gained, lost = _gained_and_lost(was.value, now.value)
            parts = [f"gains {few(gained)}" if gained else "", f"loses {few(lost)}" if lost else ""]
            text = "domain " + "; ".join(part for part in parts if part)
        else:
            text = f"{aspect} is {now.phrase if now else 'none'}, was {was.phrase if was else 'none'}"
        yield Change(name, aspect, was.value if was else None, now.value if now else None, text)


def _aspect(name: str, was: Aspect | None, now: Aspect | None) -> AspectChange:
    old, new = (side.value if side and name == "domain" else [] for side in (was, now))
    gained, lost = _gained_and_lost(old, new)
    return AspectChange(
        name,
        was.phrase if was else None,
        now.phrase if now else None,
        was is None or now is None or was.value != now.value,
        gained[:_MAX_CHANGED_VALUES],
        len(gained),
        lost[:_MAX_CHANGED_VALUES],
        len(lost),
        len(new) - len(gained),
    )


def _gained_and_lost(old: Sequence[str], new: Sequence[str]) -> tuple[list[str], list[str]]:
    known, still = set(old), set(new)
    return [value for value in new if value not in known], [value for value in old if value not in still]


def few(values: Sequence[str]) -> str:
    """Returns the first values in words."""
    more = f" and {len(values) - _FEW_VALUES} more" if len(values) > _FEW_VALUES else ""
    return ", ".join(repr(value) for value in values[:_FEW_VALUES]) + more
