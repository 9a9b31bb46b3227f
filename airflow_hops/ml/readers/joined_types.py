"""Joins the types that a column has in different rows, blocks or files."""

from __future__ import annotations

import pyarrow as pa

from airflow_hops.ml.readers.text_types import LARGE_INTEGER
from airflow_hops.ml.readers.text_types import join as join_text
from airflow_hops.ml.readers.vectors import is_list, lists_of, map_types


def join(one: pa.DataType, other: pa.DataType, *, of_text: bool) -> pa.DataType | None:
    """Returns the type that holds the values of both types without loss, or None.

    With ``of_text``, the file stores values as text, which holds the values of any two types.
    """
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if is_list(one) and is_list(other):
        values = join(one.value_type, other.value_type, of_text=of_text)
        return None if values is None else pa.list_(values)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            joined = join(fields.get(field.name, pa.null()), field.type, of_text=of_text)
            if joined is None:
                return None
            fields[field.name] = joined
        return pa.struct(list(fields.items()))
    if of_text:
        return join_text(one, other)
    if pa.types.is_integer(one) and pa.types.is_integer(other):
        return pa.int64()
    if all(pa.types.is_integer(t) or pa.types.is_floating(t) for t in (one, other)):
        return pa.float64()
    if all(pa.types.is_timestamp(t) or pa.types.is_date(t) for t in (one, other)):
        zones = {t.tz for t in (one, other) if pa.types.is_timestamp(t)}
        return pa.timestamp("us", zones.pop()) if len(zones) == 1 else None
    return None


def join_texts(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Joins two types of values that are stored as text."""
    joined = join(one, other, of_text=True)
    return pa.string() if joined is None else joined


def settled(type_: pa.DataType) -> pa.DataType:
    """Replaces placeholders at any depth, once all values are known.

    Large integers are int64; objects without fields, for which Spark and TFDV have no type, are text.
    """

    def leaf(each: pa.DataType) -> pa.DataType:
        return pa.string() if pa.types.is_struct(each) else pa.int64() if each == LARGE_INTEGER else each

    return map_types(type_, leaf)


def widened(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Converts values to a type that :func:`join` returned.

    Raises:
        pa.ArrowInvalid: float64 does not hold an integer.
        pa.ArrowNotImplementedError: :func:`join` cannot have returned the type.
    """
    if array.type == type_:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), type_)
    if pa.types.is_struct(type_) and pa.types.is_struct(array.type):
        fields = {field.name: values for field, values in zip(array.type, array.flatten(), strict=True)}
        columns = [widened(fields.get(item.name, pa.nulls(len(array))), item.type) for item in type_]
        return pa.StructArray.from_arrays(columns, [item.name for item in type_], mask=array.is_null())
    if pa.types.is_list(type_) and is_list(array.type):
        return lists_of(widened(array.flatten(), type_.value_type), array)
    return array.cast(type_)
