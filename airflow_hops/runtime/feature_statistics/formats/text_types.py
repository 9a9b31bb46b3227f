"""Types of text, as TFDV's decoder of CSV infers them: int64, then float32, then string.

A value is a number where Python says so (``int``, ``float``): "+5" and "1_000" are, "0x1F" is not, and an integer
beyond int64 is text. Arrow parses what is usual at speed; the unusual is left to Python, each distinct value once.

Source: ``tfx_bsl.coders.csv_decoder``, ``_InferValueType``.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

INTEGER, FLOAT, TEXT = pa.int64(), pa.float32(), pa.string()
_LADDER = (pa.null(), INTEGER, FLOAT, TEXT)
_INT64 = range(-(1 << 63), 1 << 63)


def wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds the values of both."""
    return max(one, other, key=_LADDER.index)


def type_of_text(texts: pa.Array) -> pa.DataType:
    """The type of all values together; null if there are none."""
    if texts.null_count == len(texts):
        return pa.null()
    for kind in (INTEGER, FLOAT):
        if _quickly(texts, kind) is not None:
            return kind
    found = pa.null()
    for value in pc.unique(texts.cast(pa.binary())).drop_null().to_pylist():
        found = wider(found, _type_of_value(value))
        if found == TEXT:
            break
    return found


def text_as(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values in a type that :func:`type_of_text` says holds them."""
    if kind == TEXT:
        return texts
    if pa.types.is_null(kind):
        return pa.nulls(len(texts))
    quick = _quickly(texts, kind)
    if quick is not None:
        return quick
    coded = texts.cast(pa.binary()).dictionary_encode()
    parse = int if kind == INTEGER else float
    return pa.array([parse(value) for value in coded.dictionary.to_pylist()], kind).take(coded.indices)


def may_hide_text(floats: pa.Array) -> bool:
    """Whether a float64 column may have been parsed from integers beyond int64, which are text."""
    bounds = pc.min_max(floats).as_py()
    return bounds["max"] is not None and (bounds["max"] >= 2.0**63 or bounds["min"] <= -(2.0**63))


def _quickly(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """The values as Arrow parses them, or None if Arrow and Python may not agree."""
    try:
        numbers = texts.cast(INTEGER if kind == INTEGER else pa.float64())
    except pa.ArrowInvalid:
        return None
    if kind == INTEGER:
        # Arrow reads hexadecimal.
        return None if any(pc.any(pc.match_substring(texts, mark)).as_py() for mark in "xX") else numbers
    return None if may_hide_text(numbers) else numbers.cast(FLOAT, safe=False)


def _type_of_value(value: bytes) -> pa.DataType:
    try:
        return INTEGER if int(value) in _INT64 else TEXT
    except ValueError:
        pass
    try:
        float(value)
    except ValueError:
        return TEXT
    return FLOAT
