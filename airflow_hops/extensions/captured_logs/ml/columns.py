"""Types of captured columns, found from all of their values, and their conversion without loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.captured_logs.ml.bodies import Cell, Single

_EXACT = 1 << 53
"""Integers up to here are floats without loss."""
_INT64 = 1 << 63
_SINGLE = 3.4028235677973366e38
"""Numbers from here on are infinite as 32-bit floats."""
_NOT_FINITE = {"NaN", "Infinity", "-Infinity"}
_NUMBERS = {"int", "float"}
_TRUTHS = {"true": True, "1": True, "false": False, "0": False, "": None}


class ColumnKinds:
    """The kinds of a column's values.

    Args:
        name: Name of the column, for errors.
        given: The type that the source's schema gives it, None to infer it.
    """

    def __init__(self, name: str, given: pa.DataType | None = None) -> None:
        self._name, self._given = name, given
        self._kinds: dict[str, str] = {}  # the place of the first value of each
        self._depths: dict[int, str] = {}
        self._least_depth = 0
        self._large = ""

    def add(self, values: Iterable[Any], where: str, depth: int = 0) -> None:
        """Notes the kinds of values at a place.

        Raises:
            BadInput: a value is an object or a time, or an integer that 64 bits do not hold.
        """
        self._least_depth = max(self._least_depth, depth)
        for value in values:
            if isinstance(value, Single):  # of any depth
                if kind := self._kind(value[0], where):
                    self._kinds.setdefault(kind, where)
                continue
            if isinstance(value, list):
                self.add(value, where, depth + 1)
                continue
            kind = self._kind(value, where)
            if kind:
                self._kinds.setdefault(kind, where)
                self._depths.setdefault(depth, where)

    def _kind(self, value: Any, where: str) -> str | None:
        if value is None:
            return None
        if isinstance(value, bool):
            return "bool"
        if isinstance(value, Cell):
            kind = _cell_kind(value)
            if kind == "cell int":
                self._note_large(int(value), where)
            return kind
        if isinstance(value, str):
            return "not finite" if value in _NOT_FINITE else "text"
        if isinstance(value, int):
            if not -_INT64 <= value < _INT64:
                raise BadInput(
                    f"{where}: {self._name!r} is {value}, which a 64-bit integer does not hold; have it logged as "
                    "text, or leave it out"
                )
            self._note_large(value, where)
            return "int"
        if isinstance(value, float | Decimal):
            return "float"
        raise BadInput(
            f"{where}: {self._name!r} is {str(value)[:60]!r}, of type {type(value).__name__}; expected a number, a "
            "text or a list of them"
        )

    def _note_large(self, value: int, where: str) -> None:
        if abs(value) > _EXACT and not self._large:
            self._large = f"{where}: {self._name!r} is {value}"

    def type(self) -> pa.DataType:
        """Returns the column's type.

        Raises:
            BadInput: no type holds all values without loss.
        """
        if len(self._depths) > 1:
            (depth, where), (other, place) = sorted(self._depths.items())[:2]
            raise BadInput(
                f"{place}: {self._name!r} is a list of depth {other}, and of depth {depth} in {where}; expected one"
            )
        if self._given is not None:
            return self._given
        kinds = {kind.removeprefix("cell ") for kind in self._kinds if kind != "cell empty"}
        if kinds & _NUMBERS and kinds - {"text"} <= {*_NUMBERS, "not finite"} and "text" not in kinds:
            is_int = kinds == {"int"}
            if not is_int and self._large:
                raise BadInput(
                    f"{self._large}, which is no float without loss, and other values of the column are floats; give "
                    f"it a type in the source's schema, such as {{{self._name!r}: 'string'}}"
                )
            result = pa.int64() if is_int else pa.float64()
        elif kinds <= {"text", "not finite"} or not any(not kind.startswith("cell") for kind in self._kinds):
            # Cells of CSV are texts at first.
            result = pa.string()
        elif kinds == {"bool"}:
            result = pa.bool_()
        else:
            listed = "; ".join(f"{kind} in {where}" for kind, where in self._kinds.items())
            raise BadInput(
                f"{self._name!r} has values of different kinds: {listed}; give it a type in the source's schema"
            )
        for _ in range(next(iter(self._depths), self._least_depth)):
            result = pa.list_(result)
        return result


def _cell_kind(cell: str) -> str:
    if not cell:
        return "cell empty"
    # Python's numbers may have underscores.
    if "_" not in cell and cell.isascii():
        try:
            number = int(cell)
            # Other spellings, such as 007, are no numbers.
            return "cell int" if str(number) == cell.removeprefix("+") and abs(number) < _INT64 else "cell text"
        except ValueError:
            pass
        try:
            float(cell)
            return "cell float"
        except ValueError:
            pass
    return "cell text"


def column_of(values: Sequence[Any], kind: pa.DataType, name: str) -> pa.Array:
    """Returns values as a column of a type.

    Raises:
        BadInput: a value is not of the type.
    """
    inner = kind
    while pa.types.is_list(inner):
        inner = inner.value_type
    try:
        if inner is kind:
            values = [value[0] if isinstance(value, Single) else value for value in values]
        return pa.array([_converted(value, inner) for value in values], kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise BadInput(
            f"{name!r} has a value that is not of type {kind} ({error}); correct the log, or give the column another "
            "type in the source's schema"
        ) from error


def _converted(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, list):
        return [_converted(each, kind) for each in value]
    if value is None:
        return None
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        number = _number(value, pa.types.is_integer(kind)) if isinstance(value, str) else value
        return number if number is None else _fitting(number, kind)
    if pa.types.is_boolean(kind) and isinstance(value, str):
        if value.lower() not in _TRUTHS:
            raise ValueError(f"{value!r} is neither true nor false")
        return _TRUTHS[value.lower()]
    return str(value) if pa.types.is_string(kind) and not isinstance(value, bytes) else value


def _number(text: str, is_integer: bool) -> float | None:
    """Returns the number of a text; None if it is empty."""
    if "_" in text or not text.isascii():  # which Python takes
        raise ValueError(f"{text!r} is no number")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        if is_integer:
            raise
        return float(text)


def _fitting(number: float | Decimal, kind: pa.DataType) -> float:
    """Returns a number as a type holds it."""
    if pa.types.is_integer(kind):
        if number != int(number):
            raise ValueError(f"{number} is no integer")
        return int(number)
    is_large = isinstance(number, int) and not isinstance(number, bool) and abs(number) > _EXACT
    is_finer = isinstance(number, Decimal) and pa.types.is_float64(kind) and Decimal(repr(float(number))) != number
    if is_large or is_finer:
        raise ValueError(f"{number} is no float without loss")
    result = float(number)
    if pa.types.is_float32(kind) and _SINGLE <= abs(result) < math.inf:
        raise ValueError(f"{number} is too large for 32 bits")
    return result
