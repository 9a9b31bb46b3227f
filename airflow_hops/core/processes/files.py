"""Atomic writes, beside the final path and then renamed, files in folders that several users write, and locks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path

from airflow_hops.core.errors import HopsError
from airflow_hops.core.processes.polling import poll

_POLL_S = 0.05
_FLOCK = "hhqqi"  # struct flock of fcntl(2): type, whence, start, length, pid


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


class LockHeld(HopsError):
    """Another process holds a lock or a lease; a retry may succeed after that has ended."""


@contextlib.contextmanager
def locked(path: Path, timeout_s: float | None = None) -> Iterator[None]:
    """Holds a lock, against threads and processes.

    Args:
        path: An existing folder, or a file, which is created and never removed.
        timeout_s: Seconds to wait for another holder; None for no limit.

    Raises:
        LockHeld: another has held it for ``timeout_s`` seconds.
    """
    is_folder = path.is_dir()
    if not is_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CLOEXEC | (os.O_RDONLY if is_folder else os.O_RDWR | os.O_CREAT), 0o666)
    try:
        if timeout_s is None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        else:
            late = LockHeld(f"another process has held {path} for {timeout_s:g} s; try again when it has ended")
            poll(lambda: try_lock(descriptor), _POLL_S, timeout_s, lambda: late)
        yield
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Locks an open file or folder, and returns whether it was unlocked.

    Raises:
        OSError: its file system does not support such locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_folder(folder: Path) -> int:
    """Opens a folder without following a link; the descriptor can be locked, or used to create files.

    Raises:
        OSError: it is not a folder.
    """
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def lock_folder(folder: Path, *, shared: bool = False) -> int:
    """Locks a folder for as long as the returned descriptor is open, here or in a fork.

    A shared lock waits for an exclusive one. On a file system without such locks the folder is only opened: no other
    process can lock it either.

    Raises:
        BlockingIOError: another process has locked it.
    """
    descriptor = open_folder(folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        pass
    return descriptor


def lock_for_process(path: Path) -> int | None:
    """Locks a file until this process ends or closes the returned descriptor; None if another process has locked it.

    Forks do not inherit the lock. Any other open and close of the file by the locking process would release it (see
    fcntl(2)).
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def lock_if_there(path: Path) -> int | None:
    """Locks a file as :func:`lock_for_process` does; None if its folder is gone."""
    try:
        return lock_for_process(path)
    except FileNotFoundError:
        return None


def lock_holder(path: Path) -> int | None:
    """Returns the pid of the process that holds a file by :func:`lock_for_process`, or None."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    finally:
        os.close(descriptor)
    return None if kind == fcntl.F_UNLCK else pid
