"""The reader of CSV: blocks of whole rows, each parsed by Arrow.

Arrow's own streaming reader would read ahead in a thread, and waits for it while it holds the interpreter's lock: given
a Python file (a zip's member, an object of S3), dropping it before its end is a deadlock.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

import pyarrow as pa
from pyarrow import csv

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.data.readers.raw_file import BLOCK_BYTES, RawFile
from airflow_hops.data.readers.types import Types, TypesDoNotFit, fits, join, misfit, type_named

_CANDIDATES = (pa.int64(), pa.float64(), pa.bool_(), pa.timestamp("us"), pa.timestamp("us", "UTC"))
"""Types that text is tried as, in this order; text that is none of them stays text."""
_LONGEST_ROW_BYTES = 64 << 20


def first_types(file: RawFile) -> Types:
    """The columns of the header, with the types of the first block.

    Raises:
        BadInput: there is no header, a name occurs twice in it, or the text is not of the source's encoding.
    """
    block, _ = next(blocks(file), (b"", 0))
    header_of(block, file)
    schema = parse(block, file, None, {}, 0).schema
    for item in schema:
        if pa.types.is_binary(item.type):
            raise _not_text(item.name, file)
    return {item.name: item.type for item in schema}


def infer_types(file: RawFile) -> Types:
    """The columns of the header, with types that hold the values of all blocks.

    Raises:
        BadInput: a value is not of the type that the source's ``schema`` gives its column.
    """
    texts: Types = {name: pa.string() for name in first_types(file)}
    given = {name: type_named(alias, name, file.source) for name, alias in file.source.schema.items()}
    types: Types = {name: pa.null() for name in texts}
    rows = 0
    for batch, _ in read(file, texts):
        for name, before in types.items():
            array = batch.column(batch.schema.get_field_index(name))
            if name in given:
                if not fits(array, given[name]):
                    raise misfit(array, given[name], name, file, rows)
            elif not pa.types.is_string(before):
                types[name] = join(before, _type_of(array)) or pa.string()
        rows += batch.num_rows
    return types


def read(file: RawFile, types: Types) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Streams the rows, with the position in the raw file.

    Raises:
        TypesDoNotFit: a block's values are not of these types.
        BadInput: a row has more or fewer columns than the header.
    """
    header: list[str] | None = None
    rows = 0
    for block, position in blocks(file):
        table = parse(block, file, header, types, rows)
        rows += table.num_rows
        header = header or header_of(block, file)
        for batch in table.combine_chunks().to_batches():
            yield batch, position


def parse(
    block: bytes, file: RawFile, header: list[str] | None, types: Types, rows_before: int, *, use_threads: bool = True
) -> pa.Table:
    """Parses a block; one without a ``header`` given starts with it."""
    try:
        return csv.read_csv(
            pa.BufferReader(block),
            # One block of Arrow's to each of ours: its conversion is parallel over columns.
            read_options=csv.ReadOptions(block_size=len(block) + 1, column_names=header, use_threads=use_threads),
            parse_options=csv.ParseOptions(delimiter=file.source.delimiter, newlines_in_values=True),
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
            raise _not_text(list(types)[int(column.group(1))] if column and types else "?", file) from error
        if "conversion error" in text:
            raise TypesDoNotFit(f"{file.name}: {text}") from error
        if use_threads:  # only one thread can tell the row
            return parse(block, file, header, types, rows_before, use_threads=False)
        row = re.search(r"Row #(\d+): ", text)
        # Arrow counts the block's header, people count rows of data.
        where = f", row {rows_before + int(row.group(1)) - (header is None)}" if row else ""
        raise BadInput(f"{file.name}{where}: {text.replace(row.group(0), '') if row else text}") from error


def header_of(block: bytes, file: RawFile) -> list[str]:
    """The columns' names in a file's first block.

    Raises:
        BadInput: there is no header, or a name occurs twice in it.
    """
    if not block.strip():
        raise BadInput(f"{file.name}: the file has no header; expected the columns' names in its first row")
    first_row = block[: end_of_rows(block, file.source.delimiter, first=True) or None]
    schema = parse(first_row, file, None, {}, 0).schema
    try:
        names: list[str] = schema.names
    except UnicodeDecodeError as error:
        raise BadInput(
            f"{file.name}: the header {first_row[:60].strip()!r} is not text in {file.source.encoding}; name its "
            "encoding in the source's 'encoding'"
        ) from error
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInput(f"{file.name}: the header names column {twice!r} more than once")
    return names


def is_utf8(file: RawFile) -> bool:
    """Whether a file is in UTF-8, so that its bytes need no decoding."""
    return codecs.lookup(file.source.encoding).name == "utf-8"


def blocks(file: RawFile) -> Iterator[tuple[bytes, int]]:
    """Blocks of whole rows in UTF-8, with the position in the raw file."""
    decoder = None if is_utf8(file) else codecs.getincrementaldecoder(file.source.encoding)()
    with file.stream() as (stream, raw):
        pending = b""
        while chunk := bytes(stream.read(BLOCK_BYTES)):
            pending += decoder.decode(chunk).encode() if decoder else chunk
            if end := end_of_rows(pending, file.source.delimiter):
                yield pending[:end], raw.tell()
                pending = pending[end:]
            elif len(pending) > _LONGEST_ROW_BYTES:
                raise BadInput(f"{file.name}: a row does not end within {_LONGEST_ROW_BYTES} bytes; is a quote open?")
        if pending:
            yield pending, raw.tell()


def end_of_rows(text: bytes, delimiter: str, *, first: bool = False) -> int:
    """Where the last (or first) whole row ends; 0 if none does. A newline within quotes ends no row."""
    end = text.find(b"\n") + 1 if first else text.rfind(b"\n") + 1
    if text.count(b'"', 0, end) % 2 == 0:
        return end
    end = 0
    mark = re.escape(delimiter).encode()
    # A quote opens a quoted value only at the start of a value; alternatives stand in the order of their frequency.
    tokens = rb'[^"\n%b]+|%b|(\n)|(?<![^\n%b])"(?:[^"]|"")*(?:"|(\Z))|"' % (mark, mark, mark)
    for token in re.finditer(tokens, text):
        if token.group(2) is not None:
            break  # a quoted value goes on in the next block
        if token.group(1):
            end = token.end()
            if first:
                break
    return end


def _not_text(column: str, file: RawFile) -> BadInput:
    return BadInput(
        f"{file.name}: column {column!r} is not text in {file.source.encoding}; name its encoding in the source's "
        "'encoding'"
    )


def _type_of(array: pa.Array) -> pa.DataType:
    if array.null_count == len(array):
        return pa.null()
    return next((type_ for type_ in _CANDIDATES if fits(array, type_)), pa.string())
