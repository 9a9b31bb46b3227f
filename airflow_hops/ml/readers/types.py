"""Column types: which ones a snapshot holds, how the types of blocks and files are unified, and errors for misfits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput, MissingColumn, SchemaMismatch, UnreadableFile
from airflow_hops.core.sources.sources import Source
from airflow_hops.ml.readers.joined_types import join, of_files, of_text, settled, widened
from airflow_hops.ml.readers.plain import is_time, is_uuid, plain, uuid_texts
from airflow_hops.ml.readers.raw_file import RawFile, check_columns
from airflow_hops.ml.readers.text_types import first_bad, utc_times
from airflow_hops.ml.readers.vectors import is_list, leaves, map_types

Types = dict[str, pa.DataType]
CALENDAR_S = range(-62_135_596_800, 253_402_300_800)
"""Seconds since the epoch in the years 1 to 9999, the times of Python and Spark."""
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
MOST_DIGITS = 38
"""Maximum digits of a decimal in Spark."""
_STORED = (
    pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_float32, pa.types.is_float64, pa.types.is_string,
    pa.types.is_binary, pa.types.is_decimal128, pa.types.is_date32, pa.types.is_timestamp, pa.types.is_duration,
)  # fmt: skip
_LEAVE_OUT = "leave it out: name the columns to read in the source's 'columns'"
_ALIASES = {"timestamp": pa.timestamp("us", "UTC"), "date": pa.date32(), "int": pa.int64(), "float": pa.float64()}


class TypesDoNotFit(Exception):
    """Raised if values do not fit the inferred types; the source then has to be read again with wider types.

    ``types`` hold the file's values, by column; ``where`` are the rows of the first misfit.
    """

    def __init__(self, file: str, types: Mapping[str, pa.DataType], where: str = "") -> None:
        super().__init__(file, types, where)
        self.file, self.where = file, where
        self.types = {name: settled(kind) for name, kind in types.items()}

    @property
    def is_text(self) -> bool:
        """Whether a column becomes text."""
        return pa.string() in self.types.values()

    def __str__(self) -> str:
        kinds = ", ".join(f"{name!r} holds {kind}" for name, kind in self.types.items())
        return f"{self.file}, {self.where and f'{self.where}, '}column {kinds}"


def unify(found: Mapping[str, Types], *, are_texts: bool) -> Types:
    """Returns the types of a table, from those of its files by name.

    With ``are_texts``, the files store values as text, which holds the values of any two types.

    Raises:
        BadInput: a column is not in all files, or no single type holds its values without loss.
    """
    (first, unified), *others = found.items()
    unified = dict(unified)
    for name, types in others:
        for column in [*unified, *types]:
            if column not in types or column not in unified:
                lacks, has = (name, first) if column not in types else (first, name)
                raise MissingColumn(
                    lacks,
                    column,
                    f", which {has} has; one table's files must have the same "
                    "columns: name the ones to read in the source's 'columns'",
                )
            joined = join(unified[column], types[column], of_text if are_texts else of_files)
            if joined is None:
                raise SchemaMismatch(name, column, types[column], unified[column]).with_text(
                    f"{name}: column {column!r} is {types[column]}, in {first} it is {unified[column]}; give its type "
                    "in the source's 'schema'"
                )
            unified[column] = joined
    return {column: settled(type_) for column, type_ in unified.items()}


def stored(types: Types, where: str) -> Types:
    """Returns the types in which a snapshot holds columns; columns without values become text.

    Raises:
        BadInput: Spark cannot read a type.
    """
    return {column: map_types(type_, partial(_stored, column, where)) for column, type_ in types.items()}


def _stored(column: str, where: str, type_: pa.DataType) -> pa.DataType:
    kinds = pa.types
    if kinds.is_null(type_):
        return pa.string()
    if not any(is_of(type_) for is_of in _STORED):
        raise BadInput(
            f"{where}: column {column!r} is {type_}, which Spark cannot read; {_LEAVE_OUT}"
            + ("" if kinds.is_nested(type_) else ", or give it the type 'string' in the source's 'schema'")
        )
    return type_


def normalised(type_: pa.DataType) -> pa.DataType:
    """Returns the type that a snapshot uses instead of a type, to be read by Spark, pandas and TFDV.

    A type without an equivalent is returned unchanged.
    """
    return map_types(type_, _normalised)


def _normalised(type_: pa.DataType) -> pa.DataType:
    kinds = pa.types
    if kinds.is_dictionary(type_):
        return normalised(type_.value_type)
    if is_uuid(type_):
        return pa.string()
    if isinstance(type_, pa.BaseExtensionType):
        return normalised(type_.storage_type)
    if kinds.is_unsigned_integer(type_):
        return {8: pa.int16(), 16: pa.int32()}.get(type_.bit_width, pa.int64())
    if kinds.is_timestamp(type_):
        return pa.timestamp("us", "UTC" if type_.tz else None)
    if kinds.is_duration(type_):
        return pa.duration("us")
    if kinds.is_time(type_) or kinds.is_large_string(type_):
        return pa.string()
    if kinds.is_large_binary(type_) or kinds.is_fixed_size_binary(type_):
        return pa.binary()
    if kinds.is_date(type_):
        return pa.date32()
    if kinds.is_float16(type_):
        return pa.float32()
    if kinds.is_decimal256(type_) and type_.scale <= MOST_DIGITS:
        return pa.decimal128(min(type_.precision, MOST_DIGITS), type_.scale)
    if is_list(type_):
        return pa.list_(normalised(type_.value_type))
    return type_


def type_named(name: str, column: str, source: Source) -> pa.DataType:
    """Returns the Arrow type for a name in a source's ``schema``; raises ``BadInput`` for an unknown name."""
    if "%" in name:  # a layout of times, or of dates
        return pa.timestamp("us") if re.search("%[HIMSTRc]", name) else pa.date32()
    try:
        return normalised(_ALIASES[name] if name in _ALIASES else pa.type_for_alias(name))
    except (ValueError, TypeError):
        raise BadInput(
            f"source {source.uri!r}: schema gives column {column!r} the type {name!r}; expected int64, float64, "
            "string, bool, date32, timestamp, another alias of Arrow's, or a layout of times such as '%d/%m/%Y'"
        ) from None


def wanted(found: Types, file: RawFile) -> Types:
    """Selects the wanted columns of a file, with types from the source's schema where it has them.

    Raises:
        BadInput: the source names a column that the file lacks.
    """
    check_columns(len(found), file.name)
    if not found:
        raise BadInput(f"{file.name}: the file has no columns; expected at least one")
    source = file.source
    names = source.columns or tuple(found)
    asked = {"columns": names, "time_column": [source.time_column or names[0]], "schema": source.schema}
    for argument, columns in asked.items():
        for column in columns:
            if column not in found:
                raise MissingColumn(
                    file.name, column, f", which the source's {argument!r} names; its columns are {', '.join(found)}"
                )
    retained = dict.fromkeys([*names, *([source.time_column] if source.time_column else [])])
    return {
        column: type_named(source.schema[column], column, source)
        if column in source.schema
        else normalised(found[column])
        for column in retained
    }


def cast(batch: pa.RecordBatch, types: Types, file: RawFile, rows_before: int) -> pa.RecordBatch:
    """Converts a batch to these types; raises ``BadInput`` if a value does not fit."""
    arrays = []
    for column, type_ in types.items():
        index = batch.schema.get_field_index(column)
        array = pa.nulls(batch.num_rows, type_) if index < 0 else batch.column(index)
        if array.type != type_:
            try:
                array = converted(array, type_, cut=column in file.source.schema)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise misfit(array, type_, column, file, rows_before) from error
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(types.items())))


def converted(array: pa.Array, type_: pa.DataType, *, cut: bool = False) -> pa.Array:
    """Converts values to another type, without loss; with ``cut``, nanoseconds are truncated to microseconds.

    Text without a zone becomes a time in UTC.

    Raises:
        pa.ArrowInvalid: a value does not fit.
        pa.ArrowNotImplementedError: Arrow has no such conversion.
    """
    if is_uuid(array.type):
        return uuid_texts(array, type_)
    array = plain(array)
    if (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)) and is_time(type_):
        raise pa.ArrowInvalid("a number, whose unit and origin are unknown")
    if pa.types.is_decimal(array.type) and pa.types.is_string(type_):  # PyArrow 10.0: lacks this cast
        return pa.array([None if value is None else format(value, "f") for value in array.to_pylist()], type_)
    is_text = pa.types.is_string(type_) or pa.types.is_nested(type_)
    if is_text and not is_in_calendar(array):  # PyArrow 10.0: would write "value out of range"
        raise pa.ArrowInvalid("a time outside the years 1 to 9999, or the day")
    if cut and pa.types.is_timestamp(array.type) and pa.types.is_timestamp(type_) and type_.unit == "us":
        array = pc.floor_temporal(array, unit="microsecond")
    if pa.types.is_string(array.type) and pa.types.is_date(type_):  # PyArrow 10.0: lacks this cast, too
        array = array.cast(pa.timestamp("us"))
    if pa.types.is_string(array.type) and pa.types.is_timestamp(type_) and type_.tz:
        array = utc_times(array)
    result = widened(array, type_)
    if (
        pa.types.is_boolean(type_)
        and not pa.types.is_string(array.type)
        and not widened(result, array.type).equals(array)
    ):
        raise pa.ArrowInvalid("a number other than 0 and 1")
    return result


def batch_of(columns: Sequence[pa.Array], names: Sequence[str], rows: int) -> pa.RecordBatch:
    """Makes a record batch of columns; without columns, it still has its number of rows."""
    if columns:
        return pa.RecordBatch.from_arrays(list(columns), list(names))
    nothing = pa.Array.from_buffers(pa.struct([]), rows, [None], children=[])
    return pa.RecordBatch.from_struct_array(nothing)


def value_text(array: pa.Array, index: int) -> str:
    """Returns a value for a message, in Arrow's notation if Python cannot represent such a time."""
    value = array[index : index + 1]
    if pa.types.is_temporal(array.type) and not pa.types.is_duration(array.type):
        value = value.cast(pa.string())
    try:
        return repr(value[0].as_py()) if len(value) else "None"
    except (ValueError, OverflowError):
        return " ".join(str(value).split())


def misfit(array: pa.Array, type_: pa.DataType, column: str, file: RawFile, rows_before: int) -> BadInput:
    """Returns the error that names the first value of ``array`` that does not fit a type, with its row."""
    index = first_bad(array, lambda some: fits(some, type_))
    where = f"{file.name}, row {rows_before + index + 1}, column {column!r}: {value_text(array, index)}"
    if column in file.source.schema:
        return SchemaMismatch(file.name, column, array.type, type_).with_text(
            f"{where} is not of type {type_}, which the source's 'schema' gives"
        )
    give = "in the source's 'schema', give the column the type"
    advice = f"{give} 'string' to keep it as text"
    if pa.types.is_nested(array.type):
        advice = _LEAVE_OUT
    elif pa.types.is_duration(array.type):
        advice = f"{give} 'int64' to keep it as a number, in {array.type.unit}"
    elif not is_in_calendar(array[index : index + 1]):
        advice = f"{give} 'int{array.type.bit_width}' to keep it as a number"
    elif pa.types.is_timestamp(array.type) and array.type.unit == "ns":
        advice = f"{give} 'timestamp' to cut times to microseconds"
        advice += "" if column == file.source.time_column else ", or 'string' to keep them as text"
    return SchemaMismatch(file.name, column, array.type, type_).with_text(
        f"{where} does not fit {type_}, in which a snapshot holds this column; {advice}"
    )


def check_values(batch: pa.RecordBatch, file: RawFile, rows_before: int) -> None:
    """Raises ``BadInput`` if text is not in UTF-8, or a time is outside the years 1 to 9999."""
    check_text(batch, file, rows_before)
    for column, array in zip(batch.schema.names, batch.columns, strict=True):
        if not is_in_calendar(array):
            index = first_bad(array, is_in_calendar)
            advice = _LEAVE_OUT
            if not pa.types.is_nested(array.type):
                name = "string" if file.is_text else f"int{array.type.bit_width}"
                advice = f"correct it, or give the column the type {name!r} in the source's 'schema'"
            raise BadInput(
                f"{file.name}, row {rows_before + index + 1}, column {column!r}: {value_text(array, index)} is outside "
                f"the years 1 to 9999; {advice}"
            )


def check_text(batch: pa.RecordBatch, file: RawFile, rows_before: int) -> None:
    """Raises ``BadInput`` if text is not in UTF-8, which Arrow does not verify in Parquet and JSON."""
    for column, array in zip(batch.schema.names, batch.columns, strict=True):
        if not _is_valid(array):
            row = rows_before + first_bad(array, _is_valid) + 1
            binary = ", or give the column the type 'binary' in the source's 'schema'" * (file.format == "parquet")
            raise UnreadableFile(
                file.name,
                f", row {row}, column {column!r}: the text is not in UTF-8; rewrite the file in UTF-8{binary}",
            )


def _is_valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def is_in_calendar(array: pa.Array) -> bool:
    """Returns whether all dates and timestamps, at any depth, are in the years 1 to 9999, and times in a day."""
    return all(map(_is_in_calendar, leaves(array)))


def _is_in_calendar(array: pa.Array) -> bool:
    kinds, kind = pa.types, array.type
    first, last = CALENDAR_S[0], CALENDAR_S[-1]
    if kinds.is_timestamp(kind):
        units = float(_UNITS[kind.unit])
    elif kinds.is_date32(kind):
        units = 1 / 86_400
    elif kinds.is_time(kind):
        units, first, last = _UNITS[str(kind)[7:-1]], 0, 86_399  # PyArrow 10 has no unit
    else:
        return True
    ends = pc.min_max(array.cast(pa.int32() if kind.bit_width == 32 else pa.int64())).as_py()
    return ends["min"] is None or (ends["min"] >= first * units and ends["max"] < (last + 1) * units)


def as_utc(array: pa.Array, column: str, file: RawFile, rows_before: int) -> pa.Array:
    """Converts times, by default in UTC, or integers, in seconds since the epoch, to ``timestamp[us, UTC]``.

    Raises:
        BadInput: the column does not hold times, or holds one outside the years 1 to 9999, such as milliseconds.
    """
    utc, plain = pa.timestamp("us", "UTC"), pa.timestamp("us")
    if pa.types.is_integer(array.type):
        seconds = array.cast(pa.int64())
        for value in pc.min_max(seconds).as_py().values():
            if value is not None and value not in CALENDAR_S:
                raise BadInput(f"{file.name}: time_column {column!r} has {value}; expected seconds since the epoch")
        return pc.multiply(seconds, 1_000_000).cast(utc)
    if pa.types.is_timestamp(array.type) and array.type.tz:
        return array.cast(utc)
    if pa.types.is_timestamp(array.type) or pa.types.is_date(array.type):
        return array.cast(plain).cast(pa.int64()).cast(utc)
    if pa.types.is_string(array.type):
        if fits(array, utc):
            return converted(array, utc)
        index = first_bad(array, lambda some: fits(some, utc))
        raise BadInput(
            f"{file.name}, row {rows_before + index + 1}, column {column!r}: {value_text(array, index)} is not a time; "
            "time_column requires ISO 8601, with six digits of a second at most"
        )
    raise BadInput(
        f"{file.name}: time_column {column!r} is of type {array.type}; expected timestamps, dates, ISO 8601 text or "
        "integers (seconds since the epoch)"
    )


def fits(array: pa.Array, type_: pa.DataType) -> bool:
    """Returns whether all values can be converted to a type."""
    try:
        converted(array, type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True
