"""Types of captured columns, which most of their values decide, and the rows whose values are not of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import partial, reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.sources.sources import Source
from airflow_hops.extensions.captured_logs.ml.bodies import Cell, Single
from airflow_hops.ml.readers.joined_types import join_texts, settled
from airflow_hops.ml.readers.text_types import (
    BOOLEAN,
    DATE,
    FLOAT,
    INTEGER,
    LARGE_INTEGER,
    TEXT,
    TIME,
    TIMES,
    UTC_TIME,
    as_type,
    type_of,
)
from airflow_hops.ml.readers.types import converted

# Whoever sends a request chooses the types of its values. A column has the kind of most of its rows; rows of another
# kind are left out, so that one text among numbers neither ends a window nor turns its column to text.

_EXACT = 1 << 53
"""Integers up to here are floats without loss."""
_INT64 = 1 << 63
_NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})
Kind: TypeAlias = pa.DataType | str
"""Type of values, or a word for those without one: ``other``, ``huge``, ``mixed``, ``not finite`` or ``none``."""
_GROUPS = ((INTEGER, LARGE_INTEGER, FLOAT), (BOOLEAN,), (DATE, TIME, UTC_TIME), (TEXT,))
"""Types that have a common type; of groups with as many values, the first counts."""
_LISTS = 10
"""One in so many values must be a longer list for values of the shape ``[rows, 1]`` to be lists, too."""
_SAMPLE = 32
_SINGLE = 3.4028235677973366e38
"""Numbers from here on are infinite as 32-bit floats."""
_SURE = {
    INTEGER: frozenset({int}), FLOAT: frozenset({float}), TEXT: frozenset({str}), BOOLEAN: frozenset({bool}),
}  # fmt: skip
"""Types of values in Python of which all are values of a type of Arrow."""
_MISSING = list(Source("/csv").null_values)
_CASTS = (pa.ArrowException, TypeError, ValueError, OverflowError)


class ColumnKinds:
    """Counts a column's values by kind, and finds its type.

    Args:
        given: The type that the source's schema gives it, None to infer it.
    """

    def __init__(self, given: pa.DataType | None = None) -> None:
        self._given = given
        self._kinds: dict[int, Counter[Kind]] = {}  # by depth of lists
        self._singles = Counter[Kind]()
        self.rows = 0

    def add(self, values: Sequence[Any]) -> None:
        """Counts the values of further rows; those that are None have no kind."""
        types = Counter(map(type, values))
        self.rows += len(values) - types[type(None)]
        if self._given is not None:
            return
        kinds = self._kinds.setdefault(0, Counter())
        kinds.update(_kinds_of(values, types))
        if types[Cell]:
            kinds.update(_kinds_of_cells(_texts(value for value in values if type(value) is Cell)))
        for value in values if types[list] or types[Single] else ():
            if type(value) is Single:
                self._singles.update(_kinds_of(value, Counter(map(type, value))))
            elif type(value) is list:
                depth, kind = _kind_of_list(value)
                self._kinds.setdefault(depth, Counter())[kind] += 1

    def type(self) -> pa.DataType:
        """Returns the column's type: that of most values."""
        if self._given is not None:
            return self._given
        counts = {0: 0} | {depth: kinds.total() for depth, kinds in self._kinds.items()}
        singles, lists = self._singles.total(), counts.get(1, 0)
        # Where lists of one value count: as lists if others are longer, or else as the values in them.
        home = 1 if lists > counts[0] and lists * _LISTS >= lists + singles else 0
        counts[home] = counts.get(home, 0) + singles
        depth = max(sorted(counts), key=counts.__getitem__)
        kinds = self._kinds.get(depth, Counter()) + (self._singles if depth == home else Counter())
        result = _joined(kinds)
        for _ in range(depth):
            result = pa.list_(result)
        return result


def _joined(kinds: Counter[Kind]) -> pa.DataType:
    """Returns the type of the group with most values."""
    totals = {group: sum(kinds[kind] for kind in group) for group in _GROUPS}
    numbers, texts = _GROUPS[0], _GROUPS[-1]
    for group in (numbers, texts):  # a number in JSON that is not finite may be a text
        totals[group] += kinds["not finite"] if totals[group] else 0
    group = max(totals, key=totals.__getitem__)
    if not totals[group]:
        return TEXT
    present = [kind for kind in group if kinds[kind]]
    if LARGE_INTEGER in present and (kinds[FLOAT] or kinds["not finite"]):  # no type has both without loss
        present = [LARGE_INTEGER] if kinds[LARGE_INTEGER] > kinds[FLOAT] else [FLOAT]
    if kinds["not finite"] and group == numbers and LARGE_INTEGER not in present:
        present.append(FLOAT)
    return settled(reduce(join_texts, present))


def _kinds_of(values: Iterable[Any], types: Counter[type]) -> Counter[Kind]:
    """Counts values by kind, except cells and lists."""
    kinds = Counter[Kind]()
    for kind, count in types.items():
        if kind is float or kind is Decimal:
            kinds[FLOAT] += count
        elif kind is bool:
            kinds[BOOLEAN] += count
        elif kind is int:
            integers = [value for value in values if type(value) is int]
            if max(integers) <= _EXACT and min(integers) >= -_EXACT:
                kinds[INTEGER] += count
            else:
                kinds.update(map(_size, integers))
        elif kind is str:
            not_finite = sum(type(value) is str and value in _NOT_FINITE for value in values)
            kinds["not finite"] += not_finite
            kinds[TEXT] += count - not_finite
        elif kind is datetime:
            kinds.update(UTC_TIME if value.tzinfo else TIME for value in values if type(value) is datetime)
        elif kind is date:
            kinds[DATE] += count
        elif kind not in (type(None), Cell, Single, list):
            kinds["other"] += count
    return +kinds


def _size(value: int) -> Kind:
    return INTEGER if abs(value) <= _EXACT else LARGE_INTEGER if -_INT64 <= value < _INT64 else "huge"


def _kind_of_list(value: list[Any]) -> tuple[int, Kind]:
    """Returns the depth of a list, and the kind of the values in it; ``none`` without values."""
    depth, values = 1, value
    while lists := [each for each in values if isinstance(each, list)]:
        if len(lists) < len(values) - values.count(None):
            return depth, "mixed"
        depth, values = depth + 1, [item for each in lists for item in each]
    kinds = _kinds_of(values, Counter(map(type, values)))
    present = {kind for kind in kinds if kind != "not finite"}
    if not present:
        return depth, TEXT if kinds else "none"
    groups = [group for group in _GROUPS if present <= {*group}]
    if not groups or {LARGE_INTEGER, FLOAT} <= present or (kinds["not finite"] and present & {BOOLEAN, LARGE_INTEGER}):
        return depth, "mixed"
    if kinds["not finite"] and present <= {*_GROUPS[0]}:
        return depth, FLOAT
    return depth, max(present, key=groups[0].index)


def _texts(cells: Iterable[str], missing: Sequence[str] = _MISSING) -> pa.Array:
    """Returns cells as text; those that mean a missing value are null, as in a file of CSV."""
    texts = pa.array([cell.encode("utf-8", "replace") for cell in cells], pa.binary()).cast(TEXT)
    return pc.if_else(pc.is_in(texts, value_set=pa.array(missing, TEXT)), pa.scalar(None, TEXT), texts)


def _kinds_of_cells(texts: pa.Array) -> Counter[Kind]:
    """Counts cells by the kinds that they would have in a file of CSV."""
    texts = texts.drop_null()
    kind = type_of(texts)
    if kind == TEXT:
        distinct = pc.unique(texts)
        step = -(-len(distinct) // _SAMPLE)
        sample = Counter[Kind](type_of(distinct[row : row + 1]) for row in range(0, len(distinct), step))
        kind = _joined(sample)
        wrong = misfits(texts, lambda some: as_type(some, kind) is not None) if kind != TEXT else []
        if 2 * len(wrong) >= len(texts):
            kind, wrong = TEXT, []
        mask = pa.array([True] * len(texts))
        if wrong:
            right = set(range(len(texts))) - {*wrong}
            mask = pa.array([row in right for row in range(len(texts))])
            kind = type_of(texts.filter(mask))
        return Counter({kind: len(texts) - len(wrong)}) + Counter({TEXT: len(wrong)})
    return Counter() if pa.types.is_null(kind) else Counter({kind: len(texts)})


def misfits(array: pa.Array, is_good: Callable[[pa.Array], bool]) -> list[int]:
    """Returns the positions of the values that make an array bad, by bisection."""
    if is_good(array):
        return []
    if len(array) == 1:
        return [0]
    middle = len(array) // 2
    return [*misfits(array[:middle], is_good), *(middle + row for row in misfits(array[middle:], is_good))]


def column_of(values: Sequence[Any], kind: pa.DataType, *, is_given: bool) -> tuple[pa.Array, list[int]]:
    """Returns values as a column of a type, and the positions of those that are not of it, which are null.

    Args:
        values: The values.
        kind: The type.
        is_given: Whether the source's schema gives the type, so that texts may be its numbers.
    """
    if pa.types.is_list(kind):
        return _column_of_lists(values, kind)
    types = {*map(type, values)}
    if Single in types:
        values = [value[0] if type(value) is Single else value for value in values]
        types = {*map(type, values)}
    types.discard(type(None))
    if types == {Cell}:
        return _column_of_cells(values, kind, is_given)
    is_sure = types <= _SURE.get(kind, frozenset()) and not is_given
    return _column(values, kind, None if is_sure else lambda value: _converted(value, kind, is_given))


def _column(
    values: Sequence[Any], kind: pa.DataType, convert: Callable[[Any], Any] | None
) -> tuple[pa.Array, list[int]]:
    if convert is None:
        try:
            return pa.array(values, kind), []
        except _CASTS:  # a surrogate, or an integer beyond 64 bits
            convert = partial(_as_is, kind=kind)
    results, wrong = list[Any](), list[int]()
    for row, value in enumerate(values):
        try:
            results.append(None if value is None else convert(value))
        except _CASTS:
            results.append(None)
            wrong.append(row)
    return pa.array(results, kind), wrong


def _as_is(value: Any, kind: pa.DataType) -> Any:
    pa.scalar(value, kind)
    return value


def _column_of_lists(values: Sequence[Any], kind: pa.DataType) -> tuple[pa.Array, list[int]]:
    depth, inner = 0, kind
    while pa.types.is_list(inner):
        depth, inner = depth + 1, inner.value_type
    kinds = {INTEGER: (INTEGER, LARGE_INTEGER), FLOAT: (INTEGER, FLOAT)}.get(inner, (inner,))

    def convert(value: Any) -> Any:
        own, name = _kind_of_list(value) if isinstance(value, list) else (0, "")
        if not ((own == depth and name in kinds) or (0 < own <= depth and name == "none")):
            raise TypeError(f"not of type {kind}")
        result = _finite(value) if inner == FLOAT else value
        pa.scalar(result, kind)
        return result

    return _column(values, kind, convert)


def _finite(value: Any) -> Any:
    """Replaces the texts of numbers in lists that are not finite."""
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return float(value) if isinstance(value, str) else value


def _column_of_cells(cells: Sequence[Cell | None], kind: pa.DataType, is_given: bool) -> tuple[pa.Array, list[int]]:
    # A text that is empty is one, as in rows of the model server, if its column is of text for sure.
    missing = [text for text in _MISSING if text or kind != TEXT or not is_given]
    texts = _texts(("" if cell is None else cell for cell in cells), missing)
    texts = pc.if_else(pa.array([cell is None for cell in cells]), pa.scalar(None, TEXT), texts)

    def parse(some: pa.Array) -> pa.Array | None:
        if not is_given:
            return as_type(some, kind)
        try:
            values = some if kind == TEXT else converted(pc.ascii_trim_whitespace(some), kind)
        except _CASTS:
            return None
        # A large number is infinite in 32 bits.
        return (
            values if not pa.types.is_float32(kind) or _infinite(values) == _infinite(converted(some, FLOAT)) else None
        )

    wrong = misfits(texts, lambda some: parse(some) is not None)
    if wrong:
        left = {*wrong}
        texts = pc.if_else(pa.array([row in left for row in range(len(texts))]), pa.scalar(None, TEXT), texts)
    return parse(texts), wrong


def _infinite(values: pa.Array) -> int:
    return pc.sum(pc.is_inf(values)).as_py() or 0


def _converted(value: Any, kind: pa.DataType, is_given: bool) -> Any:
    """Returns a value as one of a type, without loss. Raises ValueError or TypeError if it is not of the type."""
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    if isinstance(value, Cell) or (is_given and isinstance(value, str) and not pa.types.is_string(kind)):
        column, wrong = _column_of_cells([Cell(value)], kind, is_given)
        if wrong:
            raise ValueError(f"{value!r} is not of type {kind}")
        return column[0].as_py()
    if pa.types.is_string(kind) and (isinstance(value, str) or (is_given and (is_number or isinstance(value, bool)))):
        text = str(value)
        text.encode()  # surrogates are no Unicode
        return text
    if isinstance(value, str) and value in _NOT_FINITE and kind == FLOAT:
        return float(value)
    if pa.types.is_integer(kind) and is_number and value == int(value):
        if not -(1 << kind.bit_width - 1) <= value < 1 << kind.bit_width - 1:
            raise ValueError(f"{value} is too large for {kind}")
        return int(value)
    if pa.types.is_floating(kind) and is_number:
        number = float(value)
        is_whole = isinstance(value, int) and abs(value) > _EXACT
        is_finer = isinstance(value, Decimal) and pa.types.is_float64(kind) and Decimal(repr(number)) != value
        if is_whole or is_finer or (pa.types.is_float32(kind) and _SINGLE <= abs(number) < math.inf):
            raise ValueError(f"{value} is no float without loss")
        return number
    if (pa.types.is_boolean(kind) and isinstance(value, bool)) or (kind in TIMES and isinstance(value, date)):
        return _as_is(value, kind)
    raise TypeError(f"not of type {kind}")
