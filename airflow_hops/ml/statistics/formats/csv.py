"""CSV: spans are ranges of whole rows, where the file is local and not compressed.

Types are those of ingest, from the first rows of each span; times, of which TFDV has no statistics, count as text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

import pyarrow as pa

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.ml.readers import csv as raw_csv
from airflow_hops.ml.readers.raw_file import BLOCK_BYTES, RawFile
from airflow_hops.ml.readers.text_types import TEXT
from airflow_hops.ml.statistics.formats.feature_types import (
    Types,
    TypesDoNotFit,
    batch_of,
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
    """The columns of the header, with the types of the first rows of each span."""
    if not file.is_local or not raw_csv.is_utf8(file):
        block, _ = next(raw_csv.blocks(file), (b"", 0))
        header, start = _header(block, file)
        sample = block[start : start + SAMPLE_BYTES]
        types = raw_csv.given_types(header, file)
        _widen(types, sample[: _end_of_rows(file)(sample) or None], file, int)
        return Layout(without_times(types, file), (whole_file(file, file.file.size_bytes // BLOCK_BYTES),))
    path, size = file.file.path, file.file.size_bytes
    header, start = _header_of_local(file)
    first = first_rows(path, start, SAMPLE_BYTES, _end_of_rows(file))
    types = raw_csv.given_types(header, file)
    _widen(types, first, file, int)
    length = span_bytes(size - start, len(first) / max(1, first.count(b"\n")))
    spans = spans_of_rows(path, start, length, delimiter=file.source.delimiter)
    if spans is None:
        return Layout(without_times(types, file), (whole_file(file, size // BLOCK_BYTES),))
    # What is wrong with later rows is for read() to tell, with its row.
    with contextlib.suppress(BadInput):
        for span, text in later_rows(path, spans, _end_of_rows(file)):
            _widen(types, text, file, partial(rows_between, path, start, span.start))
    return Layout(without_times(types, file), spans)


def all_types(file: RawFile) -> Types:
    """The columns of the header, with the types of all rows."""
    return without_times(raw_csv.infer_types(file), file)


def read(file: RawFile, span: Span, types: Types, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The rows of a span.

    Raises:
        TypesDoNotFit: a value is not of its column's type.
        BadInput: a row has more or fewer columns than the header, or its text is not of the source's encoding.
    """
    if span.stop is not None:
        header, start = _header_of_local(file)
        block = text_of(file.file.path, span.start, span.stop)
        try:
            yield from bounded([_parse(block, file, header, types, 0)])
        except (BadInput, TypesDoNotFit):  # says which row of the file it is
            _parse(block, file, header, types, rows_between(file.file.path, start, span.start))
            raise
        return
    header, rows = [], 0
    for number, (block, _) in enumerate(raw_csv.blocks(file)):
        start = 0
        if not header:
            header, start = _header(block, file)
        if span.has(number) and block[start:].strip(b"\r\n"):
            yield from bounded([_parse(block[start:], file, header, types, rows)])
        rows += block.count(b"\n", start)


def _parse(block: bytes, file: RawFile, header: list[str], types: Types, rows_before: int) -> pa.RecordBatch:
    wanted = {name: types[name] for name in header if name in types}
    if not wanted:
        # Only parsing tells rows apart.
        return batch_of([], [], raw_csv.parse(block, file, header, {header[0]: pa.binary()}, rows_before).num_rows)
    return raw_csv.read_block(block, file, header, wanted, rows_before)


def _widen(types: Types, text: bytes, file: RawFile, rows_before: Callable[[], int]) -> None:
    # Text is text whatever follows.
    undecided = {name: TEXT for name, kind in types.items() if name not in file.source.schema and kind != TEXT}
    if undecided and text.strip(b"\r\n"):
        raw_csv.widen(types, raw_csv.parse(text, file, list(types), undecided, 0), file, rows_before)


def _header_of_local(file: RawFile) -> tuple[list[str], int]:
    return _header(first_rows(file.file.path, 0, SAMPLE_BYTES, _end_of_rows(file)), file)


def _end_of_rows(file: RawFile) -> Callable[[bytes], int]:
    return partial(raw_csv.end_of_rows, delimiter=file.source.delimiter)


def _header(text: bytes, file: RawFile) -> tuple[list[str], int]:
    """The columns' names, and the byte behind them."""
    start = len(text) - len(text.lstrip(b"\r\n"))
    length = raw_csv.end_of_rows(text[start:], file.source.delimiter, first=True)
    length = length or text[start:].find(b"\r") + 1  # rows that end as on old Macs
    end = start + length if length else len(text)
    return raw_csv.header_of(text[start:end], file), end
