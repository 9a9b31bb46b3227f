"""File operations of a store: on a local file system, or on anything else that fsspec opens.

Addresses are whole URIs below the store's root; whoever calls has checked that they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import unquote

from airflow_hops.core.contract.artifacts import MANIFEST_NAME, BadInput
from airflow_hops.core.processes.files import create_atomically, make_private, write_atomically
from airflow_hops.core.processes.locks import locked
from airflow_hops.core.processes.remote_files import RemoteFiles
from airflow_hops.core.processes.temporary_folders import make_temporary_folder

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(first: Path, second: Path) -> bool:
    """Swaps two paths at once, so that nobody finds neither; False if the system or its file system cannot.

    See renameat2(2).
    """
    try:
        rename = ctypes.CDLL(None).renameat2
    except AttributeError:
        return False
    return bool(rename(_AT_FDCWD, bytes(first), _AT_FDCWD, bytes(second), _RENAME_EXCHANGE) == 0)


class LocalFiles:
    """On a local file system, which renames and locks.

    Args:
        root: URI of the store, whose folder is made for this user alone.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def path(self, uri: str) -> Path:
        """Returns the local path."""
        # Artifact addresses are made of safe characters; only the root may hold percent escapes.
        return Path(unquote(uri.removeprefix("file://")))

    def open(self, uri: str, path: str = "") -> BinaryIO:
        """Opens a file to be read, or one that is named by its path in a folder.

        Raises:
            FileNotFoundError: there is none.
        """
        return (self.path(uri) / path).open("rb")

    def read(self, uri: str, most_bytes: int = -1) -> bytes:
        """The content of a small file, or its first bytes. Raises FileNotFoundError if there is none."""
        with self.path(uri).open("rb") as stream:
            return stream.read(most_bytes)

    def write(self, uri: str, content: bytes) -> None:
        """Writes a small file atomically."""
        make_private(self.path(self._root))
        write_atomically(self.path(uri), content)

    def create(self, uri: str, content: bytes) -> None:
        """Writes a small file that is not there yet, atomically. Raises FileExistsError where it is there."""
        make_private(self.path(self._root))
        create_atomically(self.path(uri), content)

    def rename(self, uri: str, new: str) -> None:
        """Renames a file. Raises FileNotFoundError if there is none."""
        self.path(uri).rename(self.path(new))

    def remove(self, uri: str) -> None:
        """Removes a file, if it is there."""
        self.path(uri).unlink(missing_ok=True)

    def remove_folder(self, uri: str) -> None:
        """Removes a folder, if it is there; first the manifest, without which it is no artifact."""
        self.remove(f"{uri}/{MANIFEST_NAME}")
        shutil.rmtree(self.path(uri), ignore_errors=True)

    def exists(self, uri: str) -> bool:
        """Whether a file is there now."""
        return self.path(uri).is_file()

    def names(self, uri: str) -> list[str]:
        """Names of what lies in a folder now, sorted; none if there is no folder."""
        folder = self.path(uri)
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def folders_with(self, uri: str, name: str) -> list[str]:
        """Addresses of the folders at or below an address that hold a file of that name now, sorted."""
        folder = self.path(uri)
        result = (
            path.parent for path in folder.rglob(name) if not any(".staging-" in part for part in path.parent.parts)
        )
        return sorted("/".join([uri, *path.relative_to(folder).parts]) for path in result)

    def lock(self, uri: str, timeout_s: float | None = None) -> contextlib.AbstractContextManager[None]:
        """Holds a lock on a folder, against threads and processes."""
        make_private(self.path(self._root))
        return locked(self.path(uri) / ".lock", timeout_s)

    def staging(self, uri: str) -> Path:
        """A new folder, beside the address, for what is to be published there."""
        # A try that was killed leaves its staging directory; the next one clears it.
        for rubbish in self.staged(uri):
            shutil.rmtree(rubbish, ignore_errors=True)
        target = self.path(uri)
        staged = target.parent / f"{target.name}.staging-{uuid.uuid4().hex[:8]}"
        make_private(self.path(self._root))
        staged.mkdir(parents=True)
        return staged

    def discard(self, staged: Path) -> None:
        """Removes a staged folder, or what is left of it."""
        shutil.rmtree(staged, ignore_errors=True)

    def staged(self, uri: str) -> Iterator[Path]:
        """The folders that are there now for what is to be published at an address."""
        target = self.path(uri)
        return target.parent.glob(f"{glob.escape(target.name)}.staging-*")

    def publish(self, staged: Path, uri: str, paths: Sequence[str]) -> None:
        """Puts a staged folder at its address, whatever lies there: a reader finds all of a manifest's files, or none.

        Args:
            staged: Of :meth:`staging`; the caller discards what is left of it.
            uri: The address.
            paths: The folder's files, without the manifest.
        """
        target = self.path(uri)
        if not target.exists():
            staged.rename(target)
        elif not exchange(staged, target):
            replaced = staged.with_name(f"{target.name}.staging-replaced-{uuid.uuid4().hex[:8]}")
            target.rename(replaced)
            staged.rename(target)
            shutil.rmtree(replaced, ignore_errors=True)


class StoreFiles:
    """On anything else that fsspec opens; the methods are those of :class:`LocalFiles`.

    Args:
        root: URI of the store.
        storage_options: Passed to fsspec.
    """

    def __init__(self, root: str, storage_options: Mapping[str, Any]) -> None:
        self._root, self._storage_options = root, storage_options
        self._locks: dict[Path, int] = {}

    def remote(self) -> RemoteFiles:
        """The store's files.

        Raises:
            BadInput: fsspec knows no such file system, or a package for it is missing.
        """
        try:
            return RemoteFiles(self._root, self._storage_options)
        except (ImportError, ValueError) as error:
            raise BadInput(f"store {self._root!r}: {error}") from error

    def open(self, uri: str, path: str = "") -> BinaryIO:
        """Opens a file to be read, or one that is named by its path in a folder."""
        fs = self.remote().fs
        fs.invalidate_cache()
        stream: BinaryIO = fs.open(f"{uri}/{path}" if path else uri, "rb")
        return stream

    def read(self, uri: str, most_bytes: int = -1) -> bytes:
        """The content of a small file."""
        return self.remote().read(uri)  # whole, as a store may refuse a part of an empty object

    def fetch(self, uri: str, path: Path) -> None:
        """Copies a file to a local path. Raises FileNotFoundError if there is none."""
        self.remote().fs.get_file(uri, str(path))

    def write(self, uri: str, content: bytes) -> None:
        """Writes a small file atomically."""
        self.remote().write(uri, content)

    def create(self, uri: str, content: bytes) -> None:
        """Writes a small file that is not there yet, atomically."""
        self.remote().fs.pipe_file(uri, content, mode="create")

    def rename(self, uri: str, new: str) -> None:
        """Copies a file and removes it: most stores cannot rename. Raises FileNotFoundError if there is none."""
        self.remote().fs.mv(uri, new)

    def remove(self, uri: str) -> None:
        """Removes a file, if it is there."""
        self.remote().remove(uri)

    def remove_folder(self, uri: str) -> None:
        """Removes a folder, if it is there; first the manifest."""
        self.remote().clear(uri, first=(MANIFEST_NAME,))

    def exists(self, uri: str) -> bool:
        """Whether a file is there now."""
        return self.remote().exists(uri)

    def names(self, uri: str) -> list[str]:
        """Names of what lies in a folder now."""
        remote = self.remote()
        return sorted(PurePosixPath(entry["name"]).name for entry in remote.entries(remote.fs._strip_protocol(uri)))

    def sizes(self, uri: str) -> dict[str, int]:
        """Sizes in bytes of the files in a folder now, by their paths in it."""
        fs = self.remote().fs
        fs.invalidate_cache()
        folder = fs._strip_protocol(uri)
        return {path.removeprefix(f"{folder}/"): info["size"] for path, info in fs.find(folder, detail=True).items()}

    def folders_with(self, uri: str, name: str) -> list[str]:
        """Addresses of the folders at or below an address that hold a file of that name now, sorted."""
        result = (PurePosixPath(path) for path in self.sizes(uri))
        return sorted("/".join([uri, *path.parent.parts]) for path in result if path.name == name)

    def lock(self, uri: str, timeout_s: float | None = None) -> contextlib.AbstractContextManager[None]:
        """Nothing: there is no lock to hold."""
        return contextlib.nullcontext()

    def staging(self, uri: str) -> Path:
        """A new temporary folder."""
        folder, lock = make_temporary_folder("artifact")
        self._locks[folder] = lock
        return folder

    def discard(self, staged: Path) -> None:
        """Removes a staged folder, or what is left of it."""
        shutil.rmtree(staged, ignore_errors=True)
        lock = self._locks.pop(staged, None)
        if lock is not None:
            os.close(lock)

    def publish(self, staged: Path, uri: str, paths: Sequence[str]) -> None:
        """Uploads a staged folder: first the old manifest goes, last the new one comes."""
        remote = self.remote()
        remote.clear(uri, first=(MANIFEST_NAME,))
        remote.publish({path: staged / path for path in (*paths, MANIFEST_NAME)}, uri, last=(MANIFEST_NAME,))


Files = LocalFiles | StoreFiles
"""Either has the same methods, but for what only one place has: a path, or a file system of fsspec's."""
