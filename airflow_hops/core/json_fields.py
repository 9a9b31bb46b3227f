"""Dataclasses that are sent or stored as JSON, possibly for other versions of this package."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from airflow_hops.core.times import in_seconds

_OMIT_IF_NONE = "omit if none"


def omit_if_none() -> Any:
    """Returns a dataclass field that is not written if it is None."""
    return field(default=None, metadata={_OMIT_IF_NONE: True})


@dataclass(frozen=True)
class JsonFields:
    """A JSON object with known fields; additional fields of newer versions are preserved.

    Fields are read by their types: objects of classes with a ``from_dict``, tuples, mappings and sequences of them, and
    mappings from integers. Null means the default if the type excludes None.

    Attributes:
        more: Fields that this version does not know.
    """

    # The web API leaves it out: pydantic reads the metadata.
    more: Mapping[str, Any] = field(default_factory=dict, kw_only=True, hash=False, metadata={"exclude": True})

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """Reads the JSON object.

        Raises:
            TypeError: ``value`` is not an object, a required field is missing, or a field is not a list or object as
                expected.
        """
        if not isinstance(value, Mapping):
            raise _unlike("an object", value)
        values = dict(value)
        for name, (read, has_null) in _readers(cls).items():  # type: ignore[arg-type]  # classes are hashable
            if values.get(name) is not None:
                try:
                    values[name] = read(values[name])
                except TypeError as error:
                    raise TypeError(f"{name}: {error}") from error
            elif not has_null:
                values.pop(name, None)
        if missing := _required(cls) - values.keys():  # type: ignore[arg-type]
            raise TypeError(f"{', '.join(sorted(missing))} is missing")
        known = _names(cls)  # type: ignore[arg-type]
        more = {name: values.pop(name) for name in value if name not in known}  # in the order in which they are written
        return cls(**values, more=more) if more else cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON object; tuples become lists, and keys of mappings become strings."""
        known = {each: getattr(self, each.name) for each in fields(self) if each.name != "more"}
        report = {each.name: v for each, v in known.items() if v is not None or _OMIT_IF_NONE not in each.metadata}
        return {**self.more, **{name: as_json(item) for name, item in report.items()}}


@dataclass(frozen=True)
class CheckedFields(JsonFields):
    """A JSON object whose fields must have the types of the class when it is read.

    For a ``Literal`` only the type is checked, since newer versions may have more values.
    """

    @classmethod
    def from_dict(cls, value: Mapping[str, object]) -> Self:
        """Reads the JSON object.

        Raises:
            TypeError: as :meth:`JsonFields.from_dict`, or a field has another type.
        """
        made = super().from_dict(value)
        fields_of = vars(made)
        for name, accepts, words in _checks(cls):  # type: ignore[arg-type]
            if not accepts(item := fields_of[name]):
                raise TypeError(f"{name} is {json.dumps(item)[:80]}, expected {words}")
        return made


@cache
def _required(cls: Any) -> frozenset[str]:
    return frozenset(each.name for each in fields(cls) if each.default is MISSING and each.default_factory is MISSING)


_Accepts = Callable[[Any], bool]
_PLAIN: Mapping[object, tuple[_Accepts, str]] = {
    Any: (lambda _: True, "any value"),
    str: (lambda value: type(value) is str, "text"),
    bool: (lambda value: type(value) is bool, "true or false"),
    int: (lambda value: type(value) is int and abs(value) < 2**63, "an integer"),
    float: (lambda value: type(value) is float or (type(value) is int and abs(value) < 2**63), "a number"),
    NoneType: (lambda value: value is None, "null"),
}


@cache
def _checks(cls: object) -> tuple[tuple[str, _Accepts, str], ...]:
    return tuple((name, *_check(_hints(cls)[name])) for name in sorted(_names(cls)))


def _check(hint: object) -> tuple[_Accepts, str]:
    """Returns a function that checks whether a JSON value has a type, and the type in words."""
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return _check(type(arguments[0]))
    if origin in (UnionType, Union):
        parts = [_check(each) for each in arguments]
        return lambda value: any(accepts(value) for accepts, _ in parts), " or ".join(words for _, words in parts)
    if origin is Mapping:
        accepts, words = _check(arguments[1])
        return (
            lambda value: isinstance(value, dict) and all(map(accepts, value.values())),
            f"an object (of each name {words})",
        )
    if origin is Sequence:
        accepts, words = _check(arguments[0])
        return lambda value: isinstance(value, list | tuple) and all(map(accepts, value)), f"a list (each {words})"
    raise TypeError(f"{hint!r}: not a type that is checked")


@cache
def _hints(cls: object) -> dict[str, object]:
    return get_type_hints(cls)


_Reader = Callable[[Any], Any]


@cache
def _readers(cls: object) -> dict[str, tuple[_Reader, bool]]:
    """Returns the decoder of each field that needs one, and whether the field may be null."""
    hints = {name: _hints(cls)[name] for name in sorted(_names(cls))}
    return {
        name: (read, NoneType in get_args(hint)) for name, hint in hints.items() if (read := _reader(hint)) is not None
    }


def _reader(hint: object) -> _Reader | None:
    """Returns the decoder for a type, or None if none is needed."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):
        reads = [read for each in arguments if (read := _reader(each)) is not None]
        # Older versions wrote an empty object for None.
        nothing: tuple[Any, ...] = (None, {}) if any(hasattr(each, "from_dict") for each in arguments) else (None,)
        return (lambda value: None if value in nothing else reads[0](value)) if reads else None
    if origin is tuple:
        read, length = _reader(arguments[0]), None if arguments[-1] is Ellipsis else len(arguments)
        return lambda value: tuple(map(read, _listed(value, length)) if read else _listed(value, length))
    if origin is Sequence:
        of_items = _reader(arguments[0])
        return None if of_items is None else lambda value: list(map(of_items, _listed(value)))
    if origin is Mapping:
        of_values = _reader(arguments[1]) or (None if arguments[0] is str else lambda value: value)
        if of_values is None:
            return None
        return lambda value: {arguments[0](name): of_values(item) for name, item in _object(value).items()}
    if isinstance(hint, type) and hasattr(hint, "from_dict"):
        return lambda value: value if isinstance(value, hint) else hint.from_dict(value)
    return None


def _listed(value: object, length: int | None = None) -> Sequence[object]:
    if not isinstance(value, list | tuple) or length not in (None, len(value)):
        raise _unlike("a list" if length is None else f"a list of {length}", value)
    return value


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise _unlike("an object", value)
    return value


def _unlike(expected: str, value: object) -> TypeError:
    result = repr(value)
    return TypeError(f"expected {expected}, found {result if len(result) <= 80 else result[:80] + '…'}")


@cache
def _names(cls: Any) -> frozenset[str]:
    """Returns the known fields; cached, since a study has a record for each of up to 10,000 trials."""
    return frozenset(each.name for each in fields(cls)) - {"more"}


def as_json(value: object) -> Any:
    """Converts a value to JSON's types."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return value


def finite(value: Any) -> Any:
    """Returns a JSON value with NaN and infinities, which JSON lacks, replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


@dataclass(frozen=True)
class StepOptions:
    """Options of a stage: the operator creates them, the step gets them as JSON, and the stage creates them again."""

    @classmethod
    def of(cls, operator: object, **others: object) -> Self:
        """Returns the options of an operator: its attributes of the same names, except for ``others``.

        A length of time ``x_s`` is the attribute ``x`` in seconds. Fields that are not arguments have their defaults.
        """
        names = [each.name for each in fields(cls) if each.name not in others]
        sources = {name: name if hasattr(operator, name) else name.removesuffix("_s") for name in names}
        own = {name: in_seconds(getattr(operator, x)) for name, x in sources.items() if hasattr(operator, x)}
        return cls(**own, **others)

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON object, keyword arguments of the step."""
        return {name: as_json(value) for name, value in vars(self).items()}
