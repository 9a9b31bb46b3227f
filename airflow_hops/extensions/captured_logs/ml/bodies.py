"""Bodies of requests and answers as columns: JSON of several protocols, CSV, Base64, gzip."""

from __future__ import annotations

import base64
import binascii
import contextlib
import csv
import io
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_hops.extensions.captured_logs.ml.json_texts import (
    MOST_BYTES,
    MOST_VALUES,
    Unusable,
    concatenated,
    is_large,
    json_value,
    shown,
)

# Whoever sends a request writes its body, so that no body may cost more than the limits, or end a window. A body is
# parsed (text to values), then arranged (values to columns). How many rows a body has may depend on the other one:
# {"a": [1, 2]} is a row with a list, or two rows if the answer has two predictions.

Columns = dict[str, list[Any]]
"""Values by name, one for each row."""

_GZIP = b"\x1f\x8b"
_EMPTY_LISTS = 1000
MOST_NAMES = 20_000
"""Limit for the names of a body's values, as each may become a column."""
_ENVELOPES = {
    "inputs": ("instances", "dataframe_records", "dataframe_split", "inputs"),
    "outputs": ("predictions", "outputs"),
}
"""Fields of which a body has one that holds its values, by the source's argument that names the values."""
REFUSED = "answered without predictions"


class Cell(str):
    """A value of CSV, whose type its column decides."""

    __slots__ = ()


class Single(list[Any]):
    """The value of a row of the shape ``[rows, 1]``: a list of one, or, unless others are longer, the value in it."""


@dataclass(frozen=True)
class CsvRows:
    """A body of CSV."""

    rows: list[list[Cell]]


@dataclass(frozen=True)
class JsonLines:
    """A body of several JSON values, a row each."""

    values: list[Any]


@dataclass(frozen=True)
class Body:
    """Values of a body by name.

    Attributes:
        columns: The values of each row; or, without ``rows``, those of one row.
        rows: Number of rows; None for an object of values, which is one row, or as many as its lists are long.
    """

    columns: Columns = field(default_factory=dict)
    rows: int | None = 0

    @property
    def counts(self) -> set[int]:
        """Numbers of rows that the body may have."""
        if self.rows is not None:
            return {self.rows}
        lengths = {len(value) if isinstance(value, list) else None for value in self.columns.values()}
        return {1, *(length for length in lengths if length and len(lengths) == 1)}

    def of_rows(self, count: int) -> Columns:
        """Returns the columns of a number of rows, one of :attr:`counts`."""
        columns = self.columns
        if self.rows is None and count == 1:
            columns = {name: [value] for name, value in columns.items()}
        return {name: _singles(values) for name, values in columns.items()}


def parsed(data: Any, encoding: str | None, where: str) -> Any:
    """Returns the value of a body: of JSON, :class:`JsonLines` or :class:`CsvRows`; None without one.

    Args:
        data: Text or bytes of JSON or CSV, also in Base64 or gzipped; or a JSON value.
        encoding: ``BASE64``, or any text.
        where: Place of the entry, for messages.

    Raises:
        Unusable: it is in none of the known forms, or exceeds a limit.
    """
    if not isinstance(data, str | bytes):
        return data
    content = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    text = _content(content, encoding == "BASE64", where)
    if text.startswith((b"{", b"[")):
        return _json(text, where)
    if text == b"null" or (text.startswith(b"<") and text.endswith(b">")):  # a page of a proxy
        return None
    if text.startswith(b'"'):  # JSON within JSON, or a cell
        try:
            inner = json_value(text)
        except ValueError:
            inner = ""
        if isinstance(inner, str) and inner.lstrip()[:1] in ("{", "["):
            return _json(inner.encode("utf-8", "surrogatepass"), where)
    if text.count(b",") + text.count(b"\n") > MOST_VALUES:
        raise _undecodable(f"{where}: the body has more than {MOST_VALUES} values")
    try:
        reader = csv.reader(io.StringIO(text.decode(), newline=""))
        return CsvRows([[Cell(cell) for cell in row] for row in reader if row])
    except (csv.Error, UnicodeDecodeError) as error:
        raise _undecodable(f"{where}: the body is not CSV in UTF-8 ({error}); it begins with {text[:60]!r}") from error


def _undecodable(detail: str) -> Unusable:
    return Unusable("a body that cannot be decoded", detail)


def _content(content: bytes, is_base64: bool, where: str) -> bytes:
    if len(content) > 2 * MOST_BYTES:
        raise _undecodable(f"{where}: the body has {len(content)} bytes; expected at most {MOST_BYTES}")
    if is_base64:
        try:
            content = base64.b64decode(content, validate=True)
        except binascii.Error as error:
            text = f"{where}: the data is not in Base64, which its encoding says ({error})"
            raise _undecodable(text) from error
    # Base64 of JSON or gzip is no JSON, and no CSV of numbers or words with a delimiter.
    if content[:1] not in (b"{", b"[") and not content.startswith(_GZIP):
        with contextlib.suppress(binascii.Error):
            inner = base64.b64decode(content, validate=True)
            content = inner if inner[:1] in (b"{", b"[") or inner.startswith(_GZIP) else content
    if content.startswith(_GZIP):
        try:
            content = _unzipped(content)
        except (EOFError, zlib.error) as error:
            text = f"{where}: the body begins with {content[:12]!r} ({error}); expected JSON or CSV in UTF-8, also in "
            raise _undecodable(f"{text}Base64 or gzipped") from error
    if len(content) > MOST_BYTES:
        raise _undecodable(f"{where}: the body has more than {MOST_BYTES} bytes")
    return content.removeprefix(b"\xef\xbb\xbf").strip()


def _unzipped(content: bytes) -> bytes:
    """Returns the content of gzip, or its beginning if it exceeds the limit."""
    parts, left = list[bytes](), MOST_BYTES + 1
    while content and left:
        stream = zlib.decompressobj(wbits=31)
        parts.append(stream.decompress(content, left))
        left -= len(parts[-1])
        if not stream.eof and left:
            raise EOFError("it ends within the compressed data")
        content = stream.unused_data.lstrip(b"\0")
    return b"".join(parts)


def _json(text: bytes, where: str) -> Any:
    try:
        return json_value(text)
    except ValueError as error:
        fault = error
    values = list[Any]()
    if not is_large(text):
        lists = [line for line in text.splitlines() if line.strip()] if text.startswith(b"[") else []
        with contextlib.suppress(ValueError):
            values = [json_value(line) for line in lists] or [value for value, _ in concatenated(text)]
    if len(values) > 1 and None not in values:
        return JsonLines(values)
    raise _undecodable(f"{where}: the body is not JSON ({fault}); it begins with {text[:60]!r}")


def is_answer(body: Any, names: Iterable[str]) -> bool:
    """Returns whether a body of an answer has predictions: rows of values, or an object with all names.

    Whatever else an endpoint answers, such as ``{"detail": "…"}``, says that it did not predict.
    """
    if isinstance(body, dict):
        if envelopes := _envelopes(body, "outputs"):
            return any(body[name] not in ([], {}) for name in envelopes)
        return bool(body) and all(body.get(name) is not None for name in names)
    values = body.rows if isinstance(body, CsvRows) else body.values if isinstance(body, JsonLines) else body
    if isinstance(values, list) and any(isinstance(value, dict) for value in values):
        return all(isinstance(value, dict) and is_answer(value, names) for value in values)
    return values is not None and values != []


def columns_of_bodies(
    request: Any, answer: Any, inputs: Sequence[str], outputs: Sequence[str], where: str
) -> tuple[Columns, Columns]:
    r"""Arranges the bodies of a request and of its answer in columns of as many rows.

    Args:
        request: Body of the request, as :func:`parsed` returns it.
        answer: Body of the answer; None if it does not count.
        inputs: Names of values that the request does not name, in their order.
        outputs: The same of the answer.
        where: Place of the entry, for messages.

    Raises:
        Unusable: a body is in none of the known forms, has other names or another number of values than expected, or
            the two have other numbers of rows.

    Example:
        >>> columns_of_bodies({"instances": [{"age": 31}, {"age": 64}]}, {"predictions": [0, 1]}, (), ("late",), "log")
        ({'age': [31, 64]}, {'late': [0, 1]})
        >>> columns_of_bodies(parsed("31,basic\n", None, "log"), None, ("age", "plan"), (), "log")
        ({'age': ['31'], 'plan': ['basic']}, {})
    """
    asked = _arranged(request, tuple(inputs), "inputs", where)
    if answer is None:
        count = 1 if asked.rows is None else asked.rows
        return asked.of_rows(count), {}
    answered = _arranged(answer, tuple(outputs), "outputs", where)
    common = asked.counts & answered.counts
    if not common:
        ours, theirs = (" or ".join(map(str, sorted(each.counts))) for each in (asked, answered))
        raise Unusable(
            "another number of rows than its answer",
            f"{where}: {ours} rows in the request, but {theirs} of {next(iter(answered.columns), '')!r} in the "
            "response",
        )
    predictions = answered.of_rows(max(common))
    if all(value is None for values in predictions.values() for value in values):
        raise Unusable(REFUSED, is_fault=False)
    return asked.of_rows(max(common)), predictions


def _arranged(body: Any, names: tuple[str, ...], what: str, where: str) -> Body:
    if isinstance(body, CsvRows):
        return _of_csv(body.rows, names, what, where)
    if isinstance(body, JsonLines):
        return _named(body.values, names, what, where)
    if isinstance(body, list):
        return _named(body, names, what, where)
    if isinstance(body, dict):
        return _of_object(body, names, what, where)
    if isinstance(body, int | float) and what == "outputs":
        return _named([body], names, what, where)
    raise _undecodable(
        f"{where}: the body is {'null' if body is None else shown(body)}; expected instances, inputs, dataframe_split, "
        "dataframe_records, predictions, outputs, rows, or one object of values"
    )


def _of_csv(rows: list[list[Cell]], names: tuple[str, ...], what: str, where: str) -> Body:
    if len(rows) > 1 and names and set(names) <= set(rows[0]):
        names, rows = tuple(rows[0]), rows[1:]  # a header
    if what == "outputs" and len(names) == 1 and len(rows) == 1:  # SageMaker's built-in algorithms answer in one line
        rows = [[cell] for cell in rows[0]]
    return _named(rows, names, what, where)


def _of_object(body: Mapping[str, Any], names: tuple[str, ...], what: str, where: str) -> Body:
    envelopes = _envelopes(body, what)
    if len(envelopes) > 1:
        raise _undecodable(f"{where}: the body has {envelopes[0]!r} and {envelopes[1]!r}; expected one of them")
    if not envelopes:
        return _checked(Body({str(name): value for name, value in body.items()}, None), names, what, where)
    values = body[envelopes[0]]
    if envelopes == ["dataframe_split"] and isinstance(values, dict):
        data, columns = values.get("data"), values.get("columns") or names
        if not isinstance(data, list) or not isinstance(columns, list | tuple):
            raise _undecodable(f"{where}: dataframe_split has no data, or columns that are {shown(columns)}")
        return _checked(_named(data, tuple(map(str, columns)), what, where, is_table=True), names, what, where)
    if isinstance(values, dict):
        columns = {str(name): each if isinstance(each, list) else [each] for name, each in values.items()}
        lengths = {name: len(each) for name, each in columns.items()}
        if len({*lengths.values()}) > 1:
            raise _undecodable(f"{where}: the body has different numbers of rows: {shown(lengths)}")
        return _checked(Body(columns, next(iter(lengths.values()), 0)), names, what, where)
    if not isinstance(values, list):
        values = [values]
    if values and all(isinstance(each, dict) and "datatype" in each for each in values):
        return _of_tensors(values, names, what, where)
    return _named(values, names, what, where)


def _envelopes(body: Mapping[str, Any], what: str) -> list[str]:
    kinds = (list, dict) if what == "inputs" else (list, dict, int, float)
    return [name for name in _ENVELOPES[what] if isinstance(body.get(name), kinds)]


def _checked(body: Body, names: tuple[str, ...], what: str, where: str) -> Body:
    """Returns a body whose values have names; those that the source gives must be among them."""
    if len(body.columns) > MOST_NAMES:
        raise _undecodable(f"{where}: the body has {len(body.columns)} names; expected at most {MOST_NAMES}")
    if names and what == "inputs" and body.columns and not body.columns.keys() & {*names}:
        raise Unusable(
            "a request without any of the inputs",
            f"{where}: inputs names {', '.join(map(repr, names[:8]))}, none of which is in the body; it has "
            f"{shown(list(body.columns))}: correct inputs, or leave them out if bodies name their values",
        )
    return body


def _named(rows: list[Any], names: tuple[str, ...], what: str, where: str, is_table: bool = False) -> Body:
    """Names the values of rows: of objects, of lists of values, or of single values."""
    if names and what == "inputs":
        rows = [_without_names(row, names) for row in rows]
    if not rows:
        return Body({name: [] for name in names}, 0)
    if all(isinstance(row, dict) for row in rows):
        keys = dict.fromkeys(str(key) for row in rows for key in row)
        if len(keys) * len(rows) > 4 * MOST_VALUES:
            raise _undecodable(f"{where}: {len(rows)} rows of {len(keys)} names; expected rows with the same names")
        return _checked(Body({key: [row.get(key) for row in rows] for key in keys}, len(rows)), names, what, where)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise _undecodable(f"{where}: {what} has the name {twice[0]!r} twice")
    widths = {len(row) if isinstance(row, list) else None for row in rows}
    if widths == {len(names)} and (len(names) > 1 or is_table or not _are_lists(rows)):
        return Body({name: [row[number] for row in rows] for number, name in enumerate(names)}, len(rows))
    if not is_table and len(names) == 1 and not any(isinstance(row, dict | Cell) for row in rows):
        return Body(
            {names[0]: rows if None in widths else [row[0] if len(row) == 1 else row for row in rows]}, len(rows)
        )
    if None in widths and len(widths) == 1 and len(rows) == len(names):
        return Body({name: [value] for name, value in zip(names, rows, strict=True)}, 1)
    counts = " or ".join(sorted("one" if width is None else str(width) for width in widths)[:8])
    raise Unusable(
        "another number of values than names",
        f"{where}: rows of {counts} values without names, but {what} names {len(names)} "
        f"({', '.join(names[:8]) or 'none'}); give {what} the names in the order of the log",
    )


def _without_names(row: Any, names: tuple[str, ...]) -> Any:
    """Returns the list of values that is in an object by another name, as in SageMaker's ``{"features": [1, 2]}``."""
    inner = row
    while isinstance(inner, dict) and len(inner) == 1 and not inner.keys() & {*names}:
        inner = next(iter(inner.values()))
    return inner if isinstance(inner, list) and len(inner) == len(names) else row


def _are_lists(rows: list[Any]) -> bool:
    return any(isinstance(value, list) for row in rows for value in row)


def _of_tensors(tensors: list[Any], names: tuple[str, ...], what: str, where: str) -> Body:
    """Returns the tensors of the Open Inference Protocol, of shape ``[rows, …]``, as columns."""
    columns: Columns = {}
    for tensor in tensors:
        name, shape, data = str(tensor.get("name")), tensor.get("shape"), _flat(tensor.get("data"))
        if name in columns:
            raise _undecodable(f"{where}: the body has the tensor {name!r} twice")
        is_shape = isinstance(shape, list) and shape and all(type(size) is int and size >= 0 for size in shape)
        if not is_shape or math.prod(shape) != len(data):
            raise _undecodable(f"{where}: tensor {name!r} has the shape {shown(shape)} and {len(data)} values in JSON")
        lists = sum(math.prod(shape[:level]) for level in range(1, len(shape)))
        if lists > 2 * len(data) + _EMPTY_LISTS:  # of nothing, or of one value in many dimensions
            raise _undecodable(f"{where}: tensor {name!r} has the shape {shown(shape)}, of {lists} lists")
        for level in range(len(shape) - 1, 0, -1):
            size = shape[level]
            data = [data[start * size : (start + 1) * size] for start in range(math.prod(shape[:level]))]
        is_table = len(tensors) == 1 and len(shape) == 2 and shape[1] == len(names) > 1
        columns |= _named(data, names, what, where).columns if is_table else {name: data}
    lengths = {name: len(values) for name, values in columns.items()}
    if len({*lengths.values()}) > 1:
        raise _undecodable(f"{where}: the body has different numbers of rows: {shown(lengths)}")
    return _checked(Body(columns, next(iter(lengths.values()))), names, what, where)


def _flat(data: Any) -> list[Any]:
    if not isinstance(data, list):
        return []
    return [value for each in data for value in (_flat(each) if isinstance(each, list) else [each])]


def _singles(values: list[Any]) -> list[Any]:
    """Marks values of the shape ``[rows, 1]``, which the model server unpacks."""
    if not values or not isinstance(values[0], list):
        return values
    is_single = all(isinstance(value, list) and len(value) == 1 and not isinstance(value[0], list) for value in values)
    return [Single(value) for value in values] if is_single else values
