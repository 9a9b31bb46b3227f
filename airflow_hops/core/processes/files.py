"""Atomic writes: files and folders are written beside their final path, and renamed."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path


def make_private(folder: Path) -> None:
    """Creates a folder that only this user can enter. An existing one keeps its mode, since it may be a group's."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


@contextlib.contextmanager
def staged(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yields a path beside ``path`` for the ``with`` block to write a file or folder, and then renames it to ``path``.

    A file replaces an existing one. If the block fails, or writes nothing, ``path`` is unchanged.

    Args:
        path: Path of the file or folder; the folder around it is created.
        durable: Whether the file must survive a power failure.

    Raises:
        OSError: a folder was written, and ``path`` is a folder with files, or a file.
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
        if staging.is_dir():
            shutil.rmtree(staging, ignore_errors=True)
        else:
            staging.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a small file, of which a reader sees the old or the new content."""
    with staged(path) as staging:
        staging.write_bytes(content.encode() if isinstance(content, str) else content)


def create_atomically(path: Path, content: bytes) -> None:
    """Writes a small new file. Raises FileExistsError if it exists."""
    with staged(path) as staging:
        staging.write_bytes(content)
        os.link(staging, path)
        staging.unlink()


def sync(path: Path) -> None:
    """Flushes a file's content, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
