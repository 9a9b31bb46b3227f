"""Local copies of versions in stores; a copy exists as long as its version is loaded."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path

from airflow_hops.core.processes.temporary_folders import make_temporary_folder, remove_left_behind


class ModelCache:
    """Temporary folder of this process for copies of versions; removes the folders that killed servers left behind.

    The process locks the folder while it lives, which distinguishes it from abandoned folders and keeps
    systemd-tmpfiles away.

    Args:
        root: Parent folder, created on first use; None for the system's temporary folder.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._root = root or Path(tempfile.gettempdir())
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._held = -1
        self._closed = False
        remove_left_behind(self._root, "models", age_s=0)

    def new_folder(self, version: int) -> Path:
        """Creates an empty folder whose name begins with the version number.

        Raises:
            OSError: The folder cannot be created, or the cache is closed.
        """
        with self._lock:
            if self._closed:
                raise OSError("the server stops")
            if self._folder is None:
                self._root.mkdir(parents=True, exist_ok=True)
                self._folder, self._held = make_temporary_folder("models", root=self._root)
            return Path(tempfile.mkdtemp(prefix=f"{version}-", dir=self._folder))

    def remove(self, folder: str | os.PathLike[str]) -> None:
        """Removes a copy; does nothing for other folders."""
        if self._folder is not None and Path(folder).parent == self._folder:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Removes all copies, and refuses new ones."""
        with self._lock:
            self._closed = True
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                os.close(self._held)
                self._folder = None
