"""Temporary folders of this user, which are removed when their process ends.

Each is locked by the process that made it until that process ends, which also keeps systemd-tmpfiles from removing it.
The next process that makes a folder removes those of killed processes. A step's own temporary folder is inside the one
that its worker made for it, and is removed with it, including files that libraries leave behind.
"""

# The order in which a folder is made, and what a kill leaves behind:
# 1. A folder with a hidden name is made. After a kill it is unlocked, and removed once it is an hour old: a younger one
#    may be between steps 1 and 2 of another process.
# 2. The folder is locked. The lock belongs to the open descriptor, which forks inherit: a fork keeps its parent's
#    folder.
# 3. It is renamed to a name with the suffix ``.locked``. After a kill it is unlocked, and removed at once.
# A removal needs the lock, so nobody removes a folder in use.

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from airflow_hops.core.processes.files import lock_folder, open_folder, try_lock

_KINDS = (
    "agent",
    "artifact",
    "code",
    "export",
    "joined",
    "kernel",
    "measured",
    "models",
    "notebook",
    "packed",
    "part",
    "run-file",
    "step",
    "topic",
    "uv",
    "workers",
)
"""Prefixes of temporary folders. No other ``hops-*`` folders are removed: users may have folders with such names."""
_LOCKED = ".locked"
"""Suffix of folders that were locked before they got this name: if unlocked, their process has ended."""
_SWEEP_AGE_S = 3600.0
_SOCKET_PATH_BYTES = 107
_PROBE_BYTES = 1 << 16
_SHARED_VARIABLE = "HOPS_TEMPORARY_FOLDER"

log = logging.getLogger(__name__)


@contextlib.contextmanager
def temporary_folder(kind: str, name: str = "", *, root: Path | None = None) -> Iterator[Path]:
    """Yields a new folder that only this user can enter, and removes it at the end of the ``with`` block.

    ``name`` makes the folder's name readable. ``root`` is its parent, by default the system's temporary folder.
    """
    folder, lock = make_temporary_folder(kind, name, root=root)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def make_temporary_folder(kind: str, name: str = "", *, root: Path | None = None) -> tuple[Path, int]:
    """Like :func:`temporary_folder`, but the caller removes the folder, and then closes its lock.

    Returns:
        The folder, and the descriptor that locks it.
    """
    assert kind in _KINDS, kind
    root = root or Path(tempfile.gettempdir())
    remove_left_behind(root)
    # Renamed once it is locked, because others would remove an unlocked folder of that name.
    hidden = Path(tempfile.mkdtemp(prefix=f".hops-{kind}-{f'{name[:20]}-' if name else ''}", dir=root))
    lock = lock_folder(hidden)
    return hidden.rename(root / f"{hidden.name.removeprefix('.')}{_LOCKED}"), lock


def variables_of_step(folder: Path) -> dict[str, str]:
    """Returns the variables that move a step's temporary files into a folder, which is removed after the step."""
    own = folder / "t"  # short, for paths of sockets
    own.mkdir(exist_ok=True)
    return {"TMPDIR": str(own), _SHARED_VARIABLE: str(shared_temporary_folder())}


def shared_temporary_folder() -> Path:
    """Returns the temporary folder that the steps on this machine share."""
    return Path(os.environ.get(_SHARED_VARIABLE) or tempfile.gettempdir())


def full_place(error: BaseException) -> str | None:
    """Describes an error if its cause is a full device; returns None for others."""
    text = str(error)
    if isinstance(error, FileNotFoundError) and "No usable temporary directory" in text:
        return f"no temporary folder can be written ({text}); free some space, or name another in TMPDIR"
    # Errors of Spark's JVM have no errno, but this text.
    is_full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if not (is_full or "No space left on device" in text):
        return None
    place = getattr(error, "filename", None) or "the store or the temporary folder"
    reason = text.partition("\n")[0]
    return f"no space left on the device that holds {place}; free some space and retry ({reason})"


def full_folder(folder: Path) -> str | None:
    """Returns the text of :func:`full_place` if a folder takes no more files: its processes could not say so."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBE_BYTES))
    except OSError as error:
        error.filename = str(folder)
        return full_place(error)
    return None


def socket_root(length: int) -> Path | None:
    """Returns a folder for temporary folders with Unix sockets, whose paths have at most 107 bytes (unix(7)).

    It is ``/tmp`` if ``length`` more bytes make the path of the system's temporary folder too long, else None for the
    latter.
    """
    return Path("/tmp") if len(os.fsencode(tempfile.gettempdir())) + length > _SOCKET_PATH_BYTES else None


def remove_left_behind(root: Path, kind: str | None = None, *, age_s: float = _SWEEP_AGE_S) -> None:
    """Removes temporary folders of this user whose process has ended.

    Args:
        root: Parent of the folders.
        kind: Purpose of the folders; None for any.
        age_s: Seconds since the last change of a folder that may not have been locked yet.
    """
    ours = re.compile(rf"\.?hops-({kind or '|'.join(_KINDS)})-(.*-)?[a-z0-9_]{{8}}({re.escape(_LOCKED)})?")
    with contextlib.suppress(OSError):
        for entry in os.scandir(root):
            if ours.fullmatch(entry.name):
                _remove_unlocked(Path(entry.path), 0.0 if entry.name.endswith(_LOCKED) else age_s)


def _remove_unlocked(folder: Path, age_s: float) -> None:
    try:
        status = folder.lstat()
        is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
        if not is_ours or time.time() - status.st_mtime < age_s:
            return
        descriptor = open_folder(folder)
    except OSError:
        return
    try:
        if try_lock(descriptor):  # otherwise its process still runs
            shutil.rmtree(folder)
            log.info("removed %s, which a process that was killed had left", folder)
    except OSError as error:
        log.warning("cannot remove %s, which a process that was killed had left: %s", folder, error)
    finally:
        os.close(descriptor)
