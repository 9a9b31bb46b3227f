"""The reader of Parquet files."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.data.readers.raw_file import RawFile
from airflow_hops.data.readers.types import Types, cast


def first_types(file: RawFile) -> Types:
    """The columns of the footer.

    Raises:
        BadInput: a name stands twice in it.
    """
    with file.stream() as (stream, _):
        schema = pq.ParquetFile(stream).schema_arrow
    if twice := [name for name in schema.names if schema.names.count(name) > 1]:
        raise BadInput(f"{file.name}: two columns have the name {twice[0]!r}; rename one of them")
    return {item.name: item.type for item in schema}


def infer_types(file: RawFile) -> Types:
    """The columns of the footer, which knows them for the whole file."""
    return first_types(file)


def read(file: RawFile, types: Types) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Streams the rows, with the position in the raw file."""
    rows = 0
    with file.stream() as (stream, raw):
        for batch in pq.ParquetFile(stream).iter_batches(columns=list(types)):
            yield cast(batch, types, file, rows), raw.tell()
            rows += batch.num_rows
