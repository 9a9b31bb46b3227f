"""Converts record batches to TFDV's form, in which every column is a list array or a struct of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_hops.ml.readers.vectors import lists_of
from airflow_hops.ml.statistics.formats.feature_types import batch_of, is_list


def as_lists(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Converts a batch to TFDV's form: a single value becomes a list of one, a missing value a null list.

    Strings become bytes (without a copy), booleans integers, and dictionary values plain ones. NaN stays NaN.
    """
    return batch_of([_as_list(column) for column in batch.columns], batch.schema.names, batch.num_rows)


def _as_list(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_null(kind):
        return array
    if pa.types.is_struct(kind):
        return _singletons(_struct_of_lists(array.drop_null()), np.asarray(array.is_null()))
    if is_list(kind):
        return _list(array)
    plain = _plain(array)
    # Not array_util.ToSingletonListArray, which makes large lists: batches of slices are merged, which takes one type.
    return _singletons(plain.drop_null(), np.asarray(plain.is_null())) if plain.null_count else _singletons(plain)


def _list(array: pa.Array) -> pa.Array:
    # TFDV 1.16: needs offsets from zero, which slices of arrays lack; flatten() also drops values outside the slice.
    values = array.flatten()
    kind = values.type
    if is_list(kind):
        values = _list(values)
    elif pa.types.is_struct(kind):
        values = _struct_of_lists(values)
    elif not pa.types.is_null(kind):
        values = _plain(values)
    return lists_of(values, array, large=pa.types.is_large_list(array.type))


def _struct_of_lists(array: pa.Array) -> pa.Array:
    # flatten() makes the fields of a null struct null.
    fields = [_as_list(field) for field in array.flatten()]
    return pa.StructArray.from_arrays(fields, [field.name for field in array.type])


def _singletons(array: pa.Array, missing: np.ndarray | None = None) -> pa.Array:
    """Makes lists of one value; where ``missing``, the list is null and ``array`` has no value."""
    if missing is None or not missing.any():
        return pa.ListArray.from_arrays(pa.array(np.arange(len(array) + 1, dtype=np.int32)), array)
    offsets: np.ndarray = np.append(0, np.cumsum(~missing)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets, mask=np.append(missing, False)), array)


def _plain(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    if not len(array):
        # TFDV 1.16: its slicing reads buffers that Arrow omits for a file's empty arrays.
        array = pa.array([], kind)
    if pa.types.is_string(kind):
        return array.cast(pa.binary())
    if pa.types.is_large_string(kind):
        return array.cast(pa.large_binary())
    if pa.types.is_boolean(kind):
        return array.cast(pa.int64())
    return array
