"""CSV and JSON lines, by the readers of ingest; units are blocks of whole rows.

Times count as text.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from airflow_hops.ml.readers import text_file
from airflow_hops.ml.readers.joined_types import join_texts
from airflow_hops.ml.readers.raw_file import BLOCK_BYTES, RawFile
from airflow_hops.ml.statistics.formats.feature_types import Types, without_times
from airflow_hops.ml.statistics.formats.layout import ColumnSelection, Layout, Span, UnitShare, bounded_units
from airflow_hops.ml.statistics.row_keys import numbered

join = join_texts


def lay_out(file: RawFile) -> Layout:
    """Returns the columns, with types inferred from the first block."""
    # Each process reads all of the file, so a remote file is left to one process.
    units = max(1, file.file.size_bytes // BLOCK_BYTES) if isinstance(file.fs, LocalFileSystem) else 1
    types = without_times(text_file.types_of(file, first_block_only=True), file)
    return types, (Span(file.file.size_bytes, units=units, file=file.name),)


def all_types(file: RawFile) -> Types:
    """Returns the columns, with types inferred from all rows."""
    return without_times(text_file.types_of(file), file)


def read(
    file: RawFile, span: Span, types: Types, wanted: ColumnSelection, share: UnitShare
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Streams the rows of the share's blocks.

    Raises:
        TypesDoNotFit: a value is not of its column's type, or there is another field.
        BadInput: a row cannot be read.
    """
    batches = text_file.rows_of(file, types, has_block=share.has, is_wanted=wanted)
    # A reader asks for a block just before it yields it.
    pieces = ((share.units - 1, batch) for batch, _ in batches)
    yield from bounded_units((block, numbered(wanted.of(batch), block)) for block, batch in pieces)
