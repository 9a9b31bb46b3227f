"""Readers of raw files: CSV, JSON lines and Parquet as streams of Arrow record batches of known types.

Types are inferred from the first block of each file. If a later block does not fit them, :func:`infer_types` reads all
blocks by the same rules. Memory holds a few blocks, whatever the size of the file.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

import pyarrow as pa

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.readers.raw_file import RawFile, explained
from airflow_hops.ml.readers.text_types import type_of
from airflow_hops.ml.readers.types import Types, batch_of, cast, check_values, stored, wanted

_FORMATS = ("csv", "jsonl", "parquet")


def _reader(file: RawFile) -> ModuleType:
    if file.format not in _FORMATS:
        raise BadInput(f"{file.name}: the file is {file.format}; expected one of {', '.join(_FORMATS)}")
    return importlib.import_module(f"airflow_hops.ml.readers.{file.format}")


def first_types(file: RawFile) -> Types:
    """Returns a file's columns and types, inferred from its first block (Parquet: read from its footer).

    Raises:
        BadInput: the file cannot be read, or lacks a wanted column.
    """
    with explained(file.name):
        return wanted(_reader(file).first_types(file) | _partition_types(file), file)


def infer_types(file: RawFile) -> Types:
    """Returns a file's columns and types, inferred from all of its blocks.

    Raises:
        BadInput: the file cannot be read, or lacks a wanted column.
    """
    with explained(file.name):
        return wanted(_reader(file).infer_types(file) | _partition_types(file), file)


def _partition_types(file: RawFile) -> Types:
    """Infers the types of the columns named by the file's folders."""
    return {name: type_of(pa.array([value], pa.string())) for name, value in file.partitions.items()}


def read(file: RawFile, types: Types) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Streams a file's rows in these columns and types.

    Yields:
        Record batches, and the position in the raw file, in bytes.

    Raises:
        TypesDoNotFit: a block has values of other types.
        BadInput: the file is damaged, or has a value that a snapshot cannot hold.
    """
    rows = file.first_row
    columns = stored(types, file.name)
    partitions = {name: value for name, value in file.partitions.items() if name in types}
    own = {name: kind for name, kind in types.items() if name not in partitions}
    with explained(file.name):
        if not own:  # a column is needed to count the rows
            own = dict.fromkeys(list(_reader(file).first_types(file))[:1], pa.string())
        for raw, position in _reader(file).read(file, own):
            constants = [pa.array([value] * raw.num_rows, pa.string()) for value in partitions.values()]
            raw = batch_of([*raw.columns, *constants], [*raw.schema.names, *partitions], raw.num_rows)
            batch = cast(raw, columns, file, rows)
            check_values(batch, file, rows)
            yield batch, position
            rows += batch.num_rows
