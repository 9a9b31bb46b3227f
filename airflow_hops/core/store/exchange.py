"""Swaps two folders at once."""

from __future__ import annotations

import ctypes
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(first: Path, second: Path) -> bool:
    """Swaps two paths at once, so that nobody finds neither; False if the system or its file system cannot.

    See renameat2(2).
    """
    try:
        rename = ctypes.CDLL(None).renameat2
    except AttributeError:
        return False
    return bool(rename(_AT_FDCWD, bytes(first), _AT_FDCWD, bytes(second), _RENAME_EXCHANGE) == 0)
