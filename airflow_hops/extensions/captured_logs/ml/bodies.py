"""Bodies of requests and responses as columns: JSON of several protocols, CSV, Base64, gzip."""

from __future__ import annotations

import base64
import binascii
import csv
import gzip
import io
import json
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_hops.core.errors import BadInput

Columns = dict[str, list[Any]]
"""Values by name, one for each row."""

_GZIP = b"\x1f\x8b"


class Cell(str):
    """A value of CSV, whose type its column decides."""


class Single(list[Any]):
    """The value of a row of the shape ``[rows, 1]``: a list of one, or, unless others are longer, the value in it."""


def body_columns(body: Any, names: Sequence[str], what: str, where: str) -> Columns:
    r"""Decodes a body.

    Args:
        body: Text or bytes of JSON or CSV, also in Base64 or gzipped; or a JSON value.
        names: Names of values that the body does not name, in their order.
        what: ``inputs`` or ``outputs``, the argument that gives the names.
        where: Place of the entry, for errors.

    Raises:
        BadInput: the body is in none of the known forms, or has another number of values than ``names``.

    Example:
        >>> body_columns('{"instances": [{"age": 31}, {"age": 64}]}', (), "inputs", "log, line 1")
        {'age': [31, 64]}
        >>> body_columns("31,basic\n", ("age", "plan"), "inputs", "log, line 1")
        {'age': ['31'], 'plan': ['basic']}
    """
    names = tuple(names)
    if isinstance(body, str | bytes):
        text = _text(body, where)
        if text.lstrip()[:1] not in ("{", "["):
            rows = _csv(text, where)
            if len(rows) > 1 and names and set(names) <= set(rows[0]):
                names, rows = tuple(rows[0]), rows[1:]  # a header
            return _named([[Cell(cell) for cell in row] for row in rows], names, what, where)
        try:
            body = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{where}: the body is not JSON ({error}); it begins with {text[:60]!r}") from error
    columns = _columns(body, names, what, where)
    lengths = {name: len(values) for name, values in columns.items()}
    if len({*lengths.values()}) > 1:
        raise BadInput(f"{where}: the body has different numbers of rows: {lengths}")
    return {name: _singles(values) for name, values in columns.items()}


def decoded(data: Any, encoding: str | None, where: str) -> Any:
    """Returns the data of an entry that says in which encoding it is: ``BASE64``, or any text.

    Raises:
        BadInput: it is not of that encoding.
    """
    if encoding == "BASE64" and isinstance(data, str):
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as error:
            raise BadInput(f"{where}: the data is not in Base64, which its encoding says ({error})") from error
    return data


def _text(body: str | bytes, where: str) -> str:
    content = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    # Base64 of JSON or gzip is no JSON, and no CSV of numbers or words with a delimiter.
    if content[:1] not in (b"{", b"[") and not content.startswith(_GZIP):
        try:
            inner = base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError):
            inner = b""
        if inner[:1] in (b"{", b"[") or inner.startswith(_GZIP):
            content = inner
    try:
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise BadInput(
            f"{where}: the body begins with {content[:12]!r} ({error}); expected JSON or CSV in UTF-8, also in Base64 "
            "or gzipped"
        ) from error


def _csv(text: str, where: str) -> list[list[str]]:
    try:
        return [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    except csv.Error as error:
        raise BadInput(f"{where}: the body is not CSV ({error}); it begins with {text[:60]!r}") from error


def _columns(body: Any, names: tuple[str, ...], what: str, where: str) -> Columns:
    if isinstance(body, list):
        return _named(body, names, what, where)
    if isinstance(body, Mapping):
        for key in ("instances", "predictions", "dataframe_records"):
            if isinstance(body.get(key), list):
                return _named(body[key], names, what, where)
        split = body.get("dataframe_split")
        if isinstance(split, Mapping) and isinstance(split.get("data"), list):
            columns = split.get("columns") or names
            return _named(split["data"], tuple(map(str, columns)), what, where, is_table=True)
        for key in ("inputs", "outputs"):
            value = body.get(key)
            if isinstance(value, Mapping):
                return {str(name): values if isinstance(values, list) else [values] for name, values in value.items()}
            if isinstance(value, list):
                if value and all(isinstance(each, Mapping) and "datatype" in each for each in value):
                    return _tensors(value, names, where)
                return _named(value, names, what, where)
        if body:
            return {str(name): [value] for name, value in body.items()}
    raise BadInput(
        f"{where}: the body is {json.dumps(body, default=str)[:80]}; expected instances, inputs, dataframe_split, "
        "dataframe_records, predictions, outputs, rows, or one object of values"
    )


def _named(rows: list[Any], names: tuple[str, ...], what: str, where: str, is_table: bool = False) -> Columns:
    """Names the values of rows: of objects, of lists of values, or of single values."""
    if not rows:
        return {name: [] for name in names}
    if all(isinstance(row, Mapping) for row in rows):
        keys = dict.fromkeys(str(key) for row in rows for key in row)
        return {key: [row.get(key) for row in rows] for key in keys}
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise BadInput(f"{where}: {what} has the name {twice[0]!r} twice")
    widths = {len(row) if isinstance(row, list) else None for row in rows}
    if widths == {len(names)} and (len(names) > 1 or is_table or not _are_lists(rows)):
        return {name: [row[number] for row in rows] for number, name in enumerate(names)}
    if not is_table and len(names) == 1 and not any(isinstance(row, Mapping | Cell) for row in rows):
        return {names[0]: rows if None in widths else [row[0] if len(row) == 1 else row for row in rows]}
    if None in widths and len(widths) == 1 and len(rows) == len(names):
        return {name: [value] for name, value in zip(names, rows, strict=True)}
    counts = " or ".join(sorted("one" if width is None else str(width) for width in widths))
    raise BadInput(
        f"{where}: rows of {counts} values without names, but {what} names {len(names)} "
        f"({', '.join(names[:8]) or 'none'}); give {what} the names in the order of the log"
    )


def _are_lists(rows: list[Any]) -> bool:
    return any(isinstance(value, list) for row in rows for value in row)


def _tensors(tensors: list[Any], names: tuple[str, ...], where: str) -> Columns:
    """Returns the tensors of the Open Inference Protocol, of shape ``[rows, …]``, as columns."""
    columns: Columns = {}
    for tensor in tensors:
        name, shape, data = str(tensor.get("name")), tensor.get("shape"), _flat(tensor.get("data"))
        if name in columns:
            raise BadInput(f"{where}: the body has the tensor {name!r} twice")
        if not shape or not all(type(size) is int for size in shape) or math.prod(shape) != len(data):
            raise BadInput(f"{where}: tensor {name!r} has the shape {shape} and {len(data)} values in JSON")
        for size in reversed(shape[1:]):
            data = [data[start : start + size] for start in range(0, len(data), size)] if size else [[]] * shape[0]
        is_table = len(tensors) == 1 and len(shape) == 2 and shape[1] == len(names) > 1
        columns |= _named(data, names, "", where) if is_table else {name: data}
    return columns


def _flat(data: Any) -> list[Any]:
    if not isinstance(data, list):
        return []
    return [value for each in data for value in (_flat(each) if isinstance(each, list) else [each])]


def _singles(values: list[Any]) -> list[Any]:
    """Marks values of the shape ``[rows, 1]``, which the model server unpacks."""
    is_single = values and all(
        isinstance(value, list) and len(value) == 1 and not isinstance(value[0], list) for value in values
    )
    return [Single(value) for value in values] if is_single else values
