"""Reader of CSV: blocks of whole rows, each parsed by Arrow.

Arrow's own streaming reader is not used: it reads ahead in a thread, and closing it waits for that thread with the GIL
held. If the thread reads from a Python file (a zip member, an S3 object), closing it before its end is a deadlock.
"""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Callable, Iterator

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
from airflow_hops.ml.readers.limits import check_row_bytes, check_width
from airflow_hops.ml.readers.notation import as_given, plain_numbers
from airflow_hops.ml.readers.raw_file import BLOCK_BYTES, RawFile, TextLines, without_mark
from airflow_hops.ml.readers.text_types import (
    FLOAT,
    INTEGER,
    NOT_THE_SAME,
    TEXT,
    TIMES,
    UTC_TIME,
    Blame,
    as_type,
    join,
    type_of,
    why_not,
    why_text,
    why_utc,
)
from airflow_hops.ml.readers.types import Types, TypesDoNotFit, type_named

# How a file is read, in one pass and with a few blocks in memory: RowCutter finds the end of the last whole row in a
# block, other conventions of quotes are rewritten to doubled quotes, Arrow parses the block as text only, and
# text_types decides on types. Arrow's own type inference is not used, because it would read 007 as 7 and 1E5 as a
# number, and would decide on each block separately.

log = logging.getLogger(__name__)

DELIMITERS = ",;\t|"
"""Delimiters that a header may be tried with."""
_TELL = "name what separates the columns in the source's 'delimiter'"


def first_types(file: RawFile) -> Types:
    """Returns the header's columns, with types inferred from the first block.

    Raises:
        BadInput: the header is missing or repeats a name, or the text is not in the source's encoding.
    """
    block, _ = next(blocks(file), (b"", 0))
    types = given_types(header_of(block, file), file)
    rows = parse(block, file, names_given(file), dict.fromkeys(types, TEXT), 0)
    widen(types, rows, file, 0 if file.notices is None else None)
    _check_header(types, rows, file)
    return types


def infer_types(file: RawFile) -> Types:
    """Returns the header's columns, with types that hold the values of all blocks.

    Raises:
        BadInput: a row has more or fewer columns than the header.
    """
    types: Types = {}
    header = names_given(file)
    rows = 0
    for block, _ in blocks(file):
        types = types or given_types(header_of(block, file), file)
        texts = parse(block, file, header, dict.fromkeys(types, TEXT), rows)
        # first_types() has logged the columns that are text from the first block on.
        widen(types, texts, file, rows or None if file.notices is None else None)
        header = list(types)
        rows += texts.num_rows
    return types


def given_types(header: list[str], file: RawFile) -> Types:
    """Returns the types in the source's schema; null for columns that it does not name."""
    values = file.source.schema
    return {name: type_named(values[name], name, file.source) if name in values else pa.null() for name in header}


def widen(types: Types, texts: pa.Table, file: RawFile, rows_before: int | None) -> None:
    """Widens inferred types in place so that they hold further values, and logs why a column becomes text.

    Args:
        types: Types by column.
        texts: Columns of text.
        file: The file; types from its source's schema are left alone.
        rows_before: Number of earlier rows in the file; None to log nothing.
    """
    for name in texts.column_names:
        old = types[name]
        if name in file.source.schema or old == TEXT:
            continue
        column = texts.column(name).combine_chunks()
        types[name] = join(old, type_of(plain_numbers(column, file.source)))
        if types[name] == UTC_TIME and rows_before is not None and (blame := why_utc(column)) is not None:
            log.warning("%s, %s", file.name, _named(blame, name, column, rows_before))
        if types[name] == TEXT and rows_before is not None:
            blame = why_text(column) if pa.types.is_null(old) else why_not(plain_numbers(column, file.source), old)
            if blame is not None:
                # Values such as codes are expected to stay text.
                level = logging.INFO if blame[1] == NOT_THE_SAME else logging.WARNING
                log.log(level, "%s, %s; the column is text", file.name, _named(blame, name, column, rows_before))


def read(
    file: RawFile,
    types: Types,
    *,
    has_block: Callable[[int], bool] = lambda number: True,
    is_wanted: Callable[[str], bool] | None = None,
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Streams the rows, with the position in the raw file.

    Args:
        file: The file.
        types: Types by column; if the file has none of the columns, its first is read, for the number of rows.
        has_block: Returns whether to read a block, by its number from 0.
        is_wanted: Ignored, since the header names all columns.

    Raises:
        TypesDoNotFit: a block has values of other types.
        BadInput: a row has more or fewer columns than the header, or a value does not fit the source's schema.
    """
    header = names_given(file)
    rows = 0
    for number, (block, position) in enumerate(blocks(file)):
        names = header or header_of(block, file)
        if not has_block(number):
            rows += block.count(b"\n") - (header is None)  # inexact if values have newlines
        elif header is None or block.strip(b"\r\n"):
            own = {name: types[name] for name in names if name in types} or {names[0]: TEXT}
            batch = _read_block(block, file, header, own, rows)
            rows += batch.num_rows
            yield batch, position
        header = names


def _read_block(
    block: bytes, file: RawFile, header: list[str] | None, types: Types, rows_before: int
) -> pa.RecordBatch:
    table = parse(block, file, header, dict.fromkeys(types, TEXT), rows_before)
    columns, misfits, why = [], {}, ""
    for name, kind in types.items():
        texts = table.column(name).combine_chunks()
        if name in file.source.schema:
            columns.append(as_given(texts, name, kind, file, rows_before))
            continue
        numbers = texts if kind == TEXT else plain_numbers(texts, file.source)
        columns.append(as_type(numbers, kind))
        if columns[-1] is None:
            misfits[name] = join(kind, type_of(numbers))
            why = why or _named(why_not(numbers, kind), name, texts, rows_before)
    if misfits:
        raise TypesDoNotFit(file.name, misfits, why)
    if file.notices is not None:
        for name, kind in types.items():
            texts = table.column(name).combine_chunks()
            if kind in TIMES and name not in file.source.schema:
                file.notices.add_times(name, texts, kind, file.name, rows_before)
            elif file.source.units and kind in (INTEGER, FLOAT):
                file.notices.add_units(name, texts, file.source.units, file.name, rows_before)
    return pa.RecordBatch.from_arrays(columns, list(types))


def _named(blame: Blame, name: str, column: pa.Array, rows_before: int) -> str:
    position, why = blame
    return f"row {rows_before + position + 1}, column {name!r}: {column[position].as_py()!r} {why}"


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
        if use_threads:  # Arrow knows the row only if it uses one thread
            return parse(block, file, header, types, rows_before, use_threads=False)
        row = re.search(r"Row #(\d+): ", text)
        # Arrow counts the header as a row, messages do not.
        where = f", row {rows_before + int(row.group(1)) - (header is None)}" if row else ""
        fault = f"{file.name}{where}: {text.replace(row.group(0), '') if row else text}"
        settings = other_readings(block, file.source)
        raise (UncertainQuotes(fault, settings) if settings else BadInput(fault)) from error


def names_given(file: RawFile) -> list[str] | None:
    """Returns the names of a file's columns if its source gives them, so that its first row is a row."""
    header = file.source.header
    return None if header is None or isinstance(header, bool) else list(header)


def _check_header(types: Types, rows: pa.Table, file: RawFile) -> None:
    """Raises BadInput if the names look like values of their columns: the first row may be one, and would be lost.

    A text that is in no row of a column whose values repeat is a name.
    """
    source, names = file.source, list(types)
    if source.header is not None or {*names} & {*(source.columns or ()), *source.schema, source.time_column}:
        return
    kinds = {name: kind for name, kind in types.items() if kind != TEXT and not pa.types.is_null(kind)}
    are_values = (join(kind, type_of(plain_numbers(pa.array([name]), source))) != TEXT for name, kind in kinds.items())
    is_counted = len(names) > 2 and names == [str(number) for number in range(len(names))]  # by pandas and others
    distinct = {name: pc.unique(rows.column(name)) for name, kind in types.items() if kind == TEXT}
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
        raise BadInput(f"{file.name}: the file has no header; expected the columns' names in its first row")
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
            # Arrow ignores a header without a newline.
            pending = lines.of(pending, is_whole=True)
            pending = pending if pending.endswith(b"\n") else pending + b"\n"
            if end := cutter.end_of_rows(pending):
                yield _rows(pending[:end], file.source, lines), raw.tell()
                pending = pending[end:]
        cutter.check_end(pending)


def _rows(rows: bytes, source: Source, lines: TextLines) -> bytes:
    rows = with_doubled_quotes(rows, source)
    return with_returns(rows, source) if lines.has_returns else rows
