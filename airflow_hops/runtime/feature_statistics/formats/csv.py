"""CSV with the types that TFDV infers: spans are ranges of whole rows, where the file is local and not compressed.

Types come from the first rows of each span. A block that does not hold them is parsed again as text, which tells the
types that hold it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.data.readers import csv as raw_csv
from airflow_hops.data.readers.raw_file import BLOCK_BYTES, RawFile
from airflow_hops.data.readers.types import TypesDoNotFit as ConversionError
from airflow_hops.data.readers.types import fits, misfit, type_named
from airflow_hops.runtime.feature_statistics.formats.feature_types import Types, TypesDoNotFit, batch_of
from airflow_hops.runtime.feature_statistics.formats.layout import Layout, Span, Wanted, bounded, whole_file
from airflow_hops.runtime.feature_statistics.formats.row_spans import (
    SAMPLE_BYTES,
    first_rows,
    later_rows,
    span_bytes,
    spans_of_rows,
    text_of,
)
from airflow_hops.runtime.feature_statistics.formats.text_types import (
    FLOAT,
    INTEGER,
    TEXT,
    may_hide_text,
    text_as,
    type_of_text,
    wider,
)


def join(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type of a column that is of the one type in one file and of the other in another, as TFDV infers it."""
    return one if one == other else wider(one, other)


def lay_out(file: RawFile) -> Layout:
    """The columns of the header, with the types of the first rows of each span."""
    if not file.is_local or not raw_csv.is_utf8(file):
        block, _ = next(raw_csv.blocks(file), (b"", 0))
        header, start = _header(block, file)
        sample = block[start : start + SAMPLE_BYTES]
        types = _sample_types(sample[: _end_of_rows(file)(sample) or None], header, file)
        return Layout(types, (whole_file(file, file.file.size_bytes // BLOCK_BYTES),))
    path, size = file.file.path, file.file.size_bytes
    header, start = _header_of_local(file)
    first = first_rows(path, start, SAMPLE_BYTES, _end_of_rows(file))
    types = _sample_types(first, header, file)
    length = span_bytes(size - start, len(first) / max(1, first.count(b"\n")))
    spans = spans_of_rows(path, start, length, delimiter=file.source.delimiter)
    if spans is None:
        return Layout(types, (whole_file(file, size // BLOCK_BYTES),))
    # What is wrong with later rows is for read() to tell, with its row.
    with contextlib.suppress(BadInput):
        types = _sample_types(later_rows(path, spans, _end_of_rows(file)), header, file, types)
    return Layout(types, spans)


def all_types(file: RawFile) -> Types:
    """The columns of the header, with the types of all rows."""
    header: list[str] = []
    types: Types = {}
    for block, _ in raw_csv.blocks(file):
        start = 0
        if not header:
            header, start = _header(block, file)
        types = _sample_types(block[start:], header, file, types)
    return types


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
        except BadInput:
            lines = text_of(file.file.path, start, span.start).count(b"\n")
            if lines:  # says which row of the file it is
                _parse(block, file, header, types, lines)
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
    quick = {name: pa.float64() if _is_inferred_float(name, kind, file) else kind for name, kind in wanted.items()}
    columns: dict[str, pa.Array] = {}
    if not wanted:
        # Only parsing tells rows apart.
        return batch_of([], [], raw_csv.parse(block, file, header, {header[0]: pa.binary()}, rows_before).num_rows)
    try:
        table = raw_csv.parse(block, file, header, quick, rows_before)
    except ConversionError:
        doubtful = list(wanted)
    else:
        columns = {name: table.column(name).combine_chunks() for name in wanted}
        doubtful = _doubtful(block, columns, wanted, file)
        columns = {
            name: column.cast(FLOAT, safe=False) if _is_inferred_float(name, wanted[name], file) else column
            for name, column in columns.items()
        }
    if doubtful:
        columns |= _from_text(block, file, header, {name: wanted[name] for name in doubtful}, rows_before)
    return pa.RecordBatch.from_arrays([columns[name] for name in wanted], list(wanted))


def _is_inferred_float(name: str, kind: pa.DataType, file: RawFile) -> bool:
    return bool(kind == FLOAT and name not in file.source.schema)


def _doubtful(block: bytes, columns: Mapping[str, pa.Array], types: Types, file: RawFile) -> list[str]:
    """The columns that Arrow parsed as numbers where Python may not."""
    has_hexadecimal = _has_hexadecimal(block, file.source.delimiter)
    return [
        name
        for name, column in columns.items()
        if (_is_inferred_float(name, types[name], file) and may_hide_text(column))
        or (has_hexadecimal and types[name] == INTEGER and name not in file.source.schema)
    ]


def _has_hexadecimal(block: bytes, delimiter: str) -> bool:
    """Whether a value may begin with "0x", which Arrow takes for an integer."""
    text = np.frombuffer(block, np.uint8)
    marks = np.flatnonzero((text | 0x20) == ord("x"))
    marks = marks[(marks >= 1) & (text[marks - 1] == ord("0"))]
    edges = np.frombuffer(f'\n\r\t "{delimiter}'.encode(), np.uint8)
    return bool(np.any((marks == 1) | np.isin(text[marks - 2], edges)))


def _from_text(block: bytes, file: RawFile, header: list[str], types: Types, rows_before: int) -> dict[str, pa.Array]:
    """Columns parsed as text and converted as TFDV would, which tells those that are of another type.

    Raises:
        TypesDoNotFit: the columns that are.
        BadInput: a value is not of the type that the source's ``schema`` gives its column.
    """
    table = raw_csv.parse(block, file, header, dict.fromkeys(types, TEXT), rows_before)
    columns, misfits = {}, {}
    for name, kind in types.items():
        text = table.column(name).combine_chunks()
        if name in file.source.schema:
            if not fits(text, kind):
                raise misfit(text, kind, name, file, rows_before)
            columns[name] = text.cast(kind)
            continue
        found = TEXT if kind == TEXT else wider(kind, type_of_text(text))
        if found == kind:
            columns[name] = text_as(text, kind)
        else:
            misfits[name] = found
    if misfits:
        raise TypesDoNotFit(file.name, misfits)
    return columns


def _sample_types(text: bytes, header: list[str], file: RawFile, known: Types | None = None) -> Types:
    """The types of the columns in a text of whole rows, as wide as those that are known."""
    given = {name: type_named(alias, name, file.source) for name, alias in file.source.schema.items()}
    types: Types = {name: given.get(name, (known or {}).get(name, pa.null())) for name in header}
    # Text is text whatever follows.
    undecided = [name for name in header if name not in given and types[name] != TEXT]
    if undecided and text.strip(b"\r\n"):
        texts = raw_csv.parse(text, file, header, dict.fromkeys(undecided, TEXT), 0)
        for name in undecided:
            types[name] = wider(types[name], type_of_text(texts.column(name).combine_chunks()))
    return types


def _header_of_local(file: RawFile) -> tuple[list[str], int]:
    return _header(first_rows(file.file.path, 0, SAMPLE_BYTES, _end_of_rows(file)), file)


def _end_of_rows(file: RawFile) -> Callable[[bytes], int]:
    return partial(raw_csv.end_of_rows, delimiter=file.source.delimiter)


def _header(text: bytes, file: RawFile) -> tuple[list[str], int]:
    """The columns' names, and the byte behind them."""
    start = len(text) - len(text.lstrip(b"\r\n"))
    length = raw_csv.end_of_rows(text[start:], file.source.delimiter, first=True)
    end = start + length if length else len(text)
    return raw_csv.header_of(text[start:end], file), end
