"""The reader of Parquet files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.data.readers.raw_file import RawFile
from airflow_hops.data.readers.types import Types, cast


def first_types(file: RawFile) -> Types:
    """The columns of the footer.

    Raises:
        BadInput: a name occurs twice in it.
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
        parquet = pq.ParquetFile(stream)
        if any(pa.types.is_fixed_size_list(item.type) for item in parquet.schema_arrow):
            parquet = pq.ParquetFile(stream, metadata=_without_arrow_types(stream))
        for batch in parquet.iter_batches(columns=list(types)):
            yield cast(batch, types, file, rows), raw.tell()
            rows += batch.num_rows


def _without_arrow_types(stream: Any) -> Any:
    """A file's metadata less the types that its writer had: Arrow reads no list of a fixed size that is missing."""
    stream.seek(-8, 2)
    length = int.from_bytes(stream.read(4), "little")
    stream.seek(-8 - length, 2)
    footer = stream.read(length).replace(b"ARROW:schema", b"arrow:schema")
    return pq.read_metadata(io.BytesIO(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"))
