"""Dataclasses that are passed on or stored as JSON, possibly for other versions of this package."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

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
        if value.keys() <= known:
            return cls(**value)
        return cls(
            **{name: item for name, item in value.items() if name in known},
            more={name: item for name, item in value.items() if name not in known},
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON object; lists for tuples, strings for the keys of mappings."""
        known = {each: getattr(self, each.name) for each in fields(self) if each.name != "more"}
        told = {each.name: v for each, v in known.items() if v is not None or _WHERE_TOLD not in each.metadata}
        return {**self.more, **{name: as_json(item) for name, item in told.items()}}


@dataclass(frozen=True)
class CheckedFields(JsonFields):
    """A JSON object whose fields must have the types that the class gives them when it is read.

    Of a ``Literal`` the type alone is checked: a newer version may know more values.
    """

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Reads the JSON object.

        Raises:
            TypeError: as :meth:`JsonFields.from_dict`; or a field is of another type.
        """
        if isinstance(value, Mapping) and not _required(cls) <= value.keys():  # type: ignore[arg-type]
            missing = _required(cls) - value.keys()  # type: ignore[arg-type]
            raise TypeError(f"{', '.join(sorted(missing))} is missing")
        made = super().from_dict(value)
        fields_of = vars(made)
        for name, accepts, words in _checks(cls):  # type: ignore[arg-type]  # as above
            if not accepts(item := fields_of[name]):
                raise TypeError(f"{name} is {json.dumps(item)[:80]}, expected {words}")
        return made


@cache
def _required(cls: type[JsonFields]) -> frozenset[str]:
    return frozenset(each.name for each in fields(cls) if each.default is MISSING and each.default_factory is MISSING)


_Accepts = Callable[[Any], bool]
_PLAIN: Mapping[Any, tuple[_Accepts, str]] = {
    Any: (lambda _: True, "any value"),
    str: (lambda value: type(value) is str, "text"),
    bool: (lambda value: type(value) is bool, "true or false"),
    int: (lambda value: type(value) is int and abs(value) < 2**63, "an integer"),
    float: (lambda value: type(value) is float or (type(value) is int and abs(value) < 2**63), "a number"),
    NoneType: (lambda value: value is None, "null"),
}


@cache
def _checks(cls: Any) -> tuple[tuple[str, _Accepts, str], ...]:
    hints = get_type_hints(cls)
    return tuple((name, *_check(hints[name])) for name in sorted(_names(cls)))


def _check(hint: Any) -> tuple[_Accepts, str]:
    """Whether a value of JSON is of a type, and the type in words."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, of = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _check(type(of[0]))
    if origin in (UnionType, Union):
        parts = [_check(each) for each in of]
        return lambda value: any(accepts(value) for accepts, _ in parts), " or ".join(words for _, words in parts)
    if origin is Mapping:
        accepts, words = _check(of[1])
        return (
            lambda value: isinstance(value, dict) and all(map(accepts, value.values())),
            f"an object (of each name {words})",
        )
    if origin is Sequence:
        accepts, words = _check(of[0])
        return lambda value: isinstance(value, list | tuple) and all(map(accepts, value)), f"a list (each {words})"
    raise TypeError(f"{hint!r}: not a type that is checked")


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
