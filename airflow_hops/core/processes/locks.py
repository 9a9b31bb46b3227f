"""Locks that end with their holder, however it ends.

Two kinds. What :func:`locked` and :func:`lock_folder` take belongs to the open file, and so to forks as well. What
:func:`lock_for_process` takes belongs to a process alone, which others can look up.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

_POLL_S = 0.05
_FLOCK = "hhqqi"  # struct flock of fcntl(2): type, whence, start, length, pid


@contextlib.contextmanager
def locked(path: Path, timeout_s: float | None = None) -> Iterator[None]:
    """Holds a lock, against threads and processes.

    Args:
        path: A folder that is there, or a file, which is made, and stays.
        timeout_s: How long to wait for another holder; None for as long as it takes.

    Raises:
        TimeoutError: another has held it for ``timeout_s`` seconds.
    """
    is_folder = path.is_dir()
    if not is_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_CLOEXEC | (os.O_RDONLY if is_folder else os.O_RDWR | os.O_CREAT), 0o666)
    try:
        if timeout_s is None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        else:
            deadline = time.monotonic() + timeout_s
            while not try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise TimeoutError
                time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Locks an open file or folder, unless another has locked it.

    Raises:
        OSError: its file system has no such locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_folder(folder: Path) -> int:
    """Opens a folder, and follows no link: a descriptor to lock, or to make files in.

    Raises:
        OSError: it is no folder.
    """
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def lock_folder(folder: Path, *, shared: bool = False) -> int:
    """Locks a folder for as long as the descriptor that is returned is open, here or in a fork.

    Where the file system has no such locks it is opened alone: nobody else can lock it either.

    Args:
        folder: The folder.
        shared: Waits until nobody holds it alone, and holds it beside others.

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
    """Locks a file for as long as this very process lives, or closes what is returned; forks do not inherit the lock.

    A process that has locked a file must neither open nor close it otherwise: that would free it (see fcntl(2)).

    Returns:
        The file's descriptor, or None when another process has locked it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def lock_holder(path: Path) -> int | None:
    """The process that holds a file by :func:`lock_for_process`, or None."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    finally:
        os.close(descriptor)
    return None if kind == fcntl.F_UNLCK else pid
