"""Dataclasses that are passed on or stored as JSON, possibly for other versions of this package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Self

_WHERE_TOLD = "where told"


def where_told() -> Any:
    """A field that is not written if it is None."""
    return field(default=None, metadata={_WHERE_TOLD: True})


@dataclass(frozen=True)
class JsonFields:
    """A JSON object with known fields; additional fields from a newer version are kept.

    A subclass with fields that are not JSON values converts them in :meth:`from_dict`; values with a ``to_dict`` are
    written with it.

    Attributes:
        more: Fields that this version does not know.
    """

    more: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Reads the JSON object.

        Raises:
            TypeError: a field without a default is missing, or ``value`` is not an object.
        """
        if not isinstance(value, Mapping):
            raise TypeError(f"expected an object, found {value!r}")
        known = _names(cls)  # type: ignore[arg-type]  # a class is hashable, whatever its instances are
        return cls(
            **{name: item for name, item in value.items() if name in known},
            more={name: item for name, item in value.items() if name not in known},
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON object; lists for tuples, strings for the keys of mappings."""
        known = {each: getattr(self, each.name) for each in fields(self) if each.name != "more"}
        told = {each.name: v for each, v in known.items() if v is not None or _WHERE_TOLD not in each.metadata}
        return {**self.more, **{name: as_json(item) for name, item in told.items()}}


@cache
def _names(cls: type[JsonFields]) -> frozenset[str]:
    """Names of the fields that this version knows; asked once, as a study has a record for each of 10,000 trials."""
    return frozenset(each.name for each in fields(cls)) - {"more"}


def as_json(value: Any) -> Any:
    """A value in JSON's own types."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return value


@dataclass(frozen=True)
class StepOptions:
    """The options of a stage: the operator creates them, a step gets them as JSON, and its stage creates them again."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON object, keyword arguments of the step."""
        return {name: as_json(value) for name, value in vars(self).items()}
