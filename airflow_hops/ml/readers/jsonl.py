"""Reader of JSON lines: blocks of whole lines, each parsed by Arrow.

Python parses the blocks that Arrow cannot parse without loss: those with a field of several types, or with a number of
more digits than float64 holds.
"""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from airflow_hops.core.errors import UnreadableFile
from airflow_hops.ml.readers.joined_types import join_texts, settled
from airflow_hops.ml.readers.raw_file import (
    BLOCK_BYTES,
    RawFile,
    TextLines,
    check_fields,
    check_row_bytes,
    without_mark,
)
from airflow_hops.ml.readers.text_types import (
    BOOLEAN,
    FLOAT,
    INTEGER,
    LARGE_INTEGER,
    TEXT,
    TIMES,
    as_type,
    time_or_text,
    type_of_integers,
    type_of_number,
)
from airflow_hops.ml.readers.types import Types, batch_of
from airflow_hops.ml.readers.vectors import leaves, map_types

_MOST_LEVELS = 100
_BRACKET = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{\]}]')  # without going back, which takes memory
_LONG_NUMBER = re.compile(rb"(?<=[\s:,\[])-?\d[\d.]{15,}(?:[eE][-+]?\d+)?(?=[\s,\]}])")
_MOST_EXACT = 1 << 53

Rows = Sequence[Mapping[str, Any]]


class _Number(str):
    """Number as written in the file."""


class JsonLines:
    """A file of JSON lines, whose values are parsed in their types; as ``_Format`` of :mod:`text_file`.

    Args:
        file: The file.
    """

    WITHOUT_ROWS = "the file has no rows; expected one JSON object a line"

    def __init__(self, file: RawFile) -> None:
        self._file = file

    def blocks(self) -> Iterator[tuple[bytes, int]]:
        """Streams blocks of whole lines."""
        return blocks(self._file)

    def skip(self, block: bytes) -> int:
        """Returns the number of rows of a block."""
        return block.count(b"\n")

    def parse(self, block: bytes, rows_before: int, types: Types | None) -> pa.RecordBatch | None:
        """Returns the fields, each in its type if this holds all values, or else in their own; strings are no times."""
        if not block.strip():
            return None
        check_fields(block, self._file.name)
        schema = self._file.source.schema
        held = {n: TEXT if kind in TIMES and n not in schema else kind for n, kind in (types or {}).items()}
        table = _by_arrow(block, held)
        if table is not None and types is None and (times := _times_as_text(table.schema)):
            names, table = table.column_names, _by_arrow(block, times)
            table = table and table.select(names)
        columns = dict[str, pa.Array]()
        if table is not None:
            columns = {name: pa.nulls(len(table), kind) for name, kind in held.items()}
            columns |= {name: table[name].combine_chunks() for name in table.column_names}
            return batch_of(list(columns.values()), list(columns), len(table))
        rows = _by_python(block, self._file, rows_before)
        for name in dict.fromkeys(itertools.chain(held, *rows)):
            kind = TEXT if name in schema else held.get(name, pa.null())
            columns[name] = _array([row.get(name) for row in rows], kind)
        return batch_of(list(columns.values()), list(columns), len(rows))

    def type_of(self, column: pa.Array) -> pa.DataType:
        """Returns the type of a column's values; strings are times only if all are."""
        return time_or_text(column) if column.type == TEXT else _type_of_array(column)

    def as_type(self, column: pa.Array, kind: pa.DataType) -> pa.Array | None:
        """Converts a column; None if a value is not of the type."""
        if column.type == kind:
            return column
        return as_type(column, kind) if column.type == TEXT and kind in TIMES else None


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


def _by_arrow(block: bytes, known: Types) -> pa.Table | None:
    """Parses a block with Arrow; None if it cannot, or may have rounded numbers."""
    if b"\0" in block or (
        _opened(block) > _MOST_LEVELS + block.count(b"\n") and any(map(_is_deep, block.split(b"\n")))
    ):
        return None  # PyArrow 10.0: ends the file at NUL bytes, and overflows the stack in deep values
    try:
        table = arrow_json.read_json(
            io.BytesIO(block),
            read_options=arrow_json.ReadOptions(block_size=len(block) + 1, use_threads=False),
            parse_options=arrow_json.ParseOptions(
                explicit_schema=pa.schema([(name, kind) for name, kind in known.items() if not pa.types.is_null(kind)])
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # the latter for lists of lists where nulls are expected
        return None
    if table.num_rows != block.count(b"\n") + (not block.endswith(b"\n")) and table.num_rows != sum(
        map(bool, map(bytes.strip, block.split(b"\n")))
    ):
        return None  # PyArrow 10.0: ends the file at invalid JSON, and accepts an object of several lines
    arrays = (leaf for column in table.columns for leaf in leaves(column.combine_chunks()))
    floats = [leaf for leaf in arrays if pa.types.is_floating(leaf.type)]
    if floats and (numbers := _LONG_NUMBER.findall(block)):
        texts = pa.array(numbers).cast(TEXT)
        integers = texts.filter(pc.match_substring_regex(texts, "^-?[0-9]{16,19}$"))
        others = texts.filter(pc.invert(pc.match_substring_regex(texts, "^-?[0-9]{16,19}$")))
        if as_type(others, FLOAT) is None or as_type(integers, INTEGER) is None:
            return None
        if len(integers) and any(pc.any(pc.greater_equal(pc.abs(leaf), _MOST_EXACT)).as_py() for leaf in floats):
            return None
    return table


def _type_of_array(array: pa.Array) -> pa.DataType:
    kind = array.type
    if pa.types.is_list(kind):
        return pa.list_(_type_of_array(array.flatten()))
    if pa.types.is_struct(kind):
        fields = zip(kind, array.flatten(), strict=True)
        return pa.struct([(field.name, _type_of_array(values)) for field, values in fields])
    return type_of_integers(array) if kind == INTEGER else kind


def _times_as_text(schema: pa.Schema) -> Types:
    """Returns the columns in which Arrow has read strings as times, with strings in their types."""
    texts = {each: map_types(each.type, lambda leaf: TEXT if pa.types.is_timestamp(leaf) else leaf) for each in schema}
    return {each.name: kind for each, kind in texts.items() if kind != each.type}


def _by_python(block: bytes, file: RawFile, rows_before: int) -> Rows:
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
            number = rows_before + len(rows) + 1
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


def _array(values: Sequence[object], kind: pa.DataType) -> pa.Array:
    """Converts values to a type that holds all of them: the given one, or else their own."""
    own = reduce(_widened, values, pa.null())
    if settled(join_texts(kind, own)) != kind:
        kind = map_types(own, lambda leaf: INTEGER if leaf == LARGE_INTEGER else leaf)
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
