"""Types of columns: which have statistics, and how those of several files or blocks become one."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.readers.joined_types import join as join_types
from airflow_hops.ml.readers.joined_types import widened, without_empty_objects
from airflow_hops.ml.readers.limits import check_columns
from airflow_hops.ml.readers.plain import is_plain, plain
from airflow_hops.ml.readers.raw_file import RawFile
from airflow_hops.ml.readers.text_types import TEXT, TIMES
from airflow_hops.ml.readers.types import Types, TypesDoNotFit, batch_of

__all__ = ["Types", "TypesDoNotFit", "batch_of"]

_EXPECTED = "integers, floats, booleans, strings, bytes, or lists and structs of those"


_BYTES = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)  # fmt: skip


def types_of(schema: pa.Schema, file: str) -> Types:
    """The types of a schema's columns.

    Raises:
        BadInput: two columns are of one name.
    """
    check_columns(len(schema), file)
    types = {item.name: item.type for item in schema}
    if len(types) < len(schema):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise BadInput(f"{file}: two columns are called {twice!r}; rename or drop one of them")
    return types


def check_type(column: str, kind: pa.DataType, file: str) -> None:
    """Refuses a type of which TFDV computes no statistics.

    Raises:
        BadInput: the type, or one within it, has none.
    """
    if kind_of(kind) is None:
        raise BadInput(f"{file}: column {column!r} is {kind}, which has no statistics; expected {_EXPECTED}")


def kind_of(kind: pa.DataType) -> str | None:
    """TFDV's type of a column, "?" if there are no values yet; a struct has its fields', a list its values'.

    Nested lists keep their brackets, so that columns of different depth differ; None if TFDV has no such type.
    """
    kinds = pa.types
    if kinds.is_dictionary(kind):
        return kind_of(kind.value_type)
    if kinds.is_null(kind):
        return "?"
    if kinds.is_integer(kind) or kinds.is_boolean(kind):
        return "INT"
    if kinds.is_floating(kind):
        return "FLOAT"
    if any(is_of(kind) for is_of in _BYTES):
        return "BYTES"
    if is_list(kind):
        return _kind_of_list(kind.value_type)
    if kinds.is_fixed_size_list(kind):
        return _kind_of_list(kind.value_type)
    if kinds.is_struct(kind):
        fields = {field.name: kind_of(field.type) for field in kind}
        known = [f"{name}: {result}" for name, result in sorted(fields.items()) if result is not None]
        return f"STRUCT<{', '.join(known)}>" if len(known) == len(fields) else None
    return None


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is a list of any number of values."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _kind_of_list(values: pa.DataType) -> str | None:
    result = None if pa.types.is_fixed_size_list(values) else kind_of(values)
    # A single value counts as a list of one.
    return f"[{result}]" if result is not None and is_list(values) else result


def empty_batch(types: Types) -> pa.RecordBatch:
    """A batch of no rows, as plans read it."""
    columns = [pa.array([], kind) for kind in types.values()]
    return with_plain_types(pa.RecordBatch.from_arrays(columns, list(types)))


def with_plain_types(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with lists and bytes of fixed size as those of any size, and half floats as floats, at any depth."""
    if all(is_plain(kind) for kind in batch.schema.types):
        return batch
    return pa.RecordBatch.from_arrays([plain(column) for column in batch.columns], batch.schema.names)


def join(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type of a column that is of the one type here and of the other there, or None if there is none."""
    joined = join_types(one, other, of_text=False)
    return one if joined is None and kind_of(one) == kind_of(other) else joined


def join_text(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The same of values that are written as text."""
    return join_types(one, other, of_text=True) or TEXT


def as_joined(batch: pa.RecordBatch, types: Types, file: str) -> pa.RecordBatch:
    """The batch with columns of another kind than those of other files, such as integers among floats, as theirs.

    Raises:
        BadInput: float64 does not hold an integer.
    """
    columns = list(batch.columns)
    for number, item in enumerate(batch.schema):
        wanted = types.get(item.name, item.type)
        if kind_of(wanted) not in (kind_of(item.type), "?"):
            try:
                columns[number] = widened(columns[number], wanted)
            except pa.ArrowInvalid as error:
                raise BadInput(
                    f"{file}: column {item.name!r} is {wanted} in other files: {error}; write one type in all files"
                ) from error
    return batch_of(columns, batch.schema.names, batch.num_rows)


def without_times(types: Types, file: RawFile) -> Types:
    """Types that were inferred, with times and empty objects, which have no statistics, as text."""
    values = file.source.schema
    types = {name: without_empty_objects(kind) for name, kind in types.items()}
    return {name: TEXT if kind in TIMES and name not in values else kind for name, kind in types.items()}


def row_bytes(kinds: Iterable[pa.DataType]) -> float:
    """Bytes of a row of these types, without the contents of strings and lists."""
    return sum((kind.bit_width / 8 if pa.types.is_primitive(kind) else 8.0) for kind in kinds)
