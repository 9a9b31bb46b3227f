"""Arrow types of messages, from the schemas of Avro."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from airflow_hops.core.errors import BadInput
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.ml.readers.raw_file import MAX_COLUMNS
from airflow_hops.ml.readers.types import MOST_DIGITS

UTC_TIME = pa.timestamp("us", "UTC")
_MOST_LEVELS = 32
_AVRO_TYPES = {
    "boolean": pa.bool_(), "int": pa.int64(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "bytes": pa.binary(), "string": pa.string(), "null": pa.null(), "enum": pa.string(), "fixed": pa.binary(),
    "date": pa.date32(), "time-millis": pa.time64("us"), "time-micros": pa.time64("us"), "uuid": pa.string(),
    "timestamp-millis": UTC_TIME, "timestamp-micros": UTC_TIME,
    "local-timestamp-millis": pa.timestamp("us"), "local-timestamp-micros": pa.timestamp("us"),
}  # fmt: skip


class Poison(Exception):
    """Raised for a value that cannot be decoded; the message is a reason that many values can share."""


def check_storable(type_: pa.DataType) -> None:
    """Raises Poison for types that Parquet lacks, such as those of messages without fields."""
    try:
        write_parquet(pa.schema(list(type_)).empty_table(), pa.BufferOutputStream())
    except (pa.ArrowException, OSError) as error:
        raise Poison(f"no table can hold its types ({str(error)[:100]})") from error


def avro_type(schema: object, named: Mapping[str, object]) -> pa.DataType:
    """Returns the type of a parsed Avro schema, whose named types are in ``named``.

    Raises:
        Poison: the schema is recursive or too large, or has arrays of any length in a few bytes.
        BadInput: it has a union that does not fit a column.
    """
    return _AvroTypes(named).of(schema)


class _AvroTypes:
    """Arrow's types for those of an Avro schema, whose named types are ``named``.

    A table has neither recursive types nor any number of columns or levels.
    """

    def __init__(self, named: Mapping[str, object]) -> None:
        self._named = named
        self._names: list[str] = []
        self._types = 0

    @contextmanager
    def _within(self, name: str) -> Iterator[None]:
        """Holds a type while those within it are built; ``name`` is empty if it has none."""
        if name and name in self._names:
            raise Poison(f"schema is recursive: {name} has itself as a field")
        if len(self._names) == _MOST_LEVELS or self._types > MAX_COLUMNS:
            raise Poison(f"schema has more than {_MOST_LEVELS} levels or {MAX_COLUMNS} types")
        self._names.append(name)
        yield
        self._names.pop()

    def of(self, schema: Any, field: str = "") -> pa.DataType:
        """Returns the type of a schema; ``field`` is the path to it, for messages."""
        self._types += 1
        if isinstance(schema, str):
            return _AVRO_TYPES[schema] if schema in _AVRO_TYPES else self.of(self._named[schema], field)
        if isinstance(schema, list):
            return self._of_union([each for each in schema if each != "null"], field)
        with self._within(schema.get("name", "")):
            return self._of_complex(schema, field)

    def _of_complex(self, schema: Any, field: str) -> pa.DataType:
        kind = schema["type"]
        if kind == "record":
            prefix = f"{field}." if field else ""
            return pa.struct(
                [(each["name"], self.of(each["type"], prefix + each["name"])) for each in schema["fields"]]
            )
        if kind == "array":
            type_ = self.of(schema["items"], field)
            if self._has_no_bytes(schema["items"]):
                raise Poison(
                    f"the array {field!r} has items of zero bytes, so a few bytes can encode any number of them"
                )
            return pa.list_(type_)
        if kind == "map":
            return pa.map_(pa.string(), self.of(schema["values"], field))
        if schema.get("logicalType") == "decimal":
            return pa.decimal128(min(schema["precision"], MOST_DIGITS), schema.get("scale", 0))
        if not isinstance(kind, str):
            return self.of(kind, field)
        return _AVRO_TYPES.get(schema.get("logicalType", ""), _AVRO_TYPES.get(kind, pa.null()))

    def _has_no_bytes(self, schema: Any) -> bool:
        if isinstance(schema, str):
            return schema == "null" or (schema in self._named and self._has_no_bytes(self._named[schema]))
        if isinstance(schema, list) or schema["type"] in ("array", "map", "enum"):
            return False
        if schema["type"] == "record":
            return all(self._has_no_bytes(each["type"]) for each in schema["fields"])
        return schema.get("size") == 0 if schema["type"] == "fixed" else self._has_no_bytes(schema["type"])

    def _of_union(self, kinds: list[object], field: str) -> pa.DataType:
        types = [self.of(kind, field) for kind in kinds] or [pa.null()]
        if types.count(types[0]) == len(types):
            return types[0]
        if all(kind in ("int", "float", "double") for kind in kinds):  # a double holds these exactly, but not all longs
            return pa.float64()
        raise BadInput(
            f"the Avro field {field!r} is a union of {', '.join(map(str, types))}, which do not fit one column; have "
            "the producer write a field for each type, or name the offsets of records with another schema in the "
            "source's 'offsets'"
        )
