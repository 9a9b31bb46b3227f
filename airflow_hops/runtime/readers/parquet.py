"""The reader of Parquet files."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.runtime.readers.raw_file import RawFile
from airflow_hops.runtime.readers.types import Types, cast


def first_types(file: RawFile) -> Types:
    """The columns of the footer."""
    with file.stream() as (stream, _):
        return {item.name: item.type for item in pq.ParquetFile(stream).schema_arrow}


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
