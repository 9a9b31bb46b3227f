"""TFRecord of ``tf.Example``, decoded as in TFDV; units are runs of records."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from airflow_hops.core.errors import SchemaMismatch, UnreadableFile
from airflow_hops.ml.readers.raw_file import RawFile
from airflow_hops.ml.readers.tfrecord import records
from airflow_hops.ml.statistics.formats.feature_types import Types, batch_of, join
from airflow_hops.ml.statistics.formats.layout import (
    BATCH_BYTES,
    ColumnSelection,
    Layout,
    Span,
    UnitShare,
    bounded_units,
)
from airflow_hops.ml.statistics.row_keys import numbered

_UNIT_CHUNKS = 64
_UNIT_BYTES = 1 << 20
"""Approximate bytes of a unit, to estimate the number of units in a file."""
_DECODED_ROWS = 256
"""Records decoded at a time; with ten times as many, the decoder takes 50% longer."""

Chunk = tuple[int, list[bytes]]
"""Number of a chunk in its file, and its examples."""

__all__ = ["join", "lay_out", "read"]


def lay_out(file: RawFile) -> Layout:
    """Returns the features of the first records; later ones may have more."""
    with file.stream() as (stream, _):
        head = list(itertools.islice(records(stream, file.name), _DECODED_ROWS))
    chunks = [(0, head)] if head else []
    types = {item.name: item.type for _, batch in _decoded(chunks, file) for item in batch.schema}
    # Each process reads all of the file, so a remote file is left to one process.
    units = max(1, file.file.size_bytes // _UNIT_BYTES) if isinstance(file.fs, LocalFileSystem) else 1
    return Layout(types, (Span(file.file.size_bytes, units=units),))


def read(
    file: RawFile, span: Span, types: Types, wanted: ColumnSelection, share: UnitShare
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Streams the examples of a share; each batch has only the features of its examples.

    Raises:
        BadInput: a record is damaged or not a ``tf.Example``, or a feature's type differs from that in earlier records.
    """
    with file.stream() as (stream, _):
        chunks = (
            (index, chunk) for index, chunk in _chunks(records(stream, file.name)) if share.has(index // _UNIT_CHUNKS)
        )
        yield from bounded_units(_batches(chunks, file, types, wanted))


def _batches(
    chunks: Iterable[Chunk], file: RawFile, types: Types, wanted: ColumnSelection
) -> Iterator[tuple[int, pa.RecordBatch]]:
    types = dict(types)
    for unit, run in itertools.groupby(_decoded(chunks, file), key=lambda chunk: chunk[0] // _UNIT_CHUNKS):
        waiting: list[pa.Table] = []
        size = 0
        for number, decoded in run:
            batch = wanted.of(decoded)
            for item in batch.schema:
                known = types.get(item.name, pa.null())
                joined = join(known, item.type)
                if joined is None:
                    raise SchemaMismatch(file.name, item.name, item.type, known).with_text(
                        f"{file.name}: feature {item.name!r} is {item.type}, but {known} in the examples before; "
                        "expected one type"
                    )
                types[item.name] = joined
            waiting.append(pa.Table.from_batches([numbered(batch, number)]))
            size += batch.nbytes
            if size >= BATCH_BYTES:
                yield unit, _merged(waiting)
                waiting, size = [], 0
        if waiting:
            yield unit, _merged(waiting)


def _merged(tables: list[pa.Table]) -> pa.RecordBatch:
    """Concatenates tables; features that a table lacks are null in its rows."""
    merged = pa.concat_tables(tables, promote=True).combine_chunks()
    columns = [column.chunk(0) for column in merged.columns]
    return batch_of(columns, merged.column_names, sum(table.num_rows for table in tables))


def _chunks(examples: Iterable[bytes]) -> Iterator[Chunk]:
    """Yields the chunks that are decoded at a time, with their numbers."""
    chunk: list[bytes] = []
    number = size = 0
    for example in examples:
        chunk.append(example)
        size += len(example)
        if len(chunk) == _DECODED_ROWS or size >= BATCH_BYTES:
            yield number, chunk
            chunk, number, size = [], number + 1, 0
    if chunk:
        yield number, chunk


def _decoded(chunks: Iterable[Chunk], file: RawFile) -> Iterator[tuple[int, pa.RecordBatch]]:
    from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder

    decoder = ExamplesToRecordBatchDecoder(None)
    for number, chunk in chunks:
        try:
            yield number, decoder.DecodeBatch(chunk)
        except RuntimeError as error:
            raise UnreadableFile(file.name, f": a record cannot be read as a tf.Example ({error})") from error
