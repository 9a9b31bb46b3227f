"""Readers of raw files: CSV, JSON lines and Parquet as streams of Arrow record batches of known types.

Types are inferred from the first block of each file. Should a later block not fit them, :func:`infer_types` reads all
blocks, by the same rules. Memory holds a few blocks, whatever the size of the file.
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
    """The columns and types of a file as its first block (in Parquet, its footer) has them.

    Raises:
        BadInput: the file cannot be read, or a wanted column is not in it.
    """
    with explained(file.name):
        return wanted(_reader(file).first_types(file) | _partition_types(file), file)


def infer_types(file: RawFile) -> Types:
    """The columns and types of a file as all of its blocks together have them.

    Raises:
        BadInput: the file cannot be read, or a wanted column is not in it.
    """
    with explained(file.name):
        return wanted(_reader(file).infer_types(file) | _partition_types(file), file)


def _partition_types(file: RawFile) -> Types:
    """The types of the columns that the file's folders name, by the rules of text."""
    return {name: type_of(pa.array([value], pa.string())) for name, value in file.partitions.items()}


def read(file: RawFile, types: Types) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Streams a file's rows.

    Args:
        file: The file.
        types: The columns to read, with their types.

    Yields:
        Record batches with exactly these columns, and the position in the raw file, in bytes.

    Raises:
        TypesDoNotFit: a block's values are not of these types.
        BadInput: the file is damaged, or has a value that a snapshot cannot hold.
    """
    rows = 0
    columns = stored(types, file.name)
    partitions = {name: value for name, value in file.partitions.items() if name in types}
    own = {name: kind for name, kind in types.items() if name not in partitions}
    with explained(file.name):
        if not own:  # only a column tells how many rows there are
            own = dict.fromkeys(list(_reader(file).first_types(file))[:1], pa.string())
        for raw, position in _reader(file).read(file, own):
            constants = [pa.array([value] * raw.num_rows, pa.string()) for value in partitions.values()]
            raw = batch_of([*raw.columns, *constants], [*raw.schema.names, *partitions], raw.num_rows)
            batch = cast(raw, columns, file, rows)
            check_values(batch, file, rows)
            yield batch, position
            rows += batch.num_rows
