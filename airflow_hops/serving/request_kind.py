"""The key by which requests are counted."""

from __future__ import annotations

from typing import NamedTuple


class RequestKind(NamedTuple):
    """The key by which requests are counted; version 0 if no version could have answered."""

    model: str
    version: int
    method: str
    api: str
