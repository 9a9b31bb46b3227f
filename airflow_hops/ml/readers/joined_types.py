"""Joined types: which type holds the values of two, of a column's blocks, files or batches.

:func:`join` goes into lists and structs, and asks a rule for what is within: :func:`of_text` for values that are stored
as text, which holds any two; :func:`of_files` for typed files, where a loss is an error; :func:`of_batches` for
samples, which hold what TFDV counts together. :func:`widened` converts values to a joined type.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from airflow_hops.ml.readers.text_types import (
    DATE,
    FLOAT,
    INTEGER,
    LARGE_INTEGER,
    TEXT,
    TIME,
    UTC_TIME,
)
from airflow_hops.ml.readers.vectors import is_list, lists_of, map_types

Rule = Callable[[pa.DataType, pa.DataType], "pa.DataType | None"]
"""Returns the type that holds values of two different types, neither of them null; None if none does."""

_OF_TEXT = {
    frozenset({INTEGER, LARGE_INTEGER}): LARGE_INTEGER,
    frozenset({INTEGER, FLOAT}): FLOAT,
    frozenset({DATE, TIME}): TIME,
    frozenset({DATE, UTC_TIME}): UTC_TIME,
    frozenset({TIME, UTC_TIME}): UTC_TIME,
}
"""Joined types of text; of all other pairs it is text."""
_is = pa.types


def of_text(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Joins types of :mod:`~airflow_hops.ml.readers.text_types`."""
    return _OF_TEXT.get(frozenset({one, other}), TEXT)


def of_files(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Joins types of typed files, without loss."""
    if _is.is_integer(one) and _is.is_integer(other):
        return INTEGER
    if all(_is.is_integer(t) or _is.is_floating(t) for t in (one, other)):
        return FLOAT
    if all(_is.is_timestamp(t) or _is.is_date(t) for t in (one, other)):
        zones = {t.tz for t in (one, other) if _is.is_timestamp(t)}
        return pa.timestamp("us", zones.pop()) if len(zones) == 1 else None
    return None


def of_batches(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Joins types of batches: text and bytes; numbers and booleans, rounded; lists, which hold single values, too."""
    if is_list(one) or is_list(other):
        one, other = (kind.value_type if is_list(kind) else kind for kind in (one, other))
        values = join(one, other, of_batches)
        return None if values is None else pa.list_(values)
    if is_text(one) and is_text(other):
        return TEXT if is_string(one) and is_string(other) else pa.binary()
    if not all(_is.is_integer(t) or _is.is_floating(t) or _is.is_boolean(t) for t in (one, other)):
        return None
    return FLOAT if any(_is.is_floating(t) or _is.is_uint64(t) for t in (one, other)) else INTEGER


def is_string(kind: pa.DataType) -> bool:
    """Returns whether a type is of strings."""
    return bool(_is.is_string(kind) or _is.is_large_string(kind))


def is_text(kind: pa.DataType) -> bool:
    """Returns whether a type is of strings or bytes of any length."""
    return is_string(kind) or bool(_is.is_binary(kind) or _is.is_large_binary(kind))


def join(one: pa.DataType, other: pa.DataType, rule: Rule) -> pa.DataType | None:
    """Returns the type that holds the values of both types, or None."""
    if one == other or _is.is_null(other):
        return one
    if _is.is_null(one):
        return other
    if is_list(one) and is_list(other):
        values = join(one.value_type, other.value_type, rule)
        return None if values is None else pa.list_(values)
    if _is.is_struct(one) and _is.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = join(fields.get(field.name, pa.null()), field.type, rule)
        return None if None in fields.values() else pa.struct(list(fields.items()))
    return rule(one, other)


def join_texts(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Joins two types of values that are stored as text."""
    joined = join(one, other, of_text)
    return TEXT if joined is None else joined


def settled(type_: pa.DataType) -> pa.DataType:
    """Replaces placeholders at any depth, once all values are known.

    Large integers are int64; objects without fields, for which Spark and TFDV have no type, are text.
    """
    return map_types(type_, lambda leaf: TEXT if _is.is_struct(leaf) else INTEGER if leaf == LARGE_INTEGER else leaf)


def without_empty(type_: pa.DataType) -> pa.DataType:
    """Replaces objects without fields, at any depth, by null: later ones may have fields."""
    return map_types(type_, lambda leaf: pa.null() if _is.is_struct(leaf) else leaf)


def widened(array: pa.Array, type_: pa.DataType, *, rounded: bool = False) -> pa.Array:
    """Converts values to a type that :func:`join` returned.

    Args:
        array: The values.
        type_: The type.
        rounded: Whether float64 may round integers.

    Raises:
        pa.ArrowInvalid: float64 does not hold an integer.
        pa.ArrowNotImplementedError: :func:`join` cannot have returned the type.
    """
    if array.type == type_:
        return array
    if _is.is_null(array.type):
        return pa.nulls(len(array), type_)
    if _is.is_struct(type_) and _is.is_struct(array.type):
        fields = {field.name: values for field, values in zip(array.type, array.flatten(), strict=True)}
        columns = [widened(fields.get(f.name, pa.nulls(len(array))), f.type, rounded=rounded) for f in type_]
        return pa.StructArray.from_arrays(columns, [item.name for item in type_], mask=array.is_null())
    if is_list(type_) and (rounded or is_list(array.type)):
        values = array.flatten() if is_list(array.type) else array.drop_null()
        values = widened(values, type_.value_type, rounded=rounded)
        return lists_of(values, array, large=_is.is_large_list(type_))
    return array.cast(type_, safe=not (rounded and _is.is_integer(array.type) and _is.is_floating(type_)))
