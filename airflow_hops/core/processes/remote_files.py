"""Files in a store that fsspec opens: writes are atomic, and a folder is complete once its last file exists."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from airflow_hops.core.extensions import FILE_SYSTEMS, extensions

# Stores with atomic writes; elsewhere a file is renamed into place, unless the class says ``writes_atomically``.
_ATOMIC = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "memory"}
_UPLOADS = 8  # parallel uploads; HDFS takes half a second to complete a file


def is_remote(url: str) -> bool:
    """Returns whether a URL is one of a store that other hosts reach, not a path or URL of this machine's files."""
    protocol, separator, _ = url.partition("://")
    return bool(separator) and protocol not in ("file", "local", "memory")


def open_url(url: str, storage_options: Mapping[str, object] | None = None) -> tuple[Any, str]:
    """Returns the fsspec file system of a URL, and the path in it.

    Raises:
        ImportError: the protocol's library is not installed.
        ValueError: the protocol or the storage options are not known.
    """
    import fsspec  # the only import outside of the standard library here

    for protocol, each in extensions(FILE_SYSTEMS).items():
        fsspec.register_implementation(
            protocol,
            each.value.replace(":", "."),
            clobber=True,
            errtxt=f"{each} cannot be imported; install what it needs: pip install '{each.distribution}[{protocol}]'",
        )
    fs, path = fsspec.url_to_fs(url, **(storage_options or {}))
    return fs, str(path)


def without_markers(listed: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the entries of a listing with details, except empty objects that mark folders.

    Consoles and tools of Hadoop write them into object stores: ``raw/``, ``raw_$folder$``, or ``raw`` over ``raw/a``.
    """
    entries, folders = list(listed), {""}
    for entry in entries:
        path = entry["name"] if entry["type"] == "directory" else entry["name"].rpartition("/")[0]
        while path not in folders:
            folders.add(path)
            path = path.rpartition("/")[0]
    return [
        entry
        for entry in entries
        if entry["type"] != "file"
        or entry.get("size") != 0
        or not (entry["name"].endswith(("/", "_$folder$")) or entry["name"] in folders)
    ]


class RemoteFiles:
    """Files of a store, by their addresses: URLs, or paths of its file system.

    Args:
        url: URL of any folder in the store.
        storage_options: Passed to fsspec.

    Attributes:
        fs: The fsspec file system.
        root: The folder's path.

    Raises:
        ImportError: the protocol's library is not installed.
        ValueError: the protocol is not known.
    """

    def __init__(self, url: str, storage_options: Mapping[str, object] | None = None) -> None:
        self.fs, root = open_url(url, storage_options)
        self.root = root.rstrip("/")
        protocols = {self.fs.protocol} if isinstance(self.fs.protocol, str) else set(self.fs.protocol)
        self._renames = not protocols & _ATOMIC and not getattr(self.fs, "writes_atomically", False)

    def read(self, address: str) -> bytes:
        """Returns a file's content. Raises FileNotFoundError if it does not exist."""
        content: bytes = self.fs.cat_file(address)
        return content

    def write(self, address: str, content: bytes, *, staging: str = "") -> None:
        """Writes a file atomically; ``staging`` names a temporary file beside it, the same for every try."""
        if not self._renames:
            self.fs.pipe_file(address, content)
            return
        folder, _, name = address.rpartition("/")
        temporary = f"{folder}/{staging or f'.{name}.{uuid.uuid4().hex[:8]}'}"
        self.fs.makedirs(folder, exist_ok=True)
        self.fs.pipe_file(temporary, content)
        self.fs.mv(temporary, address)

    def remove(self, address: str) -> None:
        """Removes a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(address)

    def exists(self, address: str) -> bool:
        """Returns whether a file currently exists, bypassing fsspec's cache."""
        self.fs.invalidate_cache()
        return bool(self.fs.exists(address))

    def entries(self, folder: str) -> list[Mapping[str, Any]]:
        """Lists the entries of a folder, as fsspec does, except markers; none if it does not exist."""
        self.fs.invalidate_cache()
        try:
            return without_markers(self.fs.ls(folder, detail=True))
        except FileNotFoundError:
            return []

    def publish(self, files: Mapping[str, Path], folder: str, last: Collection[str]) -> None:
        """Uploads files by their paths in a folder; last those in ``last``, by which readers recognize it."""
        with ThreadPoolExecutor(1 if self._renames else _UPLOADS) as pool:
            uploads = [path for path in files if path not in last]
            for _ in pool.map(lambda path: self.put(files[path], f"{folder}/{path}"), uploads):
                pass
        for path in last:
            if path in files:
                self.write(f"{folder}/{path}", files[path].read_bytes())
        self.fs.invalidate_cache()

    def put(self, path: Path, address: str) -> None:
        """Uploads a local file."""
        if self._renames:
            self.fs.makedirs(address.rpartition("/")[0], exist_ok=True)
        self.fs.put_file(str(path), address)

    def move(self, address: str, new: str) -> None:
        """Moves a file: renames it, or has an object store copy it."""
        if self._renames:
            self.fs.makedirs(new.rpartition("/")[0], exist_ok=True)
        self.fs.mv(address, new)

    def clear(self, folder: str, *, first: Collection[str] = (), kept: Collection[str] = ()) -> None:
        """Removes a folder's files except ``kept``; first those in ``first``, by which readers recognize it."""
        for path in first:
            self.remove(f"{folder}/{path}")
        self.fs.invalidate_cache()
        root = self.fs._strip_protocol(folder)
        with contextlib.suppress(FileNotFoundError):
            for path in self.fs.find(root) if kept else ():
                if path.removeprefix(root).lstrip("/") not in kept:
                    self.remove(path)
            if not kept:
                self.fs.rm(root, recursive=True)
        self.fs.invalidate_cache()
