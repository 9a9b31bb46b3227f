"""Reader of CSV: blocks of whole rows, each parsed by Arrow.

Arrow's own streaming reader is not used: it reads ahead in a thread, and closing it waits for that thread with the GIL
held. If the thread reads from a Python file (a zip member, an S3 object), closing it before its end is a deadlock.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from airflow_hops.core.errors import BadInput, UnreadableFile
from airflow_hops.core.sources.sources import Source
from airflow_hops.ml.readers.csv_quotes import (
    RowCutter,
    UncertainQuotes,
    end_of_first_row,
    other_readings,
    quote_of,
    with_doubled_quotes,
    with_returns,
    without_quoted,
)
from airflow_hops.ml.readers.joined_types import join_texts
from airflow_hops.ml.readers.notation import plain_numbers
from airflow_hops.ml.readers.raw_file import BLOCK_BYTES, RawFile, TextLines, check_row_bytes, check_width, without_mark
from airflow_hops.ml.readers.text_types import TEXT, as_type, type_of
from airflow_hops.ml.readers.types import Types, batch_of

# How a file is read, in one pass and with a few blocks in memory: RowCutter finds the end of the last whole row in a
# block, other conventions of quotes are rewritten to doubled quotes, Arrow parses the block as text only, and
# text_types decides on types. Arrow's own type inference is not used, because it would read 007 as 7 and 1E5 as a
# number, and would decide on each block separately.

DELIMITERS = ",;\t|"
"""Delimiters that a header may be tried with."""
_TELL = "name what separates the columns in the source's 'delimiter'"


class CsvFile:
    """A file of CSV, whose columns are parsed as text; as :class:`~airflow_hops.ml.readers.text_file._Format`.

    Args:
        file: The file.
    """

    WITHOUT_ROWS = "the file has no header; expected the columns' names in its first row"

    def __init__(self, file: RawFile) -> None:
        self._file = file
        self._header = names_given(file)

    def blocks(self) -> Iterator[tuple[bytes, int]]:
        """Streams blocks of whole rows."""
        return blocks(self._file)

    def skip(self, block: bytes) -> int:
        """Returns the number of rows of a block; inexact if values have newlines."""
        rows = block.count(b"\n") - (self._header is None)
        self._header = self._header or header_of(block, self._file)
        return rows

    def parse(self, block: bytes, rows_before: int, types: Types | None) -> pa.RecordBatch | None:
        """Returns columns of text; if the file has none of the columns, its first, for the number of rows."""
        header = self._header
        self._header = names = header or header_of(block, self._file)
        if types is not None:
            if header is not None and not block.strip(b"\r\n"):
                return None
            names = [name for name in names if name in types] or names[:1]
        table = parse(block, self._file, header, dict.fromkeys(names, TEXT), rows_before)
        return batch_of([column.combine_chunks() for column in table.columns], table.column_names, table.num_rows)

    def type_of(self, column: pa.Array) -> pa.DataType:
        """Returns the type that all values have."""
        return type_of(plain_numbers(column, self._file.source))

    def as_type(self, column: pa.Array, kind: pa.DataType) -> pa.Array | None:
        """Converts a column; None if a value is not of the type."""
        return as_type(column if kind == TEXT else plain_numbers(column, self._file.source), kind)


def parse(
    block: bytes, file: RawFile, header: list[str] | None, types: Types, rows_before: int, *, use_threads: bool = True
) -> pa.Table:
    """Parses a block; its first row is the header if ``header`` is None."""
    check_width(block, file.source, file.name)
    try:
        return csv.read_csv(
            pa.BufferReader(block),
            # One Arrow block per block: Arrow then converts columns in parallel.
            read_options=csv.ReadOptions(block_size=len(block) + 1, column_names=header, use_threads=use_threads),
            parse_options=csv.ParseOptions(
                delimiter=file.source.delimiter, quote_char=quote_of(file.source) or False, newlines_in_values=True
            ),
            convert_options=csv.ConvertOptions(
                column_types=types or None,
                include_columns=list(types) or None,
                null_values=list(file.source.null_values),
                strings_can_be_null=True,
            ),
        )
    except pa.ArrowInvalid as error:
        text = str(error)
        if "invalid UTF8" in text:
            column = re.search(r"In CSV column #(\d+)", text)
            names = header or header_of(block, file)
            name = names[int(column.group(1))] if column and types else "?"
            raise UnreadableFile(
                file.name,
                f": column {name!r} is not text in {file.source.encoding}; name its encoding in the "
                "source's 'encoding', or by --encoding of airflow hops init",
            ) from error
        if use_threads:  # PyArrow 10.0: knows the row only if it uses one thread
            return parse(block, file, header, types, rows_before, use_threads=False)
        row = re.search(r"Row #(\d+): ", text)
        # PyArrow 10.0: counts the header as a row, messages do not.
        where = f", row {rows_before + int(row.group(1)) - (header is None)}" if row else ""
        fault = f"{file.name}{where}: {text.replace(row.group(0), '') if row else text}"
        settings = other_readings(block, file.source)
        raise (UncertainQuotes(fault, settings) if settings else BadInput(fault)) from error


def names_given(file: RawFile) -> list[str] | None:
    """Returns the names of a file's columns if its source gives them, so that its first row is a row."""
    header = file.source.header
    return None if header is None or isinstance(header, bool) else list(header)


def check_header(types: Types, rows: pa.RecordBatch, file: RawFile) -> None:
    """Raises BadInput if the names look like values of their columns: the first row may be one, and would be lost.

    A text that is in no row of a column whose values repeat is a name.
    """
    source, names = file.source, list(types)
    if source.header is not None or {*names} & {*(source.columns or ()), *source.schema, source.time_column}:
        return
    kinds = {name: kind for name, kind in types.items() if kind != TEXT and not pa.types.is_null(kind)}
    own = {name: type_of(plain_numbers(pa.array([name]), source)) for name in kinds}
    are_values = (join_texts(kind, own[name]) != TEXT for name, kind in kinds.items())
    is_counted = len(names) > 2 and names == [str(number) for number in range(len(names))]  # by pandas and others
    distinct = {name: pc.unique(rows[name]) for name, kind in types.items() if kind == TEXT}
    is_named = any(
        2 * len(values) <= rows.num_rows and name not in values.to_pylist() for name, values in distinct.items()
    )
    if kinds and all(are_values) and not is_counted and not is_named:
        raise BadInput(
            f"{file.name}: the first row, {', '.join(map(repr, names[:3]))}…, looks like the rows below it, not like "
            f"names of columns; if the file has no names, give them in the source's 'header', or write them into its "
            f"first row; if these are names, say header=True"
        )


def header_of(block: bytes, file: RawFile) -> list[str]:
    """Returns the column names in a file's first block, unless the source gives them.

    Raises:
        BadInput: the header is missing, or repeats a name.
    """
    if (names_of_source := names_given(file)) is not None:
        return names_of_source
    if not block.strip():
        raise BadInput(f"{file.name}: {CsvFile.WITHOUT_ROWS}")
    block = block.lstrip(b"\r\n")
    first_row = block[: end_of_first_row(block, file.source) or None]
    schema = parse(first_row.rstrip(b"\r\n") + b"\n", file, None, {}, 0).schema
    try:
        names: list[str] = schema.names
    except UnicodeDecodeError:
        names = []
    if not names or b"\0" in first_row:
        raise UnreadableFile(
            file.name,
            f": the header {first_row[:60].strip()!r} is not text in {file.source.encoding}; name its "
            "encoding in the source's 'encoding', or by --encoding of airflow hops init",
        )
    text = without_quoted(first_row, file.source)
    if text.lower().startswith(b"sep=") and len(names) <= 2:
        raise BadInput(f"{file.name}: the first row is {text.strip()!r}, which only Excel reads: delete it; {_TELL}")
    if len(names) == 1 and (others := [mark for mark in DELIMITERS if mark.encode() in text]):
        raise BadInput(
            f"{file.name}: the header {text[:60].strip()!r} is one column, and has {others[0]!r} in it; {_TELL}, or "
            "quote the name of a single column"
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInput(
            f"{file.name}: the header names column {twice!r} more than once; if the file has no names, give them in "
            "the source's 'header'"
        )
    return names


def blocks(file: RawFile) -> Iterator[tuple[bytes, int]]:
    """Streams blocks of whole rows in UTF-8, with quotes doubled instead of escaped, and the position in the raw file.

    Raises:
        UncertainQuotes: quotes cannot be read, or can be read in two ways.
    """
    codec = codecs.lookup(file.source.encoding)
    decoder = None if codec.name == "utf-8" else codecs.getincrementaldecoder(codec.name)()
    cutter, lines = RowCutter(file.name, file.source), TextLines(file)
    with file.stream() as (stream, raw):
        pending = b"" if decoder else without_mark(stream)
        while chunk := bytes(stream.read(BLOCK_BYTES)):
            pending = lines.of(pending + (decoder.decode(chunk).encode() if decoder else chunk))
            if end := cutter.end_of_rows(pending):
                yield _rows(pending[:end], file.source, lines), raw.tell()
                pending = pending[end:]
            else:
                check_row_bytes(len(pending), file.name, "; is a quote open?")
        if pending:
            # PyArrow 10.0: ignores a header without a newline.
            pending = lines.of(pending, is_whole=True)
            pending = pending if pending.endswith(b"\n") else pending + b"\n"
            if end := cutter.end_of_rows(pending):
                yield _rows(pending[:end], file.source, lines), raw.tell()
                pending = pending[end:]
        cutter.check_end(pending)


def _rows(rows: bytes, source: Source, lines: TextLines) -> bytes:
    rows = with_doubled_quotes(rows, source)
    return with_returns(rows, source) if lines.has_returns else rows
