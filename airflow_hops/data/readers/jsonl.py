"""The reader of JSON lines: blocks of whole lines, each parsed by Arrow."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import json

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.data.readers.raw_file import BLOCK_BYTES, RawFile
from airflow_hops.data.readers.types import Types, TypesDoNotFit, cast, join, normalised


def first_types(file: RawFile) -> Types:
    """The fields of the first block's objects.

    Raises:
        BadInput: a line is not a JSON object, or there are none.
    """
    return _types(file, first_block_only=True)


def infer_types(file: RawFile) -> Types:
    """The fields of all objects, with types that hold their values.

    Raises:
        BadInput: a field's values are of types that no one type holds.
    """
    return _types(file, first_block_only=False)


def read(file: RawFile, types: Types) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Streams the rows, with the position in the raw file.

    Raises:
        TypesDoNotFit: a value is not of its column's type, or an object has a field more.
        BadInput: a line is not a JSON object.
    """
    schema = pa.schema(list(types.items()))
    unexpected = "error" if file.source.columns is None else "ignore"
    rows = 0
    for block, position in blocks(file):
        table = _parse(block, file, rows, explicit_schema=schema, unexpected_field_behavior=unexpected)
        for batch in table.to_batches():
            yield cast(batch, types, file, rows), position
            rows += batch.num_rows


def blocks(file: RawFile) -> Iterator[tuple[bytes, int]]:
    """Blocks of whole lines, with the position in the raw file."""
    with file.stream() as (stream, raw):
        pending = b""
        while chunk := bytes(stream.read(BLOCK_BYTES)):
            complete, newline, rest = chunk.rpartition(b"\n")
            if newline:
                yield pending + complete + newline, raw.tell()
                pending = rest
            else:
                pending += chunk
        if pending.strip():
            yield pending, raw.tell()


def _parse(block: bytes, file: RawFile, rows_before: int, **options: Any) -> pa.Table:
    if (zero := block.find(b"\0")) >= 0:  # Arrow would take it for the end
        line = rows_before + block.count(b"\n", 0, zero) + 1
        raise BadInput(f"{file.name}, row {line}: a NUL byte; expected one JSON object a line")
    try:
        return json.read_json(
            io.BytesIO(block),
            read_options=json.ReadOptions(block_size=len(block) + 1),
            parse_options=json.ParseOptions(**options),
        )
    except pa.ArrowInvalid as error:
        if options and ("changed from" in str(error) or "unexpected field" in str(error)):
            raise TypesDoNotFit(f"{file.name}: {error}") from error
        row = re.search(r"in row (\d+)", str(error))
        where = f", row {rows_before + int(row.group(1)) + 1}" if row else ""
        raise BadInput(f"{file.name}{where}: {error}; expected one JSON object a line") from error


def _types(file: RawFile, *, first_block_only: bool) -> Types:
    types: Types = {}
    rows = 0
    for block, _ in blocks(file):
        table = _parse(block, file, rows)
        for item in table.schema:
            found = normalised(item.type)
            joined = join(types.get(item.name, pa.null()), found)
            if joined is None:
                raise BadInput(
                    f"{file.name}, rows {rows + 1} to {rows + table.num_rows}, column {item.name!r}: {found}, but "
                    f"{types[item.name]} in the rows before; a column must be of one type"
                )
            types[item.name] = joined
        rows += table.num_rows
        if first_block_only:
            break
    if not types:
        raise BadInput(f"{file.name}: the file has no rows; expected one JSON object a line")
    return types
