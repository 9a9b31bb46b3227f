"""A cache of remote files, shared by the ranks of a host; the least recently used are removed first."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.core.contract.sources import Source, SourceFile
from airflow_hops.core.processes.locks import locked
from airflow_hops.core.store.source_files import list_files

_LOCKS = 64
_PART = ".part"


class FileCache:
    """A folder of fetched files, which processes share.

    A file is named by its address, size and version, so that a changed file is fetched again. The fetching process
    holds a lock, which is released if it dies; the next process overwrites its partial file.

    Args:
        fs: The fsspec file system that the files are on.
        folder: The cache.
        max_bytes: Maximum size of the cache.
    """

    def __init__(self, fs: Any, folder: str | Path, max_bytes: int) -> None:
        self._fs, self._folder, self._max_bytes = fs, Path(folder), max_bytes

    def find(self, file: SourceFile) -> Path | None:
        """Returns the local copy, if there is one."""
        path = self._path(file)
        try:
            if path.stat().st_size != file.size_bytes:
                return None
            now_ns = time.time_ns()  # the kernel's own "now" may be some milliseconds old
            os.utime(path, ns=(now_ns, now_ns))  # how the least recently used is told
        except FileNotFoundError:
            return None
        return path

    def fetch(self, file: SourceFile) -> Path:
        """Returns the local copy, after fetching it if there is none.

        Raises:
            BadInput: the file is larger than the whole cache.
            HopsError: it cannot be fetched, or changed in the meantime.
        """
        if (path := self.find(file)) is not None:
            return path
        if file.size_bytes > self._max_bytes:
            raise BadInput(
                f"{file.name} has {file.size_bytes} bytes, more than the {self._max_bytes} of the cache in "
                f"{self._folder} (cache_bytes)"
            )
        path = self._path(file)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._lock(path.name):
                if (result := self.find(file)) is not None:
                    return result
                with self._lock("room"):
                    self._make_room(file.size_bytes)
                part = path.with_name(path.name + _PART)
                try:
                    self._fs.get_file(file.path, str(part))
                    source = Source(file.name, storage_options=self._fs.storage_options)
                    now = list_files(source)[1][0]
                    size = part.stat().st_size
                    if size != file.size_bytes or now.version != file.version:
                        raise HopsError(
                            f"{file.name} was changed while it was fetched: {size} bytes came, "
                            f"{file.size_bytes} were expected"
                        )
                    part.replace(path)
                finally:
                    part.unlink(missing_ok=True)
        except OSError as error:
            raise HopsError(f"{file.name} cannot be fetched to {self._folder}: {error}") from error
        return path

    def _path(self, file: SourceFile) -> Path:
        key = hashlib.sha256(f"{file.name} {file.size_bytes} {file.version}".encode()).hexdigest()[:32]
        return self._folder / key

    def _lock(self, name: str) -> AbstractContextManager[None]:
        """Holds one of a fixed number of locks, so that none is ever to be removed."""
        number = "room" if name == "room" else f"{int(name[:8], 16) % _LOCKS:02d}"
        return locked(self._folder / f".lock-{number}")

    def _make_room(self, size_bytes: int) -> None:
        files = []
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if not path.name.startswith(".") and path.is_file():
                    state = path.stat()
                    files.append((state.st_mtime_ns, state.st_size, path))
        excess = sum(size for _, size, _ in files) + size_bytes - self._max_bytes
        for _, size, path in sorted(files):
            if excess <= 0:
                break
            if not path.name.endswith(_PART):
                path.unlink(missing_ok=True)
                excess -= size
