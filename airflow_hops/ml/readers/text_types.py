"""Types of text: one set of rules for ingest, statistics and ``airflow hops init``.

A text is a number only if the number, printed, is the same text: ``007``, ``+5``, ``1E5``, ``0x1F`` and 20 digits
remain text. A column has the first type of :data:`_LADDER` that all its values have (``docs/reference/types.md``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Context, Decimal
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

# The ladder of types is tried from the narrowest on, first with 16 values and then with all. A type counts only if
# every value, converted and printed, is the same text again, which is what keeps codes such as 007 text. LARGE_INTEGER
# stands for int64 with values that float64 does not hold: joined with floats it becomes text instead of losing digits.
# It is replaced by int64 when all files are known.

MARKS = (
    (".", ""), (",", ""), (",", "."), (".", ","), (".", " "), (",", " "), (".", "\u00a0"), (",", "\u00a0"),
    (".", "\u202f"), (",", "\u202f"), (".", "'"),
)  # fmt: skip
"""Pairs of decimal mark and thousands separator, the most common first."""
INTEGER, FLOAT, TEXT = pa.int64(), pa.float64(), pa.string()
BOOLEAN, DATE, TIME, UTC_TIME = pa.bool_(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")
LARGE_INTEGER = pa.month_day_nano_interval()
"""Placeholder for int64 with values that float64 does not hold, used until all blocks and files are known."""

TIMES = frozenset({DATE, TIME, UTC_TIME})
_LADDER = (INTEGER, FLOAT, BOOLEAN, DATE, TIME, UTC_TIME)
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_INT64 = range(-(1 << 63), 1 << 63)
_HEAD_VALUES = 16
_SURE_LENGTH = 15
"""Maximum length of a decimal that certainly has at most 15 digits, which float64 holds."""
_CODE = r"^(\+|-?(0[0-9]|[0-9]+[eE][0-9]))"  # PyArrow 10.0: does not parse a plus sign, as newer releases do
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
ZONE = r"[T ].*(Z|[-+][0-9:]+)\s*$"
"""Pattern of times with a zone."""
NUMBER, A_TIME = "a number", "a time"
LIKENESSES = {
    NUMBER: r"^\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?\s*$",
    A_TIME: r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9].*)?$",
}
_FEW = 0.1
NOT_THE_SAME = "would not be the same text again as a number"


def type_of(texts: pa.Array) -> pa.DataType:
    """Returns the type that all values have; null if there are no values."""
    if texts.null_count == len(texts):
        return pa.null()
    head = texts.drop_null()[:_HEAD_VALUES]
    for kind in _LADDER:
        # PyArrow 10.0: takes a microsecond for each value that it cannot parse, so the head comes first.
        values = None if as_type(head, kind) is None else as_type(texts, kind)
        if values is not None:
            return type_of_integers(values) if kind == INTEGER else kind
    return TEXT


def time_or_text(texts: pa.Array) -> pa.DataType:
    """Returns the type of strings, which are never numbers."""
    kind = type_of(texts)
    return kind if kind in TIMES or pa.types.is_null(kind) else TEXT


def as_type(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Converts values to a type; None if one of them is not of the type."""
    if kind == TEXT:
        return texts
    if pa.types.is_null(kind):
        return pa.nulls(len(texts)) if texts.null_count == len(texts) else None
    try:
        return _PARSERS[INTEGER if kind == LARGE_INTEGER else kind](pc.ascii_trim_whitespace(texts))
    except pa.ArrowInvalid:
        return None


def type_of_number(literal: str) -> pa.DataType:
    """Returns the type of a JSON number; text if neither int64 nor float64 holds it."""
    if literal.lstrip("-").isdigit():
        if int(literal) not in _INT64:
            return TEXT
        return INTEGER if is_exact(literal) else LARGE_INTEGER
    return FLOAT if is_exact(literal) else TEXT


def type_of_integers(integers: pa.Array) -> pa.DataType:
    """Returns int64, or :data:`LARGE_INTEGER` if float64 does not hold all values."""
    again = integers.cast(FLOAT, safe=False).cast(INTEGER, safe=False)
    return INTEGER if again.equals(integers) else LARGE_INTEGER


def number_pattern(decimal: str, thousands: str = "", unit: str = "") -> str:
    """Returns a regular expression for numbers with these marks."""
    decimal, thousands, unit = (re.escape(mark) for mark in (decimal, thousands, unit))
    whole = rf"([1-9][0-9]{{0,2}}({thousands}[0-9]{{3}})+|[0-9]+)" if thousands else "[0-9]+"
    number = rf"({whole}({decimal}[0-9]*)?|{decimal}[0-9]+)([eE][-+]?[0-9]+)?"
    blank = r"[\s\x{a0}\x{202f}]?"
    return (
        rf"^\s*(-?{unit} ?{number}|{unit} ?-{number}|-?{number}{blank}{unit})\s*$" if unit else rf"^\s*-?{number}\s*$"
    )


def is_exact(number: str) -> bool:
    """Returns whether float64 preserves all digits of an int64 integer, or all digits written of another number."""
    value = float(number)
    if not math.isfinite(value):
        return not any(map(str.isdigit, number))
    mantissa, exponent, _ = number.lower().partition("e")
    whole, point, decimals = mantissa.partition(".")
    if not (point or exponent):
        return int(whole) in _INT64 and int(value) == int(whole)
    if f"{value:.{len(decimals)}{exponent or 'f'}}" == number:
        return True
    written = Decimal(number).normalize()
    return Context(prec=max(1, len(written.as_tuple().digits))).plus(Decimal(value)) == written


def why_text(texts: pa.Array) -> tuple[int, str] | None:
    """Returns the position of the value that makes text of numbers or times, and why; None if most are neither."""
    count = len(texts) - texts.null_count
    for what, pattern in LIKENESSES.items():
        alike = pc.match_substring_regex(texts, pattern)
        others = count - (pc.sum(alike).as_py() or 0)
        if 0 < others <= _FEW * count:
            return pc.index(alike, False).as_py(), f"is not {what}, as {count - others} of {count} values are"
        if others == 0 and what == NUMBER:
            return first_bad(texts, lambda some: as_type(some, FLOAT) is not None), NOT_THE_SAME
    return None


def utc_times(texts: pa.Array) -> pa.Array:
    """Converts times to UTC, which those without a zone are taken to be in.

    Raises:
        pa.ArrowInvalid: a value is not a time, or has nanoseconds.
    """
    zoned = pc.match_substring_regex(texts, ZONE)
    plain = _times(pc.if_else(zoned, None, texts), TIME).cast(INTEGER).cast(UTC_TIME)
    return pc.coalesce(_times(pc.if_else(zoned, texts, None), UTC_TIME), plain)


def first_bad(array: pa.Array, is_good: Callable[[pa.Array], bool]) -> int:
    """Returns the index of the first value that makes an array bad, by bisection."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_good(array[low:middle]) else (low, middle)
    return low


def _integers(texts: pa.Array) -> pa.Array | None:
    integers = texts.cast(INTEGER)
    return integers if integers.cast(TEXT).equals(texts) else None


def _floats(texts: pa.Array) -> pa.Array | None:
    floats = texts.cast(FLOAT)
    if pc.any(pc.match_substring_regex(texts, _CODE)).as_py():
        return None
    is_short = pc.less_equal(pc.binary_length(texts), _SURE_LENGTH)
    is_sure = pc.and_(is_short, pc.and_(pc.is_finite(floats), pc.not_equal(floats, 0)))
    doubtful = texts.filter(pc.invert(is_sure))
    doubtful = doubtful.filter(pc.not_equal(doubtful.cast(FLOAT).cast(TEXT), doubtful))
    return floats if all(map(is_exact, pc.unique(doubtful).to_pylist())) else None


def _booleans(texts: pa.Array) -> pa.Array | None:
    known = pa.array([*_TRUE, *_FALSE, None])
    if not pc.all(pc.is_in(texts, value_set=known), min_count=0).as_py():
        return None
    return pc.if_else(pc.is_valid(texts), pc.is_in(texts, value_set=pa.array(_TRUE)), pa.scalar(None, BOOLEAN))


def _dates(texts: pa.Array) -> pa.Array | None:
    times = texts.cast(TIME)
    return times.cast(DATE) if pc.all(pc.match_substring_regex(texts, _DATE), min_count=0).as_py() else None


def _times(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:  # nanoseconds, which may be zero; Arrow's own type of them would wrap other years silently
        return pc.replace_substring_regex(texts, r"(\.[0-9]{6})0+", r"\1").cast(kind)


_PARSERS: dict[pa.DataType, Callable[[pa.Array], pa.Array | None]] = {
    INTEGER: _integers,
    FLOAT: _floats,
    BOOLEAN: _booleans,
    DATE: _dates,
    TIME: partial(_times, kind=TIME),
    UTC_TIME: utc_times,
}
