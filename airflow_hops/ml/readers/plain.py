"""Converts arrays to types that Arrow casts and TFDV knows: no fixed-size lists or bytes, no half floats."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def is_plain(kind: pa.DataType) -> bool:
    """Returns whether a type has neither fixed-size lists or bytes nor half floats."""
    kinds = pa.types
    if kinds.is_dictionary(kind) or kinds.is_list(kind) or kinds.is_large_list(kind):
        return is_plain(kind.value_type)
    if kinds.is_struct(kind):
        return all(is_plain(field.type) for field in kind)
    return not (kinds.is_fixed_size_list(kind) or kinds.is_fixed_size_binary(kind) or kinds.is_float16(kind))


def plain(array: pa.Array) -> pa.Array:
    """Converts fixed-size lists and bytes to variable-size ones, and half floats to floats, at any depth."""
    kind, kinds = array.type, pa.types
    if is_plain(kind):
        return array
    missing = np.asarray(array.is_null())
    if kinds.is_dictionary(kind):
        return plain(array.dictionary_decode())
    if kinds.is_float16(kind):
        return pa.array(array.to_numpy(zero_copy_only=False).astype(np.float32), mask=missing)
    if kinds.is_fixed_size_binary(kind):
        # take() copies the values: Arrow's cast of a slice reads beyond them, and gives nulls a length.
        values = array.take(pa.array(np.flatnonzero(~missing))).cast(pa.binary())
        return values.take(pa.array(np.cumsum(~missing) - 1, mask=missing))
    if kinds.is_struct(kind):
        fields = [plain(field) for field in array.flatten()]
        return pa.StructArray.from_arrays(fields, [field.name for field in kind], mask=pa.array(missing))
    # flatten() skips the values of missing lists.
    lengths = np.asarray(pc.fill_null(pc.list_value_length(array), 0))
    ends = pa.array(np.append(0, np.cumsum(lengths)), mask=np.append(missing, False))
    if kinds.is_large_list(kind):
        return pa.LargeListArray.from_arrays(ends.cast(pa.int64()), plain(array.flatten()))
    return pa.ListArray.from_arrays(ends.cast(pa.int32()), plain(array.flatten()))
