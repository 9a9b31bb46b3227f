"""Columns that ``prepare`` returns: which types they may have, and their values in the types of examples."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.target import REGRESSION
from airflow_hops.core.errors import BadInput, MissingColumn, SchemaMismatch
from airflow_hops.core.prepare.options import PrepareOptions
from airflow_hops.ml.features.raw_features import check_names
from airflow_hops.ml.prepare.hashes import list_offsets
from airflow_hops.ml.readers.types import CALENDAR_S

REASON_COLUMN = "reject_reason"
CLASS_COLUMN = "__class__"
IDENTITY_COLUMN = "__identity__"
_NUMBERS = {"an integer", "a float", "a decimal"}
_ARRAY = "an array of "
EXACT = 2**53
"""Doubles represent every integer up to it."""
_DAY_S = 86_400
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def kind_of(type_: pa.DataType) -> str:
    """Returns a type in words, such as ``an integer`` or ``an array of a float``; Arrow's name of any other type."""
    types = pa.types
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return _ARRAY + kind_of(type_.value_type)
    if types.is_dictionary(type_):
        return kind_of(type_.value_type)
    kinds = {
        "an integer": types.is_integer(type_),
        "a float": types.is_floating(type_),
        "a decimal": types.is_decimal128(type_),
        "a boolean": types.is_boolean(type_),
        "a string": types.is_string(type_) or types.is_large_string(type_),
        "a timestamp": types.is_timestamp(type_),
        "a date": types.is_date(type_),
    }
    return next((kind for kind, holds in kinds.items() if holds), str(type_))


def is_vector(type_: object) -> bool:
    """Returns whether a feature's values are arrays."""
    return kind_of(type_).startswith(_ARRAY)


def leading_names(options: PrepareOptions) -> list[str]:
    """Returns the columns that are not features, in their order in the files."""
    names = (options.key, options.time, options.label, *options.more_labels, options.weight)
    return [name for name in names if name]


def check_columns(schema: pa.Schema, options: PrepareOptions) -> None:
    """Checks names and types of the columns that ``prepare`` returned.

    Raises:
        BadInput: a column is missing, or of a type that examples cannot have.
    """
    names = schema.names
    if reserved := {CLASS_COLUMN, IDENTITY_COLUMN}.intersection(names):
        raise BadInput(f"prepare returned a column {min(reserved)!r}, a name that this stage reserves; rename it")
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"prepare returned two columns {twice[0]!r}; rename or drop one of them after the join")
    check_names(names, "what prepare returned")
    for argument in ("label", "key", "time", "weight"):
        if (name := getattr(options, argument)) and name not in names:
            raise MissingColumn(options.prepare, name).with_text(
                f"{argument} is {name!r}, but prepare returned no such column; it has {', '.join(names)}"
            )
    for name in options.more_labels:
        if name not in names:
            raise MissingColumn(options.prepare, name).with_text(
                f"more_labels names {name!r}, but prepare returned no such column; it has {', '.join(names)}"
            )
    if not set(names) - {*leading_names(options), REASON_COLUMN}:
        raise BadInput(f"prepare returned no features, only {', '.join(names)}")
    regressions = {each.label for each in options.of_labels if each.problem == REGRESSION}
    allowed: dict[str | None, set[str]] = {
        **{each.label: _NUMBERS | {"a boolean", "a string"} for each in options.of_labels},
        **dict.fromkeys(regressions, _NUMBERS),
        REASON_COLUMN: {"a string", "null"},
        options.key: {"a string", "an integer"},
        options.time: _NUMBERS | {"a timestamp", "a date"},
        options.weight: _NUMBERS,
    }
    of_features = _NUMBERS | {"a boolean", "a string"} | {_ARRAY + number for number in _NUMBERS}
    # These first: otherwise confused arguments would be reported as a feature of a wrong type.
    for field in sorted(schema, key=lambda field: field.name not in allowed):
        if kind_of(field.type) not in allowed.get(field.name, of_features):
            what = " of the label of a regression" if field.name in regressions else ""
            expected = sorted(allowed.get(field.name, _NUMBERS | {"a boolean", "a string", "an array of numbers"}))
            raise SchemaMismatch(options.prepare, field.name, field.type, ", ".join(expected)).with_text(
                f"prepare's column {field.name!r}{what} is of type {field.type}; expected {', '.join(expected)}"
            )


def to_text(column: pa.Array) -> pa.Array:
    """Returns integers, booleans or strings as strings."""
    return column.cast(pa.string())


def to_double(column: pa.Array) -> pa.Array:
    """Returns numbers as doubles, each the nearest one."""
    if not pa.types.is_decimal(column.type):
        return column.cast(pa.float64(), safe=False)
    # PyArrow 10.0: its cast multiplies with a negative power of ten, which rounds twice: 0.3 is not 3 * 0.1.
    words = np.frombuffer(column.buffers()[1], "<i8").reshape(-1, 2)[column.offset :][: len(column)]
    low, high = words.T
    missing = column.is_null().to_numpy(zero_copy_only=False)
    scale = column.type.scale
    exact = (high == low >> 63) & (np.abs(low) <= EXACT) & (0 <= scale <= 22) | missing
    values = low / float(10 ** max(0, scale))
    for row in np.flatnonzero(~exact):
        values[row] = float(column[row].as_py())
    return pa.array(values, mask=missing)


def to_integer(column: pa.Array) -> pa.Array:
    """Returns integers or booleans as int64."""
    return column.cast(pa.int64())


def to_seconds(column: pa.Array, name: str, reasons: pa.Array | None = None) -> pa.Array:
    """Returns times as seconds since the epoch, int64.

    Infinite times, NaN and times of rows with a reason to reject them are missing.

    Raises:
        BadInput: a time is outside the years 1 to 9999, such as milliseconds.
    """
    type_ = column.type
    missing = column.is_null().to_numpy(zero_copy_only=False)
    if reasons is not None:
        missing = missing | reasons.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        date = pa.types.is_date(type_)
        whole = column.cast(pa.date32()).cast(pa.int32()) if date else column.cast(pa.int64())
        values = whole.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        values = values * _DAY_S if date else values // _PER_SECOND[type_.unit]
    else:
        numbers = column if pa.types.is_integer(type_) else to_double(column)
        values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
        missing = missing | ~np.isfinite(values)
    values = np.where(missing, 0, values)
    outside = (values < CALENDAR_S[0]) | (values > CALENDAR_S[-1])
    if outside.any():
        raise BadInput(
            f"prepare's column {name!r} has the time {values[outside][0]}, which is not in the years 1 to 9999; "
            "expected timestamps, dates or seconds since the epoch: divide milliseconds by 1000, or give the row a "
            "reject_reason"
        )
    return pa.array(np.floor(values).astype(np.int64), mask=missing)


def to_label(column: pa.Array, options: PrepareOptions) -> pa.Array:
    """Returns a label as a string, an integer or a double."""
    kind = kind_of(column.type)
    if kind == "a string" or (kind == "a boolean" and options.as_text):
        return to_text(column)
    return to_double(column) if kind in ("a float", "a decimal") else to_integer(column)


def to_feature(column: pa.Array) -> pa.Array:
    """Returns a feature in its type in examples; NaN is missing, except in vectors."""
    kind = kind_of(column.type)
    if kind.startswith(_ARRAY):
        return _vector(column)
    if kind == "a string":
        return to_text(column)
    if kind == "a float":
        column = column.cast(pa.float32()) if pa.types.is_float16(column.type) else column
        return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return to_double(column) if kind == "a decimal" else to_integer(column)


def _vector(column: pa.Array) -> pa.Array:
    flat = column.flatten()
    flat = flat if pa.types.is_float32(flat.type) else to_double(flat)
    missing = column.is_null().to_numpy(zero_copy_only=False)
    offsets = pa.array(list_offsets(column), pa.int32(), mask=np.append(missing, False))
    made = pa.ListArray.from_arrays(offsets, flat)
    type_ = pa.list_(pa.field("element", flat.type))
    return pa.Array.from_buffers(type_, len(made), made.buffers()[:2], made.null_count, children=[flat])
