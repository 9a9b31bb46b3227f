"""Converts arrays to types that Arrow casts and TFDV knows: no fixed-size lists or bytes, no half floats, no times."""

from __future__ import annotations

from uuid import UUID

import numpy as np
import pyarrow as pa

from airflow_hops.ml.readers.vectors import flat_values, lists_of


def is_plain(kind: pa.DataType, *, times: bool = True) -> bool:
    """Returns whether a type has neither fixed-size lists or bytes nor half floats.

    Args:
        kind: The type.
        times: Whether times, durations, decimals and maps are plain.
    """
    kinds = pa.types
    if kinds.is_dictionary(kind) or kinds.is_list(kind) or kinds.is_large_list(kind):
        return is_plain(kind.value_type, times=times)
    if kinds.is_struct(kind):
        return all(is_plain(field.type, times=times) for field in kind)
    if not times and (is_time(kind) or kinds.is_decimal(kind) or kinds.is_map(kind)):
        return False
    return not (kinds.is_fixed_size_list(kind) or kinds.is_fixed_size_binary(kind) or kinds.is_float16(kind))


def is_time(kind: pa.DataType) -> bool:
    """Returns whether a type is of dates, times or durations."""
    kinds = pa.types
    return any(is_of(kind) for is_of in (kinds.is_timestamp, kinds.is_date, kinds.is_time, kinds.is_duration))


def is_uuid(kind: pa.DataType) -> bool:
    """Returns whether a type is Arrow's own of UUIDs, which older releases lack."""
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == "arrow.uuid"


def uuid_texts(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Converts UUIDs of 16 bytes to text where a type has strings, at any depth."""
    array, kinds = getattr(array, "storage", array), pa.types
    if kinds.is_string(kind) and kinds.is_fixed_size_binary(array.type):
        return pa.array([None if value is None else str(UUID(bytes=value)) for value in array.to_pylist()], kind)
    if kinds.is_list(kind):
        return lists_of(uuid_texts(array.flatten(), kind.value_type), array)
    missing = np.asarray(array.is_null())
    if kinds.is_map(kind):
        keys, items = uuid_texts(array.keys, kind.key_type), uuid_texts(array.items, kind.item_type)
        return pa.MapArray.from_arrays(pa.array(np.asarray(array.offsets), mask=np.append(missing, False)), keys, items)
    if kinds.is_struct(kind):
        fields = [uuid_texts(values, field.type) for values, field in zip(array.flatten(), kind, strict=True)]
        return pa.StructArray.from_arrays(fields, [field.name for field in kind], mask=pa.array(missing))
    return array


def plain(array: pa.Array, *, times: bool = True) -> pa.Array:
    """Converts fixed-size lists and bytes to variable-size ones, and half floats to floats, at any depth.

    Args:
        array: The array.
        times: Whether times, durations, decimals and maps stay. Otherwise, dates and timestamps become seconds since
            the epoch, times of day seconds, durations microseconds, decimals floats, and maps lists of key and value.
    """
    kind, kinds = array.type, pa.types
    if is_plain(kind, times=times):
        return array
    if is_time(kind):
        if kinds.is_duration(kind):
            return array.cast(pa.duration("us"), safe=False).cast(pa.int64())
        if kinds.is_time(kind):
            return array.cast(pa.time32("s"), safe=False).cast(pa.int32()).cast(pa.int64())
        return array.cast(pa.timestamp("us"), safe=False).cast(pa.timestamp("s"), safe=False).cast(pa.int64())
    if kinds.is_decimal(kind):
        return array.cast(pa.float64())
    missing = np.asarray(array.is_null())
    if kinds.is_dictionary(kind):
        return plain(array.dictionary_decode(), times=times)
    if kinds.is_float16(kind):
        return pa.array(array.to_numpy(zero_copy_only=False).astype(np.float32), mask=missing)
    if kinds.is_fixed_size_binary(kind):
        # PyArrow 10.0: its cast of a slice reads beyond the values, and gives nulls a length; take() copies them.
        values = array.take(pa.array(np.flatnonzero(~missing))).cast(pa.binary())
        return values.take(pa.array(np.cumsum(~missing) - 1, mask=missing))
    if kinds.is_struct(kind):
        fields = [plain(field, times=times) for field in array.flatten()]
        return pa.StructArray.from_arrays(fields, [field.name for field in kind], mask=pa.array(missing))
    if kinds.is_map(kind):
        entries = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        array = pa.ListArray.from_arrays(pa.array(np.asarray(array.offsets), mask=np.append(missing, False)), entries)
    return lists_of(plain(flat_values(array), times=times), array, large=kinds.is_large_list(kind))
