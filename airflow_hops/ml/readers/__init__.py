"""Readers of raw files: CSV, JSON lines and Parquet as streams of Arrow record batches of known types.

Types are inferred from the first block of each file. If a later block does not fit them, :func:`infer_types` reads all
blocks by the same rules. Memory holds a few blocks, whatever the size of the file.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.readers import parquet, text_file
from airflow_hops.ml.readers.raw_file import RawFile, explained
from airflow_hops.ml.readers.text_types import type_of
from airflow_hops.ml.readers.types import (
    Types,
    batch_of,
    cast,
    check_values,
    converted,
    stored,
    value_text,
    wanted,
)

_FORMATS = ("csv", "jsonl", "parquet")


def first_types(file: RawFile) -> Types:
    """Returns a file's columns and types, inferred from its first block (Parquet: read from its footer).

    Raises:
        BadInput: the file cannot be read, or lacks a wanted column.
    """
    return infer_types(file, first_block_only=True)


def infer_types(file: RawFile, *, first_block_only: bool = False) -> Types:
    """Returns a file's columns and types, inferred from all of its blocks.

    Raises:
        BadInput: the file cannot be read, or lacks a wanted column.
    """
    with explained(file.name):
        return wanted(_with_partitions(_types_of(file, first_block_only=first_block_only), file), file)


def _types_of(file: RawFile, *, first_block_only: bool) -> Types:
    if file.format not in _FORMATS:
        raise BadInput(f"{file.name}: the file is {file.format}; expected one of {', '.join(_FORMATS)}")
    return text_file.types_of(file, first_block_only=first_block_only) if file.is_text else parquet.types_of(file)


def _with_partitions(types: Types, file: RawFile) -> Types:
    """Adds the columns that only the names of the file's folders have, with types inferred from their values."""
    values = {name: value for name, value in file.partitions.items() if name not in types}
    return types | {name: type_of(pa.array([value], pa.string())) for name, value in values.items()}


def read(file: RawFile, types: Types) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Streams a file's rows in these columns and types.

    Yields:
        Record batches, and the position in the raw file, in bytes.

    Raises:
        TypesDoNotFit: a block has values of other types.
        BadInput: the file is damaged, has a value that a snapshot cannot hold, or another one than its folder names.
    """
    rows = file.first_row
    columns = stored(types, file.name)
    partitions = {name: value for name, value in file.partitions.items() if name in types}
    own = types
    with explained(file.name):
        if partitions.keys() >= types.keys():  # a column is needed to count the rows
            own = types | dict.fromkeys(list(_types_of(file, first_block_only=True))[:1], pa.string())
        for raw, position in (text_file.rows_of if file.is_text else parquet.rows_of)(file, own):
            constants = {name: [value] * raw.num_rows for name, value in partitions.items() if _lacks(raw, name)}
            names = [name for name in raw.schema.names if name not in constants]
            arrays = [raw.column(raw.schema.get_field_index(name)) for name in names]
            arrays += [pa.array(values, pa.string()) for values in constants.values()]
            batch = cast(batch_of(arrays, [*names, *constants], raw.num_rows), columns, file, rows)
            check_values(batch, file, rows)
            for name in partitions.keys() - constants:
                _check_partition(batch, name, partitions[name], file, rows)
            yield batch, position
            rows += batch.num_rows


def _lacks(batch: pa.RecordBatch, name: str) -> bool:
    """Returns whether a column is missing, or without a value, as in JSON."""
    index = batch.schema.get_field_index(name)
    return bool(index < 0 or batch.column(index).null_count == batch.num_rows)


def _check_partition(batch: pa.RecordBatch, name: str, value: str | None, file: RawFile, rows_before: int) -> None:
    """Raises BadInput if a file's own column has another value than the name of its folder; some writers repeat it."""
    column = batch.column(batch.schema.get_field_index(name))
    try:
        same = pc.equal(column, converted(pa.array([value], pa.string()), column.type)[0])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        same = pa.array([False] * len(column))
    same = pc.fill_null(same, False)
    if not pc.all(same).as_py():
        row = pc.index(same, False).as_py()
        raise BadInput(
            f"{file.name}, row {rows_before + row + 1}, column {name!r}: {value_text(column, row)}, but the name of "
            f"the folder says {value!r}; rename one of them, or leave the column out of the source's 'columns'"
        )
