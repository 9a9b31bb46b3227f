"""Record batches in the form that TFDV takes: every column a list array, or a struct of such."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from tfx_bsl.arrow import array_util


def as_lists(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A record batch as TFDV wants it: a single value becomes a list of one, a missing value a null list.

    Strings become bytes (without a copy), booleans integers, and values of a dictionary plain ones. NaN stays NaN.
    """
    return pa.RecordBatch.from_arrays([_as_list(column) for column in batch.columns], batch.schema.names)


def _as_list(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_null(kind):
        return array
    if pa.types.is_struct(kind):
        return _wrapped(_struct_of_lists(array))
    if is_list(kind):
        return _list(array)
    return array_util.ToSingletonListArray(_plain(array))


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is a list, of whatever size of offsets."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _list(array: pa.Array) -> pa.Array:
    values = array.values
    kind = values.type
    if is_list(kind):
        plain = _list(values)
    elif pa.types.is_struct(kind):
        plain = _struct_of_lists(values)
    else:
        plain = values if pa.types.is_null(kind) else _plain(values)
    return array if plain is values else _with_values(array, plain)


def _with_values(array: pa.Array, values: pa.Array) -> pa.Array:
    """The list array with other values in the same places."""
    offsets = array.offsets
    if array.null_count:
        # A null offset makes a null list.
        missing: np.ndarray = np.append(np.asarray(array.is_null()), False)
        offsets = pa.array(offsets.to_numpy(), offsets.type, mask=missing)
    maker = pa.LargeListArray if pa.types.is_large_list(array.type) else pa.ListArray
    return maker.from_arrays(offsets, values)


def _struct_of_lists(array: pa.Array) -> pa.Array:
    # flatten() hands the nulls of the struct on to its fields.
    fields = [_as_list(field) for field in array.flatten()]
    return pa.StructArray.from_arrays(fields, [field.name for field in array.type])


def _wrapped(array: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(np.arange(len(array) + 1, dtype=np.int32)), array)


def _plain(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    if pa.types.is_string(kind):
        return array.cast(pa.binary())
    if pa.types.is_large_string(kind):
        return array.cast(pa.large_binary())
    if pa.types.is_boolean(kind):
        return array.cast(pa.int64())
    if pa.types.is_float16(kind):
        return array.cast(pa.float32())
    return array
