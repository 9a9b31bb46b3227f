"""Column types: which ones a snapshot holds, how those of several blocks or files become one, and what does not fit."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.contract.sources import Source
from airflow_hops.data.readers.raw_file import RawFile
from airflow_hops.data.vectors import is_list, plain_lists

Types = dict[str, pa.DataType]
_MOST_SECONDS = 250_000_000_000
"""Of a time within the calendar, by about a century."""
_ALIASES = {"timestamp": pa.timestamp("us", "UTC"), "date": pa.date32(), "int": pa.int64(), "float": pa.float64()}


class TypesDoNotFit(Exception):
    """A block's values do not fit the types that were inferred from the first block."""


def unify(found: Mapping[str, Types]) -> Types:
    """The types of a table whose files have these types.

    Args:
        found: Types by file name.

    Raises:
        BadInput: a column is not in all files, or has types that no one type holds without loss.
    """
    (first, unified), *others = found.items()
    unified = dict(unified)
    for name, types in others:
        for column in [*unified, *types]:
            if column not in types or column not in unified:
                lacks, has = (name, first) if column not in types else (first, name)
                raise BadInput(
                    f"{lacks}: there is no column {column!r}, which {has} has; one table's files must have the same "
                    "columns: name the ones to read in the source's 'columns'"
                )
            joined = join(unified[column], types[column])
            if joined is None:
                raise BadInput(
                    f"{name}: column {column!r} is {types[column]}, in {first} it is {unified[column]}; give its type "
                    "in the source's 'schema'"
                )
            unified[column] = joined
    # A column without a single value still needs a type that every reader knows.
    return {column: pa.string() if pa.types.is_null(type_) else type_ for column, type_ in unified.items()}


def join(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds the values of both without loss, or None."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_integer(one) and pa.types.is_integer(other):
        return pa.int64()
    if all(pa.types.is_integer(t) or pa.types.is_floating(t) for t in (one, other)):
        return pa.float64()
    if all(pa.types.is_list(t) for t in (one, other)):
        values = join(one.value_type, other.value_type)
        return None if values is None else pa.list_(values)
    if all(pa.types.is_timestamp(t) or pa.types.is_date(t) for t in (one, other)):
        zones = {t.tz for t in (one, other) if pa.types.is_timestamp(t)}
        return pa.timestamp("us", zones.pop()) if len(zones) == 1 else None
    return None


def normalised(type_: pa.DataType) -> pa.DataType:
    """The type in which a snapshot holds values of a type: one that Spark, pandas and TFDV all read."""
    if pa.types.is_dictionary(type_):
        return normalised(type_.value_type)
    if pa.types.is_timestamp(type_):
        return pa.timestamp("us", "UTC" if type_.tz else None)
    if pa.types.is_time(type_) or pa.types.is_large_string(type_):
        return pa.string()
    if pa.types.is_date(type_):
        return pa.date32()
    if pa.types.is_float16(type_):
        return pa.float32()
    if is_list(type_) and not pa.types.is_nested(type_.value_type):
        return pa.list_(normalised(type_.value_type))
    return type_


def type_named(name: str, column: str, source: Source) -> pa.DataType:
    """The Arrow type of a name in a source's ``schema``.

    Raises:
        BadInput: the type does not exist.
    """
    try:
        return normalised(_ALIASES[name] if name in _ALIASES else pa.type_for_alias(name))
    except (ValueError, TypeError):
        raise BadInput(
            f"source {source.uri!r}: schema gives column {column!r} the type {name!r}; expected int64, float64, "
            "string, bool, date32, timestamp, or another alias of Arrow's"
        ) from None


def wanted(found: Types, file: RawFile) -> Types:
    """Of the columns found in a file those that are wanted, with the source's own types where it gives some.

    Raises:
        BadInput: a column that the source names is not in the file.
    """
    source = file.source
    names = source.columns or tuple(found)
    asked = {"columns": names, "time_column": [source.time_column or names[0]], "schema": source.schema}
    for argument, columns in asked.items():
        for column in columns:
            if column not in found:
                raise BadInput(
                    f"{file.name}: there is no column {column!r}, which the source's {argument!r} names; "
                    f"its columns are {', '.join(found)}"
                )
    kept = dict.fromkeys([*names, *([source.time_column] if source.time_column else [])])
    return {
        column: type_named(source.schema[column], column, source)
        if column in source.schema
        else normalised(found[column])
        for column in kept
    }


def cast(batch: pa.RecordBatch, types: Types, file: RawFile, rows_before: int) -> pa.RecordBatch:
    """The batch in these types.

    Raises:
        TypesDoNotFit: a value of a column, whose type was inferred, does not fit.
        BadInput: a value of a column, whose type the source's ``schema`` gives, does not fit.
    """
    arrays = []
    for column, type_ in types.items():
        index = batch.schema.get_field_index(column)
        array = pa.nulls(batch.num_rows, type_) if index < 0 else batch.column(index)
        if array.type != type_:
            try:
                array = (plain_lists(array) if pa.types.is_list(type_) and is_list(array.type) else array).cast(type_)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                if column not in file.source.schema:
                    raise TypesDoNotFit(f"{file.name}: column {column!r}: {error}") from error
                raise misfit(array, type_, column, file, rows_before) from error
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(types.items())))


def misfit(array: pa.Array, type_: pa.DataType, column: str, file: RawFile, rows_before: int) -> BadInput:
    """The error that names the first value of ``array`` that is not of a type, with its row."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(array[low:middle], type_) else (low, middle)
    value = array[low].as_py() if len(array) else None
    return BadInput(
        f"{file.name}, row {rows_before + low + 1}, column {column!r}: {value!r} is not of type {type_}, which the "
        "source's 'schema' gives"
    )


def as_utc(array: pa.Array, column: str, file: RawFile, rows_before: int) -> pa.Array:
    """A time column as ``timestamp[us, UTC]``; times without a zone count as UTC, integers as seconds of the epoch.

    Raises:
        BadInput: the column holds no times, or integers that are no seconds, such as milliseconds.
    """
    utc, plain = pa.timestamp("us", "UTC"), pa.timestamp("us")
    if pa.types.is_integer(array.type):
        seconds = array.cast(pa.int64())
        for value in pc.min_max(seconds).as_py().values():
            if value is not None and abs(value) > _MOST_SECONDS:
                raise BadInput(f"{file.name}: time_column {column!r} has {value}; expected seconds since the epoch")
        return pc.multiply(seconds, 1_000_000).cast(utc)
    if pa.types.is_timestamp(array.type) and array.type.tz:
        return array.cast(utc)
    if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
        return array.cast(plain).cast(pa.int64()).cast(utc)
    if pa.types.is_string(array.type):
        if fits(array, utc):
            return array.cast(utc)
        if fits(array, plain):
            return array.cast(plain).cast(pa.int64()).cast(utc)
        found = misfit(array, utc, column, file, rows_before)
        raise BadInput(f"{str(found).partition(' is not of type')[0]} is not a time; time_column requires ISO 8601")
    raise BadInput(
        f"{file.name}: time_column {column!r} is of type {array.type}; expected timestamps, dates, ISO 8601 text or "
        "integers (seconds since the epoch)"
    )


def fits(array: pa.Array, type_: pa.DataType) -> bool:
    """Whether all values of ``array`` can be given a type."""
    try:
        array.cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True
