"""Columns of a sample of rows: short values, their sizes, and a type for all batches."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.ml.readers.vectors import list_lengths, lists_of
from airflow_hops.ml.statistics.formats.feature_types import is_list

MAX_VALUE_BYTES = 1024
"""Longer text is replaced by its digest."""

_is = pa.types


def is_text(kind: pa.DataType) -> bool:
    """Returns whether a type is of strings or bytes."""
    checks = (_is.is_string, _is.is_large_string, _is.is_binary, _is.is_large_binary)
    return any(is_of(kind) for is_of in checks)


def decoded(kind: pa.DataType) -> pa.DataType:
    """Returns the type of :func:`shortened` values: a dictionary's are plain ones, at any depth."""
    if _is.is_dictionary(kind):
        return decoded(kind.value_type)
    if is_list(kind) and decoded(kind.value_type) != kind.value_type:
        return (pa.large_list if _is.is_large_list(kind) else pa.list_)(decoded(kind.value_type))
    if _is.is_struct(kind):
        return pa.struct([(field.name, decoded(field.type)) for field in kind])
    return kind


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Returns the type for a column whose batches have two types; None if TFDV has no statistics of the type.

    A list holds single values, too. The order of the types does not matter, but for that of a struct's fields.
    """
    if one == other or _is.is_null(other):
        return one
    if _is.is_null(one):
        return other
    if is_list(one) or is_list(other):
        values = common_type(*(kind.value_type if is_list(kind) else kind for kind in (one, other)))
        return None if values is None else pa.list_(values)
    if _is.is_struct(one) and _is.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = common_type(fields.get(field.name, pa.null()), field.type)
        return None if None in fields.values() else pa.struct(list(fields.items()))
    if is_text(one) and is_text(other):
        return pa.binary() if _is.is_binary(one) or _is.is_binary(other) else pa.string()
    numbers = [kind for kind in (one, other) if _is.is_integer(kind) or _is.is_floating(kind) or _is.is_boolean(kind)]
    if len(numbers) < 2:
        return None
    is_float = any(_is.is_floating(kind) or _is.is_uint64(kind) for kind in numbers)
    return pa.float64() if is_float else pa.int64()


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Converts a column to a type that :func:`common_type` returned; float64 rounds large integers."""
    if array.type == kind:
        return array
    if _is.is_null(array.type):
        return pa.nulls(len(array), kind)
    if is_list(kind):
        values = array.flatten() if is_list(array.type) else array.drop_null()
        return lists_of(as_type(values, kind.value_type), array, _lengths(array), large=_is.is_large_list(kind))
    if _is.is_struct(kind):
        fields = dict(zip([field.name for field in array.type], array.flatten(), strict=True))
        columns = [as_type(fields.get(field.name, pa.nulls(len(array))), field.type) for field in kind]
        return pa.StructArray.from_arrays(columns, [field.name for field in kind], mask=array.is_null())
    return array.cast(kind, safe=not (_is.is_integer(array.type) and _is.is_floating(kind)))


def shortened(array: pa.Array) -> pa.Array:
    """Replaces text and bytes of more than :data:`MAX_VALUE_BYTES` by ``sha256:<hex> (<n> bytes)``, at any depth.

    Values of dictionaries become plain ones.
    """
    kind = array.type
    if _is.is_dictionary(kind):
        return shortened(array.dictionary_decode())
    if _is.is_struct(kind) and kind.num_fields:
        fields = [shortened(field) for field in array.flatten()]
        return pa.StructArray.from_arrays(fields, [field.name for field in kind], mask=array.is_null())
    if is_list(kind):
        return lists_of(shortened(array.flatten()), array, large=_is.is_large_list(kind))
    if not is_text(kind):
        return array
    is_long = pc.greater(pc.binary_length(array), MAX_VALUE_BYTES)
    if not pc.any(is_long).as_py():
        return array
    long = array.filter(is_long).cast(pa.large_binary()).to_pylist()
    digests = [f"sha256:{hashlib.sha256(value).hexdigest()} ({len(value)} bytes)" for value in long]
    return pc.replace_with_mask(array, pc.fill_null(is_long, False), pa.array(digests, pa.string()).cast(kind))


def value_bytes(array: pa.Array) -> np.ndarray:
    """Returns the bytes of each row's value, int64; a missing one has none."""
    kind = array.type
    if is_text(kind):
        return np.asarray(pc.fill_null(pc.binary_length(array), 0), np.int64)
    if is_list(kind):
        ends = np.append(0, np.cumsum(value_bytes(array.flatten())))[np.append(0, np.cumsum(_lengths(array)))]
        return np.diff(ends)
    if _is.is_struct(kind):
        return sum((value_bytes(field) for field in array.flatten()), np.zeros(len(array), np.int64))
    return np.asarray(array.is_valid(), np.int64) * (0 if _is.is_null(kind) else max(1, kind.bit_width // 8))


def _lengths(array: pa.Array) -> np.ndarray:
    """Returns the number of values in each row; a single value counts as a list of one."""
    if not is_list(array.type):
        return np.asarray(array.is_valid(), np.int64)
    return list_lengths(array)
