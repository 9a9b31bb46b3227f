"""CSV and JSON lines, by the readers of ingest; blocks of whole rows are dealt out to the processes.

Times count as text, as TFDV has no statistics for them.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from airflow_hops.ml.readers.raw_file import BLOCK_BYTES, RawFile
from airflow_hops.ml.statistics.formats.feature_types import Types, join_text, without_times
from airflow_hops.ml.statistics.formats.layout import Layout, Span, Wanted, bounded
from airflow_hops.ml.statistics.row_keys import numbered

join = join_text


def lay_out(file: RawFile) -> Layout:
    """Returns the columns, with types inferred from the first block."""
    # Each process reads all of the file, so a remote file is left to one process.
    batches = file.file.size_bytes // BLOCK_BYTES if isinstance(file.fs, LocalFileSystem) else 1
    types = without_times(_reader(file).first_types(file), file)
    return Layout(types, (Span(file.file.size_bytes, batches=batches),))


def all_types(file: RawFile) -> Types:
    """Returns the columns, with types inferred from all rows."""
    return without_times(_reader(file).infer_types(file), file)


def read(file: RawFile, span: Span, types: Types, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Streams the rows of a span's blocks.

    Raises:
        TypesDoNotFit: a value is not of its column's type, or there is another field.
        BadInput: a row cannot be read.
    """
    block = 0

    def has_block(number: int) -> bool:
        nonlocal block
        block = number
        return span.has(number)

    # A reader asks for a block just before it yields it.
    batches = _reader(file).read(file, types, has_block=has_block, is_wanted=wanted)
    yield from bounded(numbered(wanted.of(batch), block) for batch, _ in batches)


def _reader(file: RawFile) -> ModuleType:
    return importlib.import_module(f"airflow_hops.ml.readers.{file.format}")
