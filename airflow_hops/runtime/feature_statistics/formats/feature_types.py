"""Types of columns: which have statistics, and how those of several files or blocks become one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.data.readers.plain import is_plain, plain

Types = dict[str, pa.DataType]

_EXPECTED = "integers, floats, booleans, strings, bytes, or lists and structs of those"


_BYTES = (
    pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary,
    pa.types.is_fixed_size_binary,
)  # fmt: skip


class TypesDoNotFit(Exception):
    """Values are not of the types that the first rows suggested; the source is to be read again with these.

    Attributes:
        file: The file's name.
        types: The types that hold the values, by column.
    """

    def __init__(self, file: str, types: Mapping[str, pa.DataType]) -> None:
        super().__init__(file, types)
        self.file = file
        self.types = dict(types)

    def __str__(self) -> str:
        found = ", ".join(f"{name!r} holds {kind}" for name, kind in self.types.items())
        return f"{self.file}: column {found}"


def types_of(schema: pa.Schema, file: str) -> Types:
    """The types of a schema's columns.

    Raises:
        BadInput: two columns are of one name.
    """
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
        known = [f"{name}: {found}" for name, found in sorted(fields.items()) if found is not None]
        return f"STRUCT<{', '.join(known)}>" if len(known) == len(fields) else None
    return None


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is a list of any number of values."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _kind_of_list(values: pa.DataType) -> str | None:
    found = None if pa.types.is_fixed_size_list(values) else kind_of(values)
    # A single value counts as a list of one.
    return f"[{found}]" if found is not None and is_list(values) else found


def batch_of(columns: Sequence[pa.Array], names: Sequence[str], rows: int) -> pa.RecordBatch:
    """A record batch of the columns; if there are none it still has its rows, which lack every feature."""
    if columns:
        return pa.RecordBatch.from_arrays(list(columns), list(names))
    nothing = pa.Array.from_buffers(pa.struct([]), rows, [None], children=[])
    return pa.RecordBatch.from_struct_array(nothing)


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
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    kinds = kind_of(one), kind_of(other)
    if kinds[0] == kinds[1]:
        return one
    if "?" in (kinds[0] or "").strip("[]") or "?" in (kinds[1] or "").strip("[]"):
        return one if "?" not in (kinds[0] or "") else other
    return None


def row_bytes(kinds: Iterable[pa.DataType]) -> float:
    """Bytes of a row of these types, without the contents of strings and lists."""
    return sum((kind.bit_width / 8 if pa.types.is_primitive(kind) else 8.0) for kind in kinds)
