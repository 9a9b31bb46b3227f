"""JSON that strangers wrote, within limits of bytes, values and depth, and the reason why an entry is left out."""

from __future__ import annotations

import contextlib
import re
import reprlib
from collections.abc import Iterator
from typing import Any

from airflow_hops.ml.readers.jsonl import parse_json

MOST_BYTES = 32 << 20
"""Limit for a body after Base64 and gzip."""
MOST_VALUES = 1 << 20
"""Limit for the values of a JSON object or body; each takes up to 72 bytes."""
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{\]}]', re.DOTALL)
_BOUNDARY = re.compile(rb"\}\s*\{")
_TRIES = 16
_SHOWN = 200
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80


class Unusable(Exception):
    """Raised for an entry that is counted and left out.

    Attributes:
        reason: Reason under which it is counted; the same for all entries like it.
        detail: What was found at which place; empty if the reason says all.
        is_fault: Whether entries like it make the window fail if they are too many; not for what an endpoint refused.
    """

    def __init__(self, reason: str, detail: str = "", *, is_fault: bool = True) -> None:
        super().__init__(reason, detail)
        self.reason, self.detail, self.is_fault = reason, detail, is_fault


def shown(value: object) -> str:
    """Returns a value for a message, shortened."""
    return _REPR.repr(value)[:_SHOWN]


def json_value(text: bytes) -> Any:
    """Parses a JSON value.

    Raises:
        ValueError: it is not JSON in UTF-8, has a field twice, or is larger than the limits.
    """
    if b"\0" in text:  # UTF-16, which Python would read
        raise ValueError("a NUL byte")
    if is_large(text):
        raise ValueError(f"more than {MOST_VALUES} values")
    try:
        return parse_json(text)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def is_large(text: bytes) -> bool:
    """Returns whether JSON has more values than the limit; each is behind one of three marks."""
    return len(text) > MOST_VALUES and text.count(b",") + text.count(b"[") + text.count(b"{") > MOST_VALUES


def concatenated(text: bytes) -> Iterator[tuple[Any, int]]:
    """Yields the JSON objects that follow one another, and their lengths; None for what is none.

    A file of Firehose is one line of such objects. What is within a text is never taken for an object, so that nothing
    behind a damaged one is read.
    """
    start = 0
    while start < len(text):
        end, value, boundary = start, None, _BOUNDARY.search(text, start)
        is_last = boundary is None
        for _ in range(_TRIES):  # a text may have such marks
            end = len(text) if boundary is None else boundary.start() + 1
            with contextlib.suppress(ValueError):
                value = json_value(text[start:end])
            if value is not None or boundary is None or is_large(text[start:end]):
                break
            boundary = _BOUNDARY.search(text, end)
        if value is None and not is_last:
            end = _end_of_object(text, start)
            with contextlib.suppress(ValueError):
                value = json_value(text[start:end])
        yield value, end - start
        start = end


def _end_of_object(text: bytes, start: int) -> int:
    depth = 0
    for token in _TOKEN.finditer(text, start):
        depth += (token[0] in b"[{") - (token[0] in b"]}")
        if depth <= 0 and token[0] in b"]}":
            return token.end()
    return len(text)
