"""Column types: which ones have statistics, and how those of several files or blocks are joined."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from airflow_hops.core.errors import BadInput, SchemaMismatch
from airflow_hops.ml.readers import joined_types
from airflow_hops.ml.readers.joined_types import is_text, of_files, widened
from airflow_hops.ml.readers.plain import is_plain, is_time, plain
from airflow_hops.ml.readers.raw_file import RawFile, check_columns
from airflow_hops.ml.readers.text_types import INTEGER, TEXT, TIMES
from airflow_hops.ml.readers.types import Types, TypesDoNotFit, batch_of

__all__ = ["Types", "TypesDoNotFit", "batch_of"]

_EXPECTED = "numbers, booleans, strings, bytes, times, or lists, structs and maps of those"


def types_of(schema: pa.Schema, file: str) -> Types:
    """Returns the types of a schema's columns; raises ``BadInput`` if two columns have the same name."""
    check_columns(len(schema), file)
    types = {item.name: item.type for item in schema}
    if len(types) < len(schema):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise BadInput(f"{file}: two columns are called {twice!r}; rename or drop one of them")
    return types


def check_type(column: str, kind: pa.DataType, file: str) -> None:
    """Raises ``BadInput`` for a type without statistics, also if it is nested in another."""
    if kind_of(kind) is None:
        raise SchemaMismatch(file, column, kind, _EXPECTED).with_text(
            f"{file}: column {column!r} is {kind}, which has no statistics; expected {_EXPECTED}"
        )


def kind_of(kind: pa.DataType) -> str | None:
    """Returns TFDV's type of a column, "?" if it has no values yet, or None if there is no such type.

    A struct has the types of its fields, a list that of its values. Nested lists have brackets, as depth matters. Times
    and decimals count as the numbers that :func:`~airflow_hops.ml.readers.plain.plain` makes of them.
    """
    kinds = pa.types
    if kinds.is_dictionary(kind):
        return kind_of(kind.value_type)
    if kinds.is_null(kind):
        return "?"
    if kinds.is_integer(kind) or kinds.is_boolean(kind) or is_time(kind):
        return "INT"
    if kinds.is_floating(kind) or kinds.is_decimal(kind):
        return "FLOAT"
    if is_text(kind) or kinds.is_fixed_size_binary(kind):
        return "BYTES"
    if is_list(kind):
        return _kind_of_list(kind.value_type)
    if kinds.is_fixed_size_list(kind):
        return _kind_of_list(kind.value_type)
    if kinds.is_map(kind):
        return kind_of(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    if kinds.is_struct(kind):
        fields = {field.name: kind_of(field.type) for field in kind}
        known = [f"{name}: {result}" for name, result in sorted(fields.items()) if result is not None]
        return f"STRUCT<{', '.join(known)}>" if len(known) == len(fields) else None
    return None


def is_list(kind: pa.DataType) -> bool:
    """Returns whether a type is a list of variable length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _kind_of_list(values: pa.DataType) -> str | None:
    result = None if pa.types.is_fixed_size_list(values) else kind_of(values)
    # A single value counts as a list of one.
    return f"[{result}]" if result is not None and is_list(values) else result


def empty_batch(types: Types) -> pa.RecordBatch:
    """Returns a batch without rows, with the types that plans read."""
    columns = [pa.array([], kind) for kind in types.values()]
    return with_plain_types(pa.RecordBatch.from_arrays(columns, list(types)))


def with_plain_types(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Converts columns of types that TFDV does not know (:func:`~airflow_hops.ml.readers.plain.plain`)."""
    if all(is_plain(kind, times=False) for kind in batch.schema.types):
        return batch
    return pa.RecordBatch.from_arrays([plain(column, times=False) for column in batch.columns], batch.schema.names)


def as_example(batch: pa.RecordBatch, where: str) -> pa.RecordBatch:
    """Casts a record batch to the types of a ``tf.Example``: int64, float32, bytes, and lists of those.

    Raises:
        BadInput: a column has another type.
    """
    columns = []
    for item, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        wanted = _example_type(column.type)
        if wanted is None:
            raise BadInput(
                f"{where}: column {item.name!r} is {item.type}, expected numbers, strings, bytes, or lists of them; "
                "name it in 'ignore'"
            )
        columns.append(column if column.type == wanted else column.cast(wanted, safe=False))
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _example_type(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_null(kind):
        return kind
    if is_list(kind):
        inner = None if is_list(kind.value_type) else _example_type(kind.value_type)
        return None if inner is None else pa.large_list(inner)
    if pa.types.is_dictionary(kind):
        return _example_type(kind.value_type)
    if pa.types.is_nested(kind) or pa.types.is_fixed_size_binary(kind) or is_time(kind) or pa.types.is_decimal(kind):
        return None
    return {"INT": pa.int64(), "FLOAT": pa.float32(), "BYTES": pa.large_binary()}.get(kind_of(kind) or "")


def join(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Returns the type of a column that has two types in two files; None if no type fits both."""
    joined = joined_types.join(one, other, _of_features)
    # A single value, also of a struct's field, counts as a list of one.
    return one if joined is None and _is_same(one, other) else joined


def _of_features(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Joins types of files; booleans are integers, and types that TFDV takes for one are, but for times and numbers."""
    first, second = (INTEGER if pa.types.is_boolean(kind) else kind for kind in (one, other))
    joined = of_files(first, second)
    return one if joined is None and is_list(one) == is_list(other) and _is_same(one, other) else joined


def _is_same(one: pa.DataType, other: pa.DataType) -> bool:
    return kind_of(one) == kind_of(other) and _of_times(one) == _of_times(other)


def _of_times(kind: pa.DataType) -> object:
    if pa.types.is_struct(kind):
        return {field.name: _of_times(field.type) for field in kind}
    return _of_times(kind.value_type) if is_list(kind) else is_time(kind)


def as_joined(batch: pa.RecordBatch, types: Types, file: str) -> pa.RecordBatch:
    """Converts columns to the type that fits all files, such as integers to floats.

    Raises:
        BadInput: float64 does not hold an integer, or a time.
    """
    columns = list(batch.columns)
    for number, item in enumerate(batch.schema):
        wanted = types.get(item.name, item.type)
        if kind_of(wanted) not in (kind_of(item.type), "?"):
            try:
                columns[number] = widened(columns[number], wanted)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise SchemaMismatch(file, item.name, item.type, wanted).with_text(
                    f"{file}: column {item.name!r} is {wanted} in other files: {error}; write one type in all files"
                ) from error
    return batch_of(columns, batch.schema.names, batch.num_rows)


def without_times(types: Types, file: RawFile) -> Types:
    """Replaces inferred times, which have no statistics, with text."""
    values = file.source.schema
    return {name: TEXT if kind in TIMES and name not in values else kind for name, kind in types.items()}


def row_bytes(kinds: Iterable[pa.DataType]) -> float:
    """Returns the bytes of a row of these types, without the contents of strings and lists."""
    return sum((kind.bit_width / 8 if pa.types.is_primitive(kind) else 8.0) for kind in kinds)
