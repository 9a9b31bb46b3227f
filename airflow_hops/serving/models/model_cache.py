"""Copies, on this machine, of versions that lie in stores: each is there for as long as it is loaded."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path

from airflow_hops.core.processes.temporary_folders import make_temporary_folder, remove_left_behind


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
        remove_left_behind(self._root, "models", age_s=0)

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
                self._root.mkdir(parents=True, exist_ok=True)
                self._folder, self._held = make_temporary_folder("models", root=self._root)
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
