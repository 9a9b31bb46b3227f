"""Arrow IPC: spans of a file are runs of record batches; a stream is a single span."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from airflow_hops.ml.readers.raw_file import RawFile, explained
from airflow_hops.ml.statistics.formats.feature_types import Types, join, types_of
from airflow_hops.ml.statistics.formats.layout import (
    BATCH_BYTES,
    Layout,
    Share,
    Span,
    Wanted,
    bounded_units,
    units_of_rows,
)
from airflow_hops.ml.statistics.row_keys import numbered

_MAGIC = b"ARROW1"

__all__ = ["join", "lay_out", "read"]


def lay_out(file: RawFile) -> Layout:
    """Returns the schema's columns, and spans of record batches."""
    size = file.file.size_bytes
    with _opened(file) as (source, is_stream):
        if is_stream:
            return Layout(types_of(ipc.open_stream(source).schema, file.name), (Span(size),))
        reader = ipc.open_file(source)
        count = reader.num_record_batches
        each = size // max(1, count)
        step = max(1, BATCH_BYTES // max(1, each))
        bounds = [(start, min(start + step, count)) for start in range(0, count, step)]
        spans = tuple(Span((stop - start) * each, start, stop) for start, stop in bounds)
        return Layout(types_of(reader.schema, file.name), spans)


def read(file: RawFile, span: Span, types: Types, wanted: Wanted, share: Share) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Streams the rows of a share of a span."""
    with _opened(file) as (source, is_stream):
        open_ = ipc.open_stream if is_stream else ipc.open_file
        names = open_(source).schema.names
        # Arrow would read all fields for an empty list.
        fields = [index for index, name in enumerate(names) if name in types] or [0]
        source.seek(0)
        reader = open_(source, options=ipc.IpcReadOptions(included_fields=fields, use_threads=pa.cpu_count() > 1))
        batches = reader if is_stream else (reader.get_batch(index) for index in range(span.start, span.stop or 0))
        numbers = enumerate(batches, span.start)
        rows = (numbered(wanted.of(_valid(batch)), number) for number, batch in numbers)
        yield from bounded_units((unit, batch) for unit, batch in units_of_rows(rows) if share.has(unit))


def _valid(batch: pa.RecordBatch) -> pa.RecordBatch:
    # Offsets of damaged strings could point outside the buffer.
    batch.validate(full=True)
    return batch


@contextmanager
def _opened(file: RawFile) -> Iterator[tuple[Any, bool]]:
    """Opens a file, and detects whether it holds a stream; local files are memory-mapped to avoid copies."""
    with explained(file.name):
        if file.is_local:
            with pa.memory_map(file.file.path) as source:
                yield source, _is_stream(source)
        else:
            with file.stream() as (stream, _):
                source = pa.PythonFile(stream, mode="r") if file.compression is None else stream
                yield source, _is_stream(source)


def _is_stream(source: Any) -> bool:
    head = bytes(source.read(len(_MAGIC)))
    source.seek(0)
    return head != _MAGIC
