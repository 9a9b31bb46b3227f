"""JSON lines: spans are ranges of whole lines, where the file is local and not compressed.

Types are those of ingest, from the first lines of each span; times, of which TFDV has no statistics, count as text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.readers import jsonl as raw_jsonl
from airflow_hops.ml.readers.raw_file import BLOCK_BYTES, RawFile
from airflow_hops.ml.readers.types import check_text
from airflow_hops.ml.statistics.formats.feature_types import (
    Types,
    join_text,
    without_times,
)
from airflow_hops.ml.statistics.formats.layout import Layout, Span, Wanted, bounded, whole_file
from airflow_hops.ml.statistics.formats.row_spans import (
    SAMPLE_BYTES,
    first_rows,
    later_rows,
    rows_between,
    span_bytes,
    spans_of_rows,
    text_of,
)

join = join_text


def lay_out(file: RawFile) -> Layout:
    """The fields of the first lines of each span."""
    types: Types = {}
    if not file.is_local:
        block, _ = next(raw_jsonl.blocks(file), (b"", 0))
        raw_jsonl.widen(types, block[: _end_of_lines(block[:SAMPLE_BYTES]) or None], file, int)
        return Layout(without_times(types, file), (whole_file(file, file.file.size_bytes // BLOCK_BYTES),))
    path, size = file.file.path, file.file.size_bytes
    first = first_rows(path, 0, SAMPLE_BYTES, _end_of_lines)
    raw_jsonl.widen(types, first, file, int)
    spans = spans_of_rows(path, 0, span_bytes(size, len(first) / max(1, first.count(b"\n"))), delimiter=None) or ()
    # What is wrong with later lines is for read() to tell, with its line.
    with contextlib.suppress(BadInput):
        for span, text in later_rows(path, spans, _end_of_lines):
            raw_jsonl.widen(types, text, file, partial(rows_between, path, 0, span.start))
    return Layout(without_times(types, file), spans)


def all_types(file: RawFile) -> Types:
    """The fields of all lines."""
    return without_times(raw_jsonl.infer_types(file), file)


def read(file: RawFile, span: Span, types: Types, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The objects of a span.

    Raises:
        TypesDoNotFit: a field is of another type, or there is one more.
        BadInput: a line is not a JSON object.
    """
    if span.stop is not None:
        before = partial(rows_between, file.file.path, 0, span.start)
        yield from bounded([_read(text_of(file.file.path, span.start, span.stop), file, types, before, wanted)])
        return
    rows = 0
    for number, (block, _) in enumerate(raw_jsonl.blocks(file)):
        if span.has(number) and block.strip():
            yield from bounded([_read(block, file, types, partial(int, rows), wanted)])
        rows += block.count(b"\n")


def _read(block: bytes, file: RawFile, types: Types, rows_before: Callable[[], int], wanted: Wanted) -> pa.RecordBatch:
    batch = raw_jsonl.read_block(block, file, types, rows_before, wanted)
    try:
        check_text(batch, file, 0)
    except BadInput:  # says which line of the file it is
        check_text(batch, file, rows_before())
        raise
    return batch


def _end_of_lines(text: bytes) -> int:
    return text.rfind(b"\n") + 1
