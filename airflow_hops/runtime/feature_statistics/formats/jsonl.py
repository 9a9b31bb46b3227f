"""JSON lines: spans are ranges of whole lines, where the file is local and not compressed.

Types come from the first lines of each span, by Arrow's inference; text that looks like a time stays text.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyarrow import json

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.data.readers.jsonl import blocks
from airflow_hops.data.readers.raw_file import BLOCK_BYTES, RawFile
from airflow_hops.data.readers.types import check_text, type_named
from airflow_hops.runtime.feature_statistics.formats.feature_types import Types, TypesDoNotFit, is_list
from airflow_hops.runtime.feature_statistics.formats.layout import Layout, Span, Wanted, bounded, whole_file
from airflow_hops.runtime.feature_statistics.formats.row_spans import (
    SAMPLE_BYTES,
    first_rows,
    later_rows,
    span_bytes,
    spans_of_rows,
    text_of,
)


def lay_out(file: RawFile) -> Layout:
    """The fields of the first lines of each span."""
    if not file.is_local:
        block, _ = next(blocks(file), (b"", 0))
        sample = block[: _end_of_lines(block[:SAMPLE_BYTES]) or None]
        return Layout(_types([sample], file), (whole_file(file, file.file.size_bytes // BLOCK_BYTES),))
    path, size = file.file.path, file.file.size_bytes
    first = first_rows(path, 0, SAMPLE_BYTES, _end_of_lines)
    types = _types([first], file)
    spans = spans_of_rows(path, 0, span_bytes(size, len(first) / max(1, first.count(b"\n"))), delimiter=None) or ()
    # What is wrong with later lines is for read() to tell, with its line.
    with contextlib.suppress(BadInput):
        types = _types([first, later_rows(path, spans, _end_of_lines)], file)
    return Layout(types, spans)


def all_types(file: RawFile) -> Types:
    """The fields of all lines."""
    return _types(_blocks(file, Span(0)), file)


def read(file: RawFile, span: Span, types: Types, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """The objects of a span.

    Raises:
        TypesDoNotFit: a field is of another type, or there is one more.
        BadInput: a line is no JSON object, or a field is of types that no one type holds.
    """
    rows = 0
    for number, block in enumerate(_blocks(file, span)):
        if span.has(number) and block.strip():
            yield from bounded([_batch(block, file, span, types, wanted, rows)])
        rows += block.count(b"\n")


def _batch(block: bytes, file: RawFile, span: Span, types: Types, wanted: Wanted, rows_before: int) -> pa.RecordBatch:
    try:
        batch = wanted.of(_parse(block, file, types, rows_before))
    except BadInput:
        before = text_of(file.file.path, 0, span.start).count(b"\n") if span.start else 0
        if before:  # says which line of the file it is
            _parse(block, file, types, before)
        raise
    _check_fit(batch, file, types)
    return batch


def _check_fit(batch: pa.RecordBatch, file: RawFile, types: Types) -> None:
    misfits = {}
    for item in batch.schema:
        known = types.get(item.name)
        joined = _known_as(item.name, known, item.type, file)
        if joined != known:
            misfits[item.name] = joined
    if misfits:
        raise TypesDoNotFit(file.name, misfits)


def _types(texts: Iterable[bytes], file: RawFile) -> Types:
    given = {name: type_named(alias, name, file.source) for name, alias in file.source.schema.items()}
    types: Types = dict(given)
    for text in texts:
        if text.strip():
            for item in _parse(text, file, given, 0).schema:
                types[item.name] = _known_as(item.name, types.get(item.name), item.type, file)
    return types


def _known_as(name: str, known: pa.DataType | None, found: pa.DataType, file: RawFile) -> pa.DataType:
    joined = join(known if known is not None else pa.null(), found)
    if joined is None:
        raise BadInput(f"{file.name}: field {name!r} is {found}, but {known} in other lines; expected one type")
    return joined


def join(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type of a field that is of the one type here and of the other there: integers become floats."""
    one, other = _untimed(one), _untimed(other)
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if is_list(one) and is_list(other):
        values = join(one.value_type, other.value_type)
        return None if values is None else pa.list_(values)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            joined = join(fields.get(field.name, pa.null()), field.type)
            if joined is None:
                return None
            fields[field.name] = joined
        return pa.struct(list(fields.items()))
    return None


def _untimed(kind: pa.DataType) -> pa.DataType:
    """A type that Arrow inferred, with the text that it took for times as text."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.string()
    if is_list(kind):
        return pa.list_(_untimed(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _untimed(field.type)) for field in kind])
    return kind


def _parse(block: bytes, file: RawFile, types: Types, rows_before: int) -> pa.RecordBatch:
    if (zero := block.find(b"\0")) >= 0:  # Arrow would take it for the end
        line = rows_before + block.count(b"\n", 0, zero) + 1
        raise BadInput(f"{file.name}, row {line}: a NUL byte; expected one JSON object a line")
    # A type that is not known yet is left to inference.
    known = pa.schema([(name, kind) for name, kind in types.items() if not pa.types.is_null(kind)])
    try:
        table = json.read_json(
            io.BytesIO(block),
            read_options=json.ReadOptions(block_size=len(block) + 1, use_threads=False),
            parse_options=json.ParseOptions(explicit_schema=known, unexpected_field_behavior="infer"),
        )
    except pa.ArrowInvalid as error:
        row = re.search(r" in row (\d+)", str(error))
        where = f", row {rows_before + int(row.group(1)) + 1}" if row else ""
        changed = re.search(r"Column\(/(.+)\) changed from (\w+) to (\w+)", str(error))
        if changed:
            name, before, after = changed.groups()
            raise BadInput(
                f"{file.name}{where}: field {name!r} is a {after}, but a {before} in other lines; a field must be of "
                "one type"
            ) from error
        raise BadInput(f"{file.name}{where}: {error}; expected one JSON object a line") from error
    columns = [column.combine_chunks() for column in table.columns]
    batch = pa.RecordBatch.from_arrays(columns, table.schema.names)
    check_text(batch, file, rows_before)
    return batch


def _end_of_lines(text: bytes) -> int:
    return text.rfind(b"\n") + 1


def _blocks(file: RawFile, span: Span) -> Iterator[bytes]:
    if span.stop is None:
        yield from (block for block, _ in blocks(file))
    else:
        yield text_of(file.file.path, span.start, span.stop)
