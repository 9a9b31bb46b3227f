"""Keys of segments: which are refused, and which look alike."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Collection

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.fleet.core.packs import MAX_KEY_BYTES, shown

_SHOWN = 10


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
    if blank := [key for key in keys if not key.strip()]:
        raise BadInput(f"column {column!r} is {blank[0]!r} in some rows; expected the key of a segment")
    if long := [key for key in keys if len(key.encode()) > MAX_KEY_BYTES]:
        raise BadInput(
            f"column {column!r} is {shown(long[0])} in some rows, a key of {len(long[0].encode()):,} bytes; at most "
            f"{MAX_KEY_BYTES:,} are allowed"
        )
    groups = look_alikes(keys)
    if groups and not keeps_look_alikes:
        listed = "; ".join(" and ".join(ascii(key) for key in group) for group in groups[:_SHOWN])
        raise BadInput(
            f"column {column!r} has keys that look alike in {len(groups):,} groups: {listed}. Each would get a model "
            "of its own: write them in one way in prepare(), or, if they are different segments, give "
            'look_alikes="keep"'
        )
    return groups
