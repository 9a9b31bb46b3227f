"""Copies, on this machine, of versions that lie in stores: each is there for as long as it is loaded."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
import threading
from pathlib import Path

log = logging.getLogger(__name__)

_PREFIX = "hops-models-"


class ModelCache:
    """A folder of this process for copies of versions; what a killed server left beside it is removed.

    The folder is locked for as long as the process lives, which tells its copies from those that nobody needs any more,
    and keeps systemd-tmpfiles from them.

    Args:
        root: In which it is made, when it is needed; None for the system's temporary folder.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or Path(tempfile.gettempdir())
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._held = -1
        self._closed = False
        for folder in self._root.glob(f"{_PREFIX}*"):
            _remove_left(folder)

    def new_folder(self, version: int) -> Path:
        """Makes an empty folder.

        Args:
            version: Number that its name begins with.

        Raises:
            OSError: It cannot be made, or the cache is closed.
        """
        with self._lock:
            if self._closed:
                raise OSError("the server stops")
            if self._folder is None:
                self._folder, self._held = _locked_folder(self._root)
            return Path(tempfile.mkdtemp(prefix=f"{version}-", dir=self._folder))

    def remove(self, folder: str | os.PathLike[str]) -> None:
        """Removes a copy; a folder that is none is left alone."""
        if self._folder is not None and Path(folder).parent == self._folder:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Removes all copies, and makes no more."""
        with self._lock:
            self._closed = True
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                os.close(self._held)
                self._folder = None


def _locked_folder(root: Path) -> tuple[Path, int]:
    """Makes a folder that only its owner can read, and returns the descriptor that holds its lock, too.

    It has its name once it is locked: another server would take it for one that was left.
    """
    root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=root))
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    return folder.rename(root / folder.name.removeprefix(".")), held


def _remove_left(folder: Path) -> None:
    """Removes a folder of ours that no process holds."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_uid == os.geteuid():
            shutil.rmtree(folder)
            log.info("removed %s, which a server that was killed had left", folder)
    except BlockingIOError:
        pass  # a server that lives
    except OSError as error:
        log.warning("cannot remove %s, which a server that was killed had left: %s", folder, error)
    finally:
        os.close(descriptor)
