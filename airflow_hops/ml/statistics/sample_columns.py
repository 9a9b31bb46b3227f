"""Columns of a sample of rows: short values, and their sizes."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.ml.readers.joined_types import is_text
from airflow_hops.ml.readers.vectors import list_lengths, lists_of
from airflow_hops.ml.statistics.formats.feature_types import is_list

MAX_VALUE_BYTES = 1024
"""Longer text is replaced by its digest."""

_is = pa.types


def decoded(kind: pa.DataType) -> pa.DataType:
    """Returns the type of :func:`shortened` values: a dictionary's are plain ones, at any depth."""
    if _is.is_dictionary(kind):
        return decoded(kind.value_type)
    if is_list(kind) and decoded(kind.value_type) != kind.value_type:
        return (pa.large_list if _is.is_large_list(kind) else pa.list_)(decoded(kind.value_type))
    if _is.is_struct(kind):
        return pa.struct([(field.name, decoded(field.type)) for field in kind])
    return kind


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
        ends = np.append(0, np.cumsum(value_bytes(array.flatten())))[np.append(0, np.cumsum(list_lengths(array)))]
        return np.diff(ends)
    if _is.is_struct(kind):
        return sum((value_bytes(field) for field in array.flatten()), np.zeros(len(array), np.int64))
    return np.asarray(array.is_valid(), np.int64) * (0 if _is.is_null(kind) else max(1, kind.bit_width // 8))
