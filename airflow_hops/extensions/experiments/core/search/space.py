"""Space of a search: the ranges and choices of its trials' parameters."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, ClassVar

from airflow_hops.core.errors import BadInput
from airflow_hops.core.json_fields import as_json
from airflow_hops.core.steps.protocol import check_json


@dataclass(frozen=True)
class Uniform:
    """A float between two bounds, inclusive.

    Attributes:
        step: Distance between two values; None for any value.

    Raises:
        BadInput: the bounds are not finite numbers, or ``low`` is not below ``high``.
    """

    low: float
    high: float
    step: float | None = None
    type: ClassVar[str] = "uniform"

    def __post_init__(self) -> None:
        _check_bounds(self, self.low, self.high, (int, float))
        if self.step is not None and not (is_number(self.step) and 0 < self.step <= self.high - self.low):
            raise BadInput(f"{self}: step is {self.step!r}, expected a number above 0, no larger than the range")

    def values(self) -> list[Any] | None:
        """Returns all values; None if they are not countable."""
        if self.step is None:
            return None
        # In decimals, as in Optuna: of floats, 0.1 + 2 * 0.1 is more than 0.3, and 3 * 0.3 less than 0.9.
        low, step, kind = Decimal(str(self.low)), Decimal(str(self.step)), type(self.low + self.step)
        steps = int((self.high - self.low) / self.step + 1e-9)
        return [kind(low + number * step) for number in range(steps + 1)]


@dataclass(frozen=True)
class LogUniform:
    """A float between two bounds above 0, inclusive, whose logarithm is uniform.

    Raises:
        BadInput: the bounds are not finite numbers above 0, or ``low`` is not below ``high``.
    """

    low: float
    high: float
    type: ClassVar[str] = "log_uniform"

    def __post_init__(self) -> None:
        _check_bounds(self, self.low, self.high, (int, float))
        _check_log(self, self.low)

    def values(self) -> None:
        """Returns None, since the values are not countable."""


@dataclass(frozen=True)
class IntUniform:
    """An integer between two bounds, inclusive.

    Attributes:
        step: Distance between two values.
        log: Whether the logarithm is uniform; ``step`` must then be 1.

    Raises:
        BadInput: the bounds are not integers, ``low`` is not below ``high``, or the step does not fit.
    """

    low: int
    high: int
    step: int = 1
    log: bool = False
    type: ClassVar[str] = "int_uniform"

    def __post_init__(self) -> None:
        _check_bounds(self, self.low, self.high, (int,))
        if not is_number(self.step, (int,)) or not 1 <= self.step <= self.high - self.low:
            raise BadInput(f"{self}: step is {self.step!r}, expected an integer from 1 to {self.high - self.low}")
        if self.log:
            _check_log(self, self.low)
            if self.step != 1:
                raise BadInput(f"{self}: step is {self.step}, expected 1 where log is true")

    def values(self) -> list[Any] | None:
        """Returns all values."""
        return list(range(self.low, self.high + 1, self.step))


@dataclass(frozen=True)
class Choice:
    """One of several JSON values; in a space, a list or a tuple is a shorthand for it.

    Raises:
        BadInput: there are no values, or one is not a JSON value or a duplicate.

    Example:
        >>> from airflow_hops.extensions.experiments import Choice
        >>> Choice(["relu", "tanh"]).choices
        ('relu', 'tanh')
    """

    choices: Sequence[Any]
    type: ClassVar[str] = "choice"

    def __post_init__(self) -> None:
        if isinstance(self.choices, str) or not isinstance(self.choices, Sequence) or not self.choices:
            raise BadInput(f"Choice has {self.choices!r}; expected a list of at least one value")
        object.__setattr__(self, "choices", tuple(self.choices))
        known = set()  # as JSON, since 1, 1.0 and True are equal in Python
        for number, value in enumerate(self.choices):
            check_json(value, f"Choice, value {number + 1}")
            text = json.dumps(value, sort_keys=True)
            if text in known:
                raise BadInput(f"Choice has {value!r} twice; expected different values")
            known.add(text)

    def values(self) -> list[Any] | None:
        """Returns all values."""
        return list(self.choices)


Dimension = Uniform | LogUniform | IntUniform | Choice
_DIMENSIONS: dict[str, type[Dimension]] = {each.type: each for each in (Uniform, LogUniform, IntUniform, Choice)}

Space = Mapping[str, Any]
"""Mapping from parameter to :data:`Dimension`, list or tuple of choices, or constant."""


def space_to_dict(space: Space) -> dict[str, Any]:
    """Converts a space to JSON's types; a constant becomes a choice of one value.

    Raises:
        BadInput: the space is empty or constant, or a name or a value is invalid.
    """
    if not isinstance(space, Mapping) or not space:
        raise BadInput(
            f"space is {space!r}; expected parameters by name, as in space={{'lr': LogUniform(1e-4, 1e-2)}}, or "
            "'module:function' of a function space(trial)"
        )
    results = {}
    for name, values in space.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise BadInput(f"space has a parameter {name!r}; expected a name that an argument may have")
        if isinstance(values, Mapping) and values.get("type") in _DIMENSIONS:
            values = _dimension(name, values)
        try:
            if not isinstance(values, Dimension):
                values = Choice(values) if isinstance(values, list | tuple) else Choice([values])
        except BadInput as error:
            raise BadInput(f"space[{name!r}]: {error}; expected a list of values, or a range such as Uniform") from None
        results[name] = {"type": values.type, **as_json(vars(values))}
    return results


def space_of_dict(value: Mapping[str, Any]) -> dict[str, Dimension]:
    """Reads the JSON object of :func:`space_to_dict`. Raises BadInput if it is not a space."""
    return {name: _dimension(name, values) for name, values in value.items()}


def _dimension(name: str, values: Mapping[str, Any]) -> Dimension:
    try:
        return _DIMENSIONS[values["type"]](**{key: value for key, value in values.items() if key != "type"})
    except (KeyError, TypeError) as error:
        raise BadInput(
            f"space[{name!r}] is {values!r}; expected 'type' to be one of {', '.join(_DIMENSIONS)}, with its fields "
            f"({error})"
        ) from None
    except BadInput as error:
        raise BadInput(f"space[{name!r}]: {error}") from None


def _check_bounds(what: Any, low: Any, high: Any, types: tuple[type, ...]) -> None:
    expected = "integers" if float not in types else "finite numbers"
    if not is_number(low, types) or not is_number(high, types):
        raise BadInput(f"{what}: low is {low!r} and high {high!r}, expected {expected}")
    if low >= high:
        raise BadInput(f"{what}: low is {low!r} and high {high!r}, expected low below high")


def _check_log(what: object, low: float) -> None:
    if low <= 0:
        raise BadInput(f"{what}: low is {low!r}, expected a number above 0, since only that has a logarithm")


def is_number(value: object, types: tuple[type, ...] = (int, float)) -> bool:
    """Returns whether a value is a finite number of one of the types."""
    return isinstance(value, types) and not isinstance(value, bool) and math.isfinite(value)  # type: ignore[arg-type]
