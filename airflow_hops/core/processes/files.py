"""Atomic writes, beside the final path and then renamed, and files in folders that several users write."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path


def make_private(folder: Path) -> None:
    """Creates a folder that only this user can enter. An existing one keeps its mode, since it may be a group's."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def is_own_folder(path: Path) -> bool:
    """Returns whether a path is a folder of this user, not a link to one, that nobody else can write."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022


def open_own(path: Path, flags: int = os.O_RDONLY) -> int:
    """Opens a file of this user by its name, in a folder where others may have put a file or link of that name.

    Raises:
        PermissionError: it is a link, has further names, is no regular file, or belongs to another user.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        status = os.fstat(descriptor)
        # A file that was removed in the meantime has no name at all.
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink <= 1:
            return descriptor
        os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
    raise PermissionError(
        errno.EPERM, f"expected a file of user {os.geteuid()}, without links; another user may have put it there", path
    )


def read_own(path: Path) -> bytes:
    """Reads a file that :func:`open_own` opens."""
    with os.fdopen(open_own(path), "rb") as file:
        return file.read()


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
