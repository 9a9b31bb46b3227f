"""Reader of JSON lines: blocks of whole lines, each parsed by Arrow.

Python parses the blocks that Arrow cannot parse without loss: those with a field of several types, or with a number of
more digits than float64 holds.
"""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from airflow_hops.core.errors import BadInput, UnreadableFile
from airflow_hops.ml.readers.joined_types import join_texts, settled
from airflow_hops.ml.readers.limits import check_fields, check_row_bytes
from airflow_hops.ml.readers.notation import as_given
from airflow_hops.ml.readers.raw_file import BLOCK_BYTES, RawFile, TextLines, without_mark
from airflow_hops.ml.readers.text_types import (
    BOOLEAN,
    FLOAT,
    INTEGER,
    TEXT,
    TIMES,
    as_type,
    time_or_text,
    type_of_integers,
    type_of_number,
)
from airflow_hops.ml.readers.types import Types, TypesDoNotFit, batch_of, check_text, type_named
from airflow_hops.ml.readers.vectors import map_types

log = logging.getLogger(__name__)

_MOST_LEVELS = 100
_BRACKET = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{\]}]')  # without going back, which takes memory
_LONG_NUMBER = re.compile(rb"(?<=[\s:,\[])-?\d[\d.]{15,}(?:[eE][-+]?\d+)?(?=[\s,\]}])")
_MOST_EXACT = 1 << 53

Rows = Sequence[Mapping[str, Any]]


class _Number(str):
    """Number as written in the file."""


def first_types(file: RawFile) -> Types:
    """Returns the fields of the first block's objects, with their types; raises as :func:`infer_types`."""
    return infer_types(file, first_block_only=True)


def infer_types(file: RawFile, *, first_block_only: bool = False) -> Types:
    """Returns the fields of all objects, with types that hold their values.

    Raises:
        BadInput: a line is not a JSON object, or the file has no lines.
    """
    types: Types = {}
    rows = 0
    for block, _ in blocks(file):
        # first_types() has logged the fields that are text from the first block on.
        is_logged = file.notices is None and (rows or first_block_only)
        rows += _widen(types, block, file, rows if is_logged else None)
        if first_block_only:
            break
    if not types:
        raise BadInput(f"{file.name}: the file has no rows; expected one JSON object a line")
    return types


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
        types: Types by field.
        has_block: Returns whether to read a block, by its number from 0.
        is_wanted: Returns whether a field without a type is wanted too; None for all, unless the source names columns.

    Raises:
        TypesDoNotFit: a value is not of its column's type, or an object has another wanted field.
        BadInput: a line is not a JSON object, or a value does not fit the source's schema.
    """
    rows = 0
    for number, (block, position) in enumerate(blocks(file)):
        if not has_block(number):
            rows += block.count(b"\n")
        elif block.strip():
            batch = _read_block(block, file, types, rows, is_wanted or (lambda name: file.source.columns is None))
            check_text(batch, file, rows)
            rows += batch.num_rows
            yield batch, position


def blocks(file: RawFile) -> Iterator[tuple[bytes, int]]:
    """Streams blocks of whole lines, with the position in the raw file."""
    with file.stream() as (stream, raw):
        pending, lines = without_mark(stream), TextLines(file)
        while chunk := bytes(stream.read(BLOCK_BYTES)):
            pending = lines.of(pending + chunk)
            complete, newline, rest = pending.rpartition(b"\n")
            if newline:
                yield complete + newline, raw.tell()
                pending = rest
            else:
                check_row_bytes(len(pending), file.name)
        if pending.strip():
            yield lines.of(pending, is_whole=True), raw.tell()


def _widen(types: Types, block: bytes, file: RawFile, rows_before: int | None) -> int:
    """Widens inferred types in place to hold a block's objects, logs why a field becomes text, and counts the objects.

    Nothing is logged if ``rows_before``, the number of earlier rows in the file, is None.
    """
    check_fields(block, file.name)
    table = _by_arrow(block, {})
    names = table.column_names if table is not None else []
    texts = {item.name: map_types(item.type, _as_written) for item in table.schema} if table is not None else {}
    times = {name: kind for name, kind in texts.items() if kind != table.schema.field(name).type} if table else {}
    if times:  # reads them as text
        table = _by_arrow(block, times)
    if table is None:
        rows = _by_python(block, file, rows_before)
        results = _types_of(rows)
        count = len(rows)
    else:
        columns = {name: table.column(name).combine_chunks() for name in names}
        results = {
            n: time_or_text(texts) if texts.type == TEXT else _type_of_array(texts) for n, texts in columns.items()
        }
        count = table.num_rows
    for name, kind in results.items():
        if name in file.source.schema:
            types[name] = type_named(file.source.schema[name], name, file.source)
            continue
        old = types.get(name, pa.null())
        types[name] = join_texts(old, kind)
        if types[name] == TEXT != old and rows_before is not None:
            where = _first_misfit(_by_python(block, file, rows_before), name, old, TEXT, rows_before)
            if where:
                log.warning("%s, %s; the column is text", file.name, where)
    return count


def _read_block(
    block: bytes, file: RawFile, types: Types, rows_before: int, is_wanted: Callable[[str], bool]
) -> pa.RecordBatch:
    check_fields(block, file.name)
    batch = _batch_by_arrow(block, file, types, rows_before, is_wanted)
    if batch is not None:
        return batch
    rows = _by_python(block, file, rows_before)
    result = _types_of(rows)
    misfits = {name: kind for name, kind in result.items() if name not in types and is_wanted(name)}
    why = ""
    columns = []
    for name, kind in types.items():
        values = [row.get(name) for row in rows]
        if name in file.source.schema:
            columns.append(as_given(pa.array(map(_text, values), TEXT), name, kind, file, rows_before))
            continue
        columns.append(_array(values, kind))
        if columns[-1] is None:
            misfits[name] = join_texts(kind, result[name])
            why = why or _first_misfit(rows, name, kind, misfits[name], rows_before)
    if misfits:
        raise TypesDoNotFit(file.name, misfits, why)
    if file.notices is not None:
        for name in (name for name, kind in types.items() if kind in TIMES and name not in file.source.schema):
            texts = pa.array([row.get(name) for row in rows], TEXT)
            file.notices.add_times(name, texts, types[name], file.name, rows_before)
    return batch_of(columns, list(types), len(rows))


def _by_arrow(block: bytes, known: Types) -> pa.Table | None:
    """Parses a block with Arrow; None if it cannot, or may have rounded numbers."""
    if b"\0" in block or (
        _opened(block) > _MOST_LEVELS + block.count(b"\n") and any(map(_is_deep, block.split(b"\n")))
    ):
        return None  # Arrow would end the file at NUL bytes, and overflow the stack in deep values
    try:
        table = arrow_json.read_json(
            io.BytesIO(block),
            read_options=arrow_json.ReadOptions(block_size=len(block) + 1, use_threads=False),
            parse_options=arrow_json.ParseOptions(explicit_schema=pa.schema(list(known.items()))),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # the latter for lists of lists where nulls are expected
        return None
    if table.num_rows != block.count(b"\n") + (not block.endswith(b"\n")) and table.num_rows != sum(
        map(bool, map(bytes.strip, block.split(b"\n")))
    ):
        return None  # Arrow ends the file at invalid JSON, and accepts an object of several lines
    floats = [leaf for column in table.columns for leaf in _floats_in(column.combine_chunks())]
    if floats and (numbers := _LONG_NUMBER.findall(block)):
        texts = pa.array(numbers).cast(TEXT)
        integers = texts.filter(pc.match_substring_regex(texts, "^-?[0-9]{16,19}$"))
        others = texts.filter(pc.invert(pc.match_substring_regex(texts, "^-?[0-9]{16,19}$")))
        if as_type(others, FLOAT) is None or as_type(integers, INTEGER) is None:
            return None
        if len(integers) and any(pc.any(pc.greater_equal(pc.abs(leaf), _MOST_EXACT)).as_py() for leaf in floats):
            return None
    return table


def _floats_in(array: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_floating(array.type):
        yield array
    elif pa.types.is_list(array.type):
        yield from _floats_in(array.flatten())
    elif pa.types.is_struct(array.type):
        for field in array.flatten():
            yield from _floats_in(field)


def _type_of_array(array: pa.Array) -> pa.DataType:
    kind = array.type
    if pa.types.is_list(kind):
        return pa.list_(_type_of_array(array.flatten()))
    if pa.types.is_struct(kind):
        fields = zip(kind, array.flatten(), strict=True)
        return pa.struct([(field.name, _type_of_array(values)) for field, values in fields])
    return type_of_integers(array) if kind == INTEGER else kind


def _as_written(kind: pa.DataType) -> pa.DataType:
    return TEXT if pa.types.is_timestamp(kind) else kind


def _batch_by_arrow(
    block: bytes, file: RawFile, types: Types, rows_before: int, is_wanted: Callable[[str], bool]
) -> pa.RecordBatch | None:
    """Parses a block with Arrow; None if Arrow cannot confirm that all values are of these types."""
    values = file.source.schema
    is_time = {name: kind in TIMES and name not in values for name, kind in types.items()}
    known = {name: TEXT if is_time[name] else kind for name, kind in types.items() if not pa.types.is_null(kind)}
    table = _by_arrow(block, known)
    if table is None or any(name not in types and is_wanted(name) for name in table.column_names):
        return None
    columns = []
    for name, kind in types.items():
        if name not in table.column_names:
            columns.append(pa.nulls(table.num_rows, kind))
            continue
        column = table.column(name).combine_chunks()
        column = as_type(column, kind) if is_time[name] else column
        if column is None or column.type != kind:
            return None
        columns.append(column)
    if file.notices is not None:
        for name in filter(is_time.get, table.column_names):
            file.notices.add_times(name, table.column(name).combine_chunks(), types[name], file.name, rows_before)
    return batch_of(columns, list(types), table.num_rows)


def _by_python(block: bytes, file: RawFile, rows_before: int | None) -> Rows:
    """Parses a block's objects, keeping numbers as written."""
    rows: list[dict[str, Any]] = []
    for line in filter(bytes.strip, block.split(b"\n")):
        try:
            row = parse_json(line, _Number)
            if b"\\u" in line:  # fails for half a surrogate pair
                json.dumps(row, ensure_ascii=False).encode()
            error = None if isinstance(row, dict) else f"a {type(row).__name__}"
        except (ValueError, RecursionError) as failure:
            error = "a NUL byte" if b"\0" in line else f"JSON parse error: {failure}"
        if error is not None:
            number = (rows_before or 0) + len(rows) + 1
            raise UnreadableFile(file.name, f", row {number}: {error}; expected one JSON object a line")
        rows.append(row)
    return rows


def parse_json(text: bytes, number: Callable[[str], object] | None = None) -> Any:
    """Parses JSON; ``number`` converts the text of each number.

    Raises:
        ValueError: it is not JSON, or an object has a field twice.
        RecursionError: values are nested too deeply.
    """
    if _is_deep(text):
        raise RecursionError(f"values nested more than {_MOST_LEVELS} levels deep")
    if number is None and not text.startswith(b"\xef"):  # a mark
        return _DECODER.decode(text.decode("utf-8", "surrogatepass"))
    return json.loads(text, parse_int=number, parse_float=number, object_pairs_hook=_object)


def _is_deep(line: bytes) -> bool:
    """Returns whether values are nested more than _MOST_LEVELS deep."""
    depth = 0
    for token in _BRACKET.finditer(line) if _opened(line) > _MOST_LEVELS else ():
        depth += (token[0] in b"[{") - (token[0] in b"]}")
        if depth > _MOST_LEVELS:
            return True
    return False


def _opened(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError(f"a field of {', '.join(map(repr, value))} occurs twice")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_object)
"""Decoder of all texts, as Python's function makes one for each."""


def _types_of(rows: Rows) -> Types:
    """Infers the types of objects' fields; strings are times only if all are."""
    types: Types = {}
    for row in rows:
        for name, value in row.items():
            types[name] = _widened(types.get(name, pa.null()), value)
    for name, kind in types.items():
        values = [row.get(name) for row in rows]
        if kind == TEXT and all(value is None or type(value) is str for value in values):
            types[name] = time_or_text(pa.array(values, TEXT))
    return types


def _widened(kind: pa.DataType, value: object) -> pa.DataType:
    return join_texts(kind, _type_of(value))


def _type_of(value: object) -> pa.DataType:
    if value is None:
        return pa.null()
    if isinstance(value, _Number):
        return type_of_number(value)
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, float):  # NaN and infinities, which JSON does not allow, but writers produce
        return FLOAT
    if isinstance(value, list):
        return pa.list_(reduce(_widened, value, pa.null()))
    if isinstance(value, dict):
        return pa.struct([(name, _type_of(item)) for name, item in value.items()])
    return TEXT


def _array(values: Sequence[object], kind: pa.DataType) -> pa.Array | None:
    """Converts values to a type; None if one is not of the type."""
    if kind in TIMES:
        are_texts = all(value is None or type(value) is str for value in values)
        return as_type(pa.array(values, TEXT), kind) if are_texts else None
    if any(settled(_widened(kind, value)) != kind for value in values):
        return None
    return pa.array([_as(value, kind) for value in values], kind)


def _as(value: Any, kind: pa.DataType) -> object:
    """Converts a value to the Python type that Arrow accepts for a type."""
    if value is None:
        return None
    if kind == TEXT:
        return _text(value)
    if pa.types.is_list(kind):
        return [_as(item, kind.value_type) for item in value]
    if pa.types.is_struct(kind):
        return {field.name: _as(value.get(field.name), field.type) for field in kind}
    return int(value) if kind == INTEGER else float(value) if kind == FLOAT else value


def _text(value: object, *, quoted: bool = False) -> str | None:
    """Returns a value as it was written, except for spaces in lists and objects."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if quoted else value
    if isinstance(value, list):
        return f"[{', '.join(str(_text(item, quoted=True)) for item in value)}]"
    if isinstance(value, dict):
        items = (f"{json.dumps(name, ensure_ascii=False)}: {_text(item, quoted=True)}" for name, item in value.items())
        return f"{{{', '.join(items)}}}"
    return json.dumps(value) if quoted or value is not None else None


def _first_misfit(rows: Rows, name: str, kind: pa.DataType, to: pa.DataType, rows_before: int) -> str:
    """Describes the first value that changes the type of a column, with its row; "" if no value does."""
    for position, row in enumerate(rows):
        value = row.get(name)
        if kind in TIMES and type(value) is str and as_type(pa.array([value]), kind) is not None:
            continue
        widened = _widened(kind, value)
        is_text = isinstance(value, str) and not isinstance(value, _Number)
        if widened != kind and (to != TEXT or widened == TEXT) and not (is_text and pa.types.is_null(kind)):
            why = f"is not {settled(kind)}, as the values before are"
            if isinstance(value, _Number) and type_of_number(value) == TEXT:
                why = "would not be the same again as a number"
            return f"row {rows_before + position + 1}, column {name!r}: {_text(value, quoted=True)} {why}"
        kind = widened
    return ""
