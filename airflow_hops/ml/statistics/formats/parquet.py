"""Parquet: spans are row groups."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.versions import parquet_file
from airflow_hops.ml.readers.parquet import footer, index_columns, most_rows, types_with_text, with_uuid_texts
from airflow_hops.ml.readers.raw_file import RawFile, explained
from airflow_hops.ml.readers.types import check_text
from airflow_hops.ml.statistics.formats.feature_types import Types, batch_of, join, row_bytes, types_of
from airflow_hops.ml.statistics.formats.layout import (
    BATCH_BYTES,
    BATCH_ROWS,
    ColumnSelection,
    Layout,
    Span,
    UnitShare,
    batch_rows,
    bounded_units,
    units_of_rows,
)
from airflow_hops.ml.statistics.row_keys import numbered

_PROBE_ROWS = 64
_PIECE_BYTES = 1 << 20

__all__ = ["join", "lay_out", "read"]


def lay_out(file: RawFile) -> Layout:
    """Returns the footer's columns, and spans of row groups; small row groups share a span."""
    with _opened(file) as (parquet, _):
        metadata = parquet.metadata
        width = row_bytes(parquet.schema_arrow.types)
        spans: list[Span] = []
        start = rows = size = 0
        for index in range(metadata.num_row_groups):
            group = metadata.row_group(index)
            rows += group.num_rows
            size += max(group.total_byte_size, int(group.num_rows * width))
            is_last = index == metadata.num_row_groups - 1
            if rows and (is_last or rows >= BATCH_ROWS // 2 or size >= BATCH_BYTES // 2):
                units = max(1, rows // BATCH_ROWS, size // BATCH_BYTES) if file.is_local else 1
                spans.append(Span(size, start, index + 1, units, file.name))
                start, rows, size = index + 1, 0, 0
        schema = parquet.schema_arrow
        types = types_of(schema, file.name) | types_with_text(parquet)
        for name in index_columns(schema):
            if name not in (file.source.columns or ()):
                del types[name]
        return types, tuple(spans)


def read(
    file: RawFile, span: Span, types: Types, wanted: ColumnSelection, share: UnitShare
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Streams the rows of a share of a span."""
    with _opened(file) as (parquet, source):
        row = sum(parquet.metadata.row_group(index).num_rows for index in range(span.start))

        def pieces() -> Iterator[tuple[int, pa.RecordBatch]]:
            position = row
            for unit, batch in units_of_rows(_batches(parquet, source, span, types, file)):
                if share.has(unit):
                    check_text(batch, file, position)
                    # Parquet reads both the column "a.b" and the field "b" of a struct "a"; this selects the column.
                    yield unit, numbered(wanted.of(batch), 0, position)
                position += batch.num_rows

        yield from bounded_units(pieces())


def _batches(parquet: pq.ParquetFile, source: Any, span: Span, types: Types, file: RawFile) -> Iterator[pa.RecordBatch]:
    """Yields the batches of a span."""
    names, texts = [name for name in parquet.schema_arrow.names if name in types], types_with_text(parquet)
    for index in range(span.start, span.stop or 0):
        options = {"row_groups": [index], "columns": names, "use_threads": pa.cpu_count() > 1}
        group = parquet.metadata.row_group(index)
        if not names:
            yield batch_of([], [], group.num_rows)
            continue
        most = most_rows(source, parquet.metadata, index, names, file.name)
        # The footer lacks the size of dictionary values, so a few rows are read to estimate it.
        probe = next(iter(parquet.iter_batches(min(most, _PROBE_ROWS), **options)), None)
        sizes = [group.total_byte_size / max(group.num_rows, 1)]
        if probe is not None:
            sizes.append(probe.nbytes / probe.num_rows)
        for batch in parquet.iter_batches(min(most, batch_rows(max(sizes))), **options):
            yield with_uuid_texts(batch, texts)


@contextmanager
def _opened(file: RawFile) -> Iterator[tuple[pq.ParquetFile, Any]]:
    """Opens a file; yields it with the path or stream that it is read from."""
    if file.is_local:
        with explained(file.name):
            # Columns are read in pieces, as a row group may be larger than memory.
            metadata = _footer(file.file.path, file.file.version)
            yield parquet_file(file.file.path, metadata=metadata, buffer_size=_PIECE_BYTES), file.file.path
    else:
        with file.stream() as (stream, _):
            yield parquet_file(stream, metadata=footer(stream)), stream


@lru_cache(maxsize=64)
def _footer(path: str, version: str) -> object:
    """Reads a local file's footer, parsed once by a process that reads many of its row groups."""
    with Path(path).open("rb") as stream:
        return footer(stream)
