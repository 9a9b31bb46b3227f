"""Keys of segments: which are refused, and which look alike."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Collection

import numpy as np

from airflow_hops.core.errors import BadInput

MAX_KEY_BYTES = 1024
"""Longest key of a segment, in UTF-8."""
_SHOWN = 10


def shown(key: object) -> str:
    """Returns a key for a message, shortened."""
    text = repr(key)
    return text if len(text) <= 80 else f"{text[:77]}…"


def fault_of(key: object) -> str:
    """Returns why a value is not a segment's key; empty if it is one."""
    if not isinstance(key, str) or not key:
        return "is empty"
    size = len(key.encode(errors="surrogatepass"))
    return f"has {size:,} bytes; at most {MAX_KEY_BYTES:,} are allowed" if size > MAX_KEY_BYTES else ""


def segment_keys(name: str, values: np.ndarray) -> list[str]:
    """Returns the keys of rows, as the index has them: texts unchanged, and integers in decimals.

    Keys are compared byte by byte: ``A1``, ``a1`` and ``A1`` with a space are three segments.

    >>> segment_keys("shop", np.array([7, -1]))
    ['7', '-1']

    Args:
        name: The column, for messages.
        values: Texts (``str`` or UTF-8 ``bytes``) or integers, ``[rows]``.

    Raises:
        BadInput: a value is empty, too long, no UTF-8 or of another type; the message names the row.
    """
    if values.dtype.kind in "iu":
        return [str(value) for value in values.tolist()]
    if values.dtype.kind not in "OU":
        raise BadInput(f"column {name!r} is of the type {values.dtype}; expected texts or integers, keys of segments")
    keys: list[str] = []
    for row, value in enumerate(values.tolist()):
        try:
            key = value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            raise BadInput(f"column {name!r} is {shown(value)} in row {row}; expected UTF-8 ({error.reason})") from None
        if not isinstance(key, str):
            raise BadInput(f"column {name!r} is {shown(key)} in row {row}; expected a text, the key of a segment")
        if fault := fault_of(key):
            raise BadInput(f"column {name!r} {fault} in row {row}; expected the key of a segment ({shown(key)})")
        keys.append(key)
    return keys


def look_alikes(keys: Collection[str]) -> list[list[str]]:
    """Returns the groups of keys that people would read as one: they differ in case, spaces or Unicode's forms.

    >>> look_alikes(["A1", "B2", "a1 "])
    [['A1', 'a1 ']]
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for key in sorted(keys):
        groups[" ".join(unicodedata.normalize("NFKC", key).casefold().split())].append(key)
    return sorted(group for group in groups.values() if len(group) > 1)


def check_keys(column: str, keys: Collection[str], max_segments: int, keeps_look_alikes: bool) -> list[list[str]]:
    """Returns the groups of keys that look alike.

    Raises:
        BadInput: there are none or more than ``max_segments``, a key is blank or too long, or keys look alike and are
            not kept.
    """
    if not keys:
        raise BadInput(f"column {column!r} has no key of a segment in any training row")
    if len(keys) > max_segments:
        raise BadInput(
            f"column {column!r} has {len(keys):,} different values; expected keys of at most {max_segments:,} segments "
            "(max_segments): a fleet has a model for each, so name a column of shops or machines, not one of visits"
        )
    for key in keys:
        if fault := fault_of(key.strip()) or fault_of(key):
            raise BadInput(f"column {column!r} is {shown(key)} in some rows, a key that {fault}")
    groups = look_alikes(keys)
    if groups and not keeps_look_alikes:
        listed = "; ".join(" and ".join(ascii(key) for key in group) for group in groups[:_SHOWN])
        raise BadInput(
            f"column {column!r} has keys that look alike in {len(groups):,} groups: {listed}. Each would get a model "
            "of its own: write them in one way in prepare(), or, if they are different segments, give "
            'look_alikes="keep"'
        )
    return groups
