"""Parts of a policy as JSON: each is an object with its ``kind`` and fields; a duration is ``{"days": 7}``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, ClassVar, Self

from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.names import check_known, suggestion

_KINDS: dict[str, type[PolicyPart]] = {}
_UNITS = ("days", "hours", "minutes", "seconds")
_HUGE = 1e300
_LONGEST = timedelta(days=100 * 365)


@dataclass(frozen=True)
class PolicyPart:
    """A part of a policy; ``kind`` is its name in JSON."""

    kind: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" in vars(cls):
            _KINDS[cls.kind] = cls

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON object."""
        return {"kind": self.kind, **{name: _as_json(value) for name, value in vars(self).items() if value is not None}}

    @classmethod
    def from_dict(cls, value: object, where: str = "policy") -> Self:
        """Reads the JSON object; ``where`` is its name in messages.

        Raises:
            BadInput: a kind or a field is unknown, or a value is out of range.
        """
        part = _read(value, where)
        if not isinstance(part, cls):
            expected = sorted(kind for kind, known in _KINDS.items() if issubclass(known, cls))
            raise BadInput(f"{where} is {json.dumps(value)[:80]}, expected an object of kind {', '.join(expected)}")
        return part

    @classmethod
    def from_json(cls, text: str, where: str) -> Self:
        """Reads a JSON text; ``where`` is the file's address for messages. Raises BadInput like :meth:`from_dict`."""
        try:
            value = json.loads(text)
            return cls.from_dict(value, where)
        except (json.JSONDecodeError, RecursionError) as error:
            raise BadInput(f"{where}: expected a policy in JSON ({error})") from error

    @classmethod
    def _given(cls, values: Mapping[str, object]) -> Self:
        return cls(**values)

    def _refused(self, name: str, value: object, expected: str) -> BadInput:
        return InvalidArgument(name, value, f", expected {expected}", where=f"{type(self).__name__}: ")

    def _duration(self, *, zero: bool = False, **values: object) -> None:
        """Raises BadInput unless each is a ``timedelta`` above 0 (with ``zero``, or 0), of at most 100 years."""
        for name, value in values.items():
            if not isinstance(value, timedelta) or value > _LONGEST or value < timedelta(0) or not (value or zero):
                least = "of 0 or more" if zero else "of more than 0"
                raise self._refused(name, value, f"a duration {least} and at most 100 years, such as timedelta(days=7)")

    def _number(self, *, least: float = -_HUGE, above: float = -_HUGE, **values: Any) -> None:
        """Raises BadInput unless each is None or a finite number, at least ``least`` and above ``above``."""
        for name, value in values.items():
            if value is not None and not (type(value) in (int, float) and least <= value < _HUGE and value > above):
                limits = (f" of at least {least:g}" * (least > -_HUGE), f" above {above:g}" * (above > -_HUGE))
                raise self._refused(name, value, f"a number{''.join(limits)}")

    def _flag(self, **values: object) -> None:
        """Raises BadInput unless each is True or False."""
        for name, value in values.items():
            if not isinstance(value, bool):
                raise self._refused(name, value, "True or False")

    def _whole(self, **values: object) -> None:
        """Raises BadInput unless each is an integer above 0."""
        for name, value in values.items():
            if type(value) is not int or value < 1:
                raise self._refused(name, value, "an integer of at least 1")


def check_part(owner: object, name: str, value: object, expected: type[PolicyPart]) -> None:
    """Checks an argument that must be a part of a policy. Raises BadInput if it has another type."""
    if not isinstance(value, expected):
        raise BadInput(f"{type(owner).__name__}: {name} is {value!r}, expected a {expected.__name__}")


def _as_json(value: object) -> Any:
    if isinstance(value, PolicyPart):
        return value.to_dict()
    if isinstance(value, timedelta):
        units = {"days": value.days, "seconds": value.seconds + value.microseconds / 1e6}
        return {unit: number for unit, number in units.items() if number} or {"seconds": 0}
    return [_as_json(item) for item in value] if isinstance(value, tuple) else value


def _read(value: object, where: str) -> object:
    """Converts a JSON value to the value of a part's field."""
    if isinstance(value, list):
        return tuple(_read(item, f"{where}[{number}]") for number, item in enumerate(value))
    if not isinstance(value, Mapping):
        return value
    if value and value.keys() <= set(_UNITS):
        try:
            return timedelta(**value)
        except (TypeError, ValueError, OverflowError) as error:
            raise BadInput(f"{where} is {json.dumps(value)}, expected numbers of {', '.join(_UNITS)}") from error
    kind = str(value.get("kind"))
    check_known(f"{where}: kind", kind, sorted(_KINDS))
    cls = _KINDS[kind]
    known = [each.name for each in fields(cls)]
    values = {name: _read(item, f"{where}.{name}") for name, item in value.items() if name != "kind"}
    for name in values:
        if name not in known:
            raise BadInput(f"{where}: {kind} has no field {name!r}, it has {', '.join(known)}{suggestion(name, known)}")
    try:
        return cls._given(values)
    except TypeError as error:
        raise BadInput(f"{where}: {kind}: {error}") from error
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from error
