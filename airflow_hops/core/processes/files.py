"""Files that appear whole: written beside their place, and renamed into it."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path


def make_private(folder: Path) -> None:
    """Makes a folder that only this user can enter. One that is there keeps its mode: it may be a group's."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


@contextlib.contextmanager
def staged(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """A path beside a file's, for the ``with`` block to write; at its end the new file takes the other's place.

    If the block fails, or writes no file, the place stays as it was.

    Args:
        path: Of the file; its folder is made.
        durable: Whether the file is to survive a loss of power.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")
    try:
        yield staging
        if staging.exists():
            if durable:
                sync(staging)
            staging.replace(path)
            if durable:
                sync(path.parent)
    finally:
        staging.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes, *, durable: bool = False) -> None:
    """Writes a small file, which a reader finds as it was or as it is now; arguments as those of :func:`staged`."""
    with staged(path, durable=durable) as staging:
        staging.write_bytes(content.encode() if isinstance(content, str) else content)


def create_atomically(path: Path, content: bytes) -> None:
    """Writes a small file that is not there yet. Raises FileExistsError where it is there."""
    with staged(path) as staging:
        staging.write_bytes(content)
        os.link(staging, path)
        staging.unlink()


def sync(path: Path) -> None:
    """Has the disk keep a file's content, or a folder's names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
