"""Locks that are released when their holder ends, even if it is killed.

There are two kinds. Locks of :func:`locked` and :func:`lock_folder` belong to the open file, and are shared with forks.
A lock of :func:`lock_for_process` belongs to one process, which :func:`lock_holder` returns.
"""

# Two kinds of locks, since each lacks what the other has:
#   flock(2)        belongs to the open file: forks share it, and it ends when all of them have closed the descriptor.
#                   It also works for folders, but does not tell who holds it.
#   fcntl(2) locks  belong to a process: forks do not have them, and F_GETLK returns the pid of the holder. They are
#                   lost when the holder closes any descriptor of that file.
# Files of locks are never removed: a process could lock the removed file while another one locks its successor.

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from airflow_hops.core.errors import HopsError
from airflow_hops.core.processes.polling import poll

_POLL_S = 0.05
_FLOCK = "hhqqi"  # struct flock of fcntl(2): type, whence, start, length, pid


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
