"""Reader of Parquet files."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Collection, Iterator
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_hops.core.errors import BadInput
from airflow_hops.core.versions import is_newer_arrow_type, parquet_file
from airflow_hops.ml.readers.plain import uuid_texts
from airflow_hops.ml.readers.raw_file import MAX_ROW_BYTES, MAX_ROW_GROUP_BYTES, RawFile
from airflow_hops.ml.readers.types import Types, cast, value_text
from airflow_hops.ml.readers.vectors import is_list, leaves

log = logging.getLogger(__name__)

_BATCH_ROWS, _BATCH_BYTES = 1 << 16, 512 << 20
_FIRST_GREGORIAN_DAY = date(1582, 10, 15)
_FIRST_SAFE_TIME = datetime(1900, 1, 1, tzinfo=UTC)
"""From this time on, Spark's legacy calendar and time zones agree with today's."""


def types_of(file: RawFile) -> Types:
    """Returns the footer's columns, without an index that pandas wrote, unless the source names it.

    Raises:
        BadInput: the footer repeats a name.
    """
    with file.stream() as (stream, _):
        parquet = parquet_file(stream, metadata=footer(stream))
        _check_encodings(parquet.metadata, file.name)
        schema, texts = parquet.schema_arrow, types_with_text(parquet)
    if twice := [name for name in schema.names if schema.names.count(name) > 1]:
        raise BadInput(f"{file.name}: two columns have the name {twice[0]!r}; rename one of them")
    source = file.source
    asked = {*(source.columns or ()), *source.schema, source.time_column}
    index = [name for name in index_columns(schema) if name not in asked]
    if index:
        log.warning(
            "%s: leaves out %s, which pandas marks as the frame's index; to keep it, name it in the source's 'columns' "
            "or 'schema'",
            file.name,
            ", ".join(map(repr, index)),
        )
    return {item.name: texts.get(item.name, item.type) for item in schema if item.name not in index}


def types_with_text(parquet: pq.ParquetFile) -> Types:
    """Returns columns with UUIDs, JSON or enumerations at any depth, with strings for these in their types."""
    leaves = map(parquet.schema.column, range(len(parquet.schema)))
    types = {item: _with_strings(item.type, leaves) for item in parquet.schema_arrow}
    return {item.name: kind for item, kind in types.items() if kind != item.type}


def _with_strings(kind: pa.DataType, leaves: Iterator[Any]) -> pa.DataType:
    """Returns a type whose values are in the next columns of a Parquet file."""
    if is_list(kind):
        values = _with_strings(kind.value_type, leaves)
        return kind if values == kind.value_type else pa.list_(values)
    if pa.types.is_map(kind):
        return pa.map_(_with_strings(kind.key_type, leaves), _with_strings(kind.item_type, leaves))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _with_strings(field.type, leaves)) for field in kind])
    return pa.string() if next(leaves).logical_type.type in ("UUID", "JSON", "ENUM") else kind


def _check_encodings(metadata: Any, name: str) -> None:
    """Refuses integers, 2^31 or more apart, in DuckDB's PARQUET_VERSION v2: Arrow reads their differences wrongly."""
    if not (metadata.created_by or "").startswith("DuckDB"):
        return
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    for column in (column for group in groups for column in map(group.column, range(group.num_columns))):
        if column.physical_type != "INT32" or "DELTA_BINARY_PACKED" not in column.encodings:
            continue
        bounds, width = column.statistics if column.is_stats_set else None, 1 << 32
        if bounds is not None and bounds.has_min_max:
            # The raw bounds of unsigned integers are signed.
            is_integer = isinstance(bounds.max, int)
            width = bounds.max - min(bounds.min, 0) if is_integer else bounds.max_raw - bounds.min_raw
        if width >= 1 << 31:
            raise BadInput(
                f"{name}: column {column.path_in_schema!r} has integers in an encoding of DuckDB that Arrow reads "
                "wrongly; write the file with PARQUET_VERSION v1"
            )


def row_groups(file: RawFile) -> list[tuple[int, int]]:
    """Returns the rows and the uncompressed bytes of each row group."""
    with file.stream() as (stream, _):
        metadata = footer(stream)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return [(group.num_rows, group.total_byte_size) for group in groups]


def index_columns(schema: pa.Schema) -> list[str]:
    """Returns the columns that pandas wrote for a frame's index: they hold the order of rows, not data."""
    try:
        index = json.loads((schema.metadata or {})[b"pandas"])["index_columns"]
    except (KeyError, TypeError, ValueError):
        return []
    return [name for name in index if isinstance(name, str) and name in schema.names]


def rows_of(file: RawFile, types: Types) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Streams the rows, with the position in the raw file.

    Raises:
        BadInput: a value does not fit its type, or is ambiguous.
    """
    rows = file.first_row
    with file.stream() as (stream, raw):
        metadata = footer(stream)
        groups = range(metadata.num_row_groups) if file.row_groups is None else file.row_groups
        parquet = parquet_file(stream, metadata=metadata, coerce_int96_timestamp_unit="us")
        texts = types_with_text(parquet)
        texts = {name: kind for name, kind in texts.items() if types.get(name) == kind or pa.types.is_nested(kind)}
        int96 = [name for name in _columns(parquet, "INT96") if name in types]
        checked = [name for name in int96 if file.source.schema.get(name) != "timestamp"]
        exact = (
            _batches(parquet_file(stream, metadata=metadata), stream, checked, groups, file.name) if checked else None
        )
        for batch in _batches(parquet, stream, list(types), groups, file.name):
            if exact is not None:
                nanoseconds = next(exact)
                for name in checked:
                    _check_no_nanoseconds(_column(batch, name), _column(nanoseconds, name), name, file, rows)
            _check_calendar(batch, metadata.metadata or {}, int96, file, rows)
            if file.notices is not None:
                file.notices.add_dates(batch, types, file.name, rows)
            yield cast(with_uuid_texts(batch, texts), types, file, rows), raw.tell()
            rows += batch.num_rows


def most_rows(source: Any, metadata: Any, group: int, names: Collection[str], name: str) -> int:
    """Returns how many rows of a row group to decode at once; decoding repeats a dictionary's values in every row.

    Args:
        source: The file, as a path or a stream.
        metadata: The file's footer.
        group: Number of the row group.
        names: The columns to read.
        name: The file's name, for messages.

    Raises:
        BadInput: a value, or the row group, is too large.
    """
    row_group = metadata.row_group(group)
    chunks = [row_group.column(index) for index in range(row_group.num_columns)]
    chunks = [item for item in chunks if {item.path_in_schema, item.path_in_schema.partition(".")[0]} & {*names}]
    size = sum(chunk.total_uncompressed_size for chunk in chunks)
    texts = [item.path_in_schema for item in chunks if item.physical_type == "BYTE_ARRAY" and item.has_dictionary_page]
    longest = 0
    if texts:
        # A small buffer, as only the dictionaries are needed.
        parquet = parquet_file(source, metadata=metadata, read_dictionary=texts, buffer_size=1 << 20)
        head = next(parquet.iter_batches(1, row_groups=[group], columns=texts), pa.RecordBatch.from_pydict({}))
        longest = max((pc.max(_lengths(item.dictionary)).as_py() or 0 for item in _coded(head)), default=0)
        if longest * row_group.num_rows > MAX_ROW_GROUP_BYTES:
            batches = parquet.iter_batches(row_groups=[group], columns=texts)
            coded = (item for batch in batches for item in _coded(batch))
            size += sum(pc.sum(_lengths(item.dictionary).take(item.indices)).as_py() or 0 for item in coded)
    if longest > MAX_ROW_BYTES:
        raise BadInput(f"{name}: a value has {longest} bytes; the limit of a value is {MAX_ROW_BYTES}")
    if size > MAX_ROW_GROUP_BYTES:
        raise BadInput(
            f"{name}: row group {group} has {size} bytes, decoded; the limit of a row group is {MAX_ROW_GROUP_BYTES}: "
            "rewrite the file with smaller row groups"
        )
    return max(1, min(_BATCH_ROWS, int(_BATCH_BYTES / max(longest, size / max(row_group.num_rows, 1), 1))))


def _lengths(texts: pa.Array) -> pa.Array:
    return pc.binary_length(texts).cast(pa.int64())


def _coded(batch: pa.RecordBatch) -> Iterator[pa.DictionaryArray]:
    """Yields the dictionary-encoded arrays, at any depth."""
    return (leaf for column in batch.columns for leaf in leaves(column) if pa.types.is_dictionary(leaf.type))


def _batches(
    parquet: pq.ParquetFile, source: object, names: list[str], groups: range, name: str
) -> Iterator[pa.RecordBatch]:
    for group in groups:
        rows = most_rows(source, parquet.metadata, group, names, name)
        yield from parquet.iter_batches(rows, row_groups=[group], columns=names)


def footer(stream: object) -> Any:
    """Returns a file's metadata as Arrow reads it.

    The writer's Arrow types are ignored in favour of Parquet's own types if PyArrow 10 does not support them, or if
    they are fixed-size lists, of which Arrow cannot read missing ones.
    """
    try:
        metadata = pq.read_metadata(stream)
        schema = metadata.schema.to_arrow_schema()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        try:
            return _without_arrow_types(stream)
        except (pa.ArrowException, OSError, ValueError):
            raise error from None
    # PyArrow 10.0: durations would be lost without its types, as Parquet has none.
    is_dropped = any(pa.types.is_fixed_size_list(item.type) or is_newer_arrow_type(item.type) for item in schema)
    if is_dropped and "duration" not in str(schema.types):
        return _without_arrow_types(stream)
    return metadata


def _columns(parquet: pq.ParquetFile, *kinds: str) -> list[str]:
    """Returns the flat columns of any of these physical or logical types."""
    columns = [parquet.schema.column(index) for index in range(len(parquet.schema))]
    flat = {item.path for item in columns if {item.physical_type, item.logical_type.type} & {*kinds}}
    return [name for name in parquet.schema_arrow.names if name in flat]


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    return batch.column(batch.schema.get_field_index(name))


def with_uuid_texts(batch: pa.RecordBatch, types: Types) -> pa.RecordBatch:
    """Converts UUIDs to text; ``types`` are those of :func:`types_with_text`."""
    if not any(name in types for name in batch.schema.names):
        return batch
    columns = [
        uuid_texts(column, types[name]) if name in types else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _check_no_nanoseconds(times: pa.Array, exact: pa.Array, name: str, file: RawFile, rows_before: int) -> None:
    """Refuses INT96 times with nanoseconds, which overflow outside the years 1678 to 2262."""
    # Both overflow in the same way, so the comparison holds for all years.
    differ = pc.not_equal(pc.multiply(times.cast(pa.int64()), 1000), exact.cast(pa.int64()))
    if pc.any(differ).as_py():
        row = pc.index(differ, True).as_py()
        raise BadInput(
            f"{file.name}, row {rows_before + row + 1}, column {name!r}: {value_text(exact, row)} has nanoseconds, a "
            "snapshot microseconds; in the source's 'schema', give the column the type 'timestamp' to cut times to "
            "microseconds"
        )


def _check_calendar(
    batch: pa.RecordBatch, facts: dict[bytes, bytes], int96: list[str], file: RawFile, rows: int
) -> None:
    """Refuses old times that Spark wrote in the Julian calendar, where they denote other days.

    Source: https://spark.apache.org/docs/latest/sql-data-sources-parquet.html, ``datetimeRebaseMode``.
    """
    version = tuple(map(int, facts.get(b"org.apache.spark.version", b"9.9").split(b".")[:2]))
    is_julian = b"org.apache.spark.legacyDateTime" in facts or version < (3, 0)
    is_julian_int96 = b"org.apache.spark.legacyINT96" in facts or version < (3, 1)
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        if not (is_julian_int96 if name in int96 else is_julian):
            continue
        if pa.types.is_date32(array.type):
            first = pa.scalar(_FIRST_GREGORIAN_DAY)
        elif pa.types.is_timestamp(array.type):
            first = pa.scalar(_FIRST_SAFE_TIME, array.type)
        else:
            continue
        least = pc.min(array)
        if least.is_valid and pc.less(least, first).as_py():
            row = pc.index(array, least).as_py()
            raise BadInput(
                f"{file.name}, row {rows + row + 1}, column {name!r}: {value_text(array, row)} is written in Spark's "
                "older calendar, in which it is another time; rewrite the file with Spark 3, "
                "spark.sql.parquet.datetimeRebaseModeInWrite=CORRECTED and int96RebaseModeInWrite=CORRECTED"
            )


def _without_arrow_types(stream: Any) -> object:
    """Returns a file's metadata without the Arrow types of its writer."""
    stream.seek(-8, 2)
    length = int.from_bytes(stream.read(4), "little")
    stream.seek(-8 - length, 2)
    footer = stream.read(length).replace(b"ARROW:schema", b"arrow:schema")
    return pq.read_metadata(io.BytesIO(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"))
