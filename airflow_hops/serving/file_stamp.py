"""Stamps of files that are replaced by rename: whether a file has changed, and which of two states is newer."""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[int, int, int]
"""Time of the change in nanoseconds, size and inode; a later state has the greater stamp."""


def stamp_of(path: Path | None) -> Stamp | None:
    """Returns the stamp of a file; None if there is no file."""
    try:
        status = path.stat() if path is not None else None
    except OSError:
        return None
    return None if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)
