"""JSON that strangers wrote, within limits of bytes, values and depth, and the reason why an entry is left out."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator
from typing import Any

from airflow_hops.ml.readers.jsonl import parse_json

MOST_BYTES = 32 << 20
"""Limit for a body after Base64 and gzip."""
MOST_VALUES = 1 << 20
"""Limit for the values of a JSON object or body; each takes up to 72 bytes."""
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{\]}]', re.DOTALL)
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
    if text.count(b",") + text.count(b"[") + text.count(b"{") > MOST_VALUES:
        raise ValueError(f"more than {MOST_VALUES} values")
    try:
        return parse_json(text)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def concatenated(text: bytes) -> Iterator[bytes]:
    """Yields the texts of the JSON objects and lists that follow one another, such as those of a file of Firehose."""
    depth, start = 0, 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in b"[{":
            depth += 1
        elif mark in b"]}":
            depth -= 1
            if depth <= 0:
                yield text[start : token.end()].strip()
                depth, start = 0, token.end()
    if rest := text[start:].strip():
        yield rest
