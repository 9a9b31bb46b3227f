"""What a store asks of the place that it lies in: a local file system, or anything else that fsspec opens.

Addresses are whole URIs below the store's root; whoever calls has checked that they are.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from urllib.parse import unquote

from airflow_hops.artifacts import MANIFEST_NAME, BadInput, FileEntry
from airflow_hops.store.exchange import exchange


class LocalFiles:
    """On a local file system, which renames and locks."""

    def path(self, uri: str) -> Path:
        """Where it lies."""
        # Artifact addresses are made of safe characters; only the root may hold percent escapes.
        return Path(unquote(uri.removeprefix("file://")))

    def open(self, uri: str, path: str = "") -> BinaryIO:
        """Opens a file to be read, or one that is named by its path in a folder.

        Raises:
            FileNotFoundError: there is none.
        """
        return (self.path(uri) / path).open("rb")

    def read(self, uri: str) -> bytes:
        """The content of a small file. Raises FileNotFoundError where there is none."""
        return self.path(uri).read_bytes()

    def write(self, uri: str, content: bytes) -> None:
        """Writes a small file atomically."""
        with self._written(uri, content) as (staged, path):
            staged.replace(path)

    def create(self, uri: str, content: bytes) -> None:
        """Writes a small file that is not there yet, atomically. Raises FileExistsError where it is there."""
        with self._written(uri, content) as (staged, path):
            os.link(staged, path)

    @contextlib.contextmanager
    def _written(self, uri: str, content: bytes) -> Iterator[tuple[Path, Path]]:
        path = self.path(uri)
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            staged.write_bytes(content)
            yield staged, path
        finally:
            staged.unlink(missing_ok=True)

    def remove(self, uri: str) -> None:
        """Removes a file, if it is there."""
        self.path(uri).unlink(missing_ok=True)

    def exists(self, uri: str) -> bool:
        """Whether a file is there now."""
        return self.path(uri).is_file()

    def names(self, uri: str) -> list[str]:
        """Names of what lies in a folder now, sorted; none where there is no folder."""
        folder = self.path(uri)
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def has(self, uri: str, entries: Iterable[FileEntry]) -> bool:
        """Whether a folder has all of these files now, by their sizes."""
        return has_files(self.path(uri), entries)

    @contextlib.contextmanager
    def lock(self, uri: str) -> Iterator[None]:
        """Holds a lock on a folder, against threads and processes."""
        folder = self.path(uri)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def staging(self, uri: str) -> Path:
        """A new folder, beside the address, for what is to be published there."""
        # A try that was killed leaves its staging directory; the next one clears it.
        for rubbish in self.staged(uri):
            shutil.rmtree(rubbish, ignore_errors=True)
        target = self.path(uri)
        staged = target.parent / f"{target.name}.staging-{uuid.uuid4().hex[:8]}"
        staged.mkdir(parents=True)
        return staged

    def staged(self, uri: str) -> Iterator[Path]:
        """The folders that are there now for what is to be published at an address."""
        target = self.path(uri)
        return target.parent.glob(f"{glob.escape(target.name)}.staging-*")

    def publish(self, staged: Path, uri: str, paths: Sequence[str]) -> None:
        """Puts a staged folder at its address, whatever lies there: a reader finds all of a manifest's files, or none.

        Args:
            staged: Of :meth:`staging`; what is left of it is the caller's to remove.
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


class RemoteFiles:
    """On anything else that fsspec opens; the methods are those of :class:`LocalFiles`.

    Args:
        root: URI of the store.
        storage_options: Passed to fsspec.
    """

    def __init__(self, root: str, storage_options: Mapping[str, Any]) -> None:
        self._root, self._storage_options = root, storage_options

    def fs(self) -> Any:
        """The file system, as fsspec has it.

        Raises:
            BadInput: fsspec knows no such file system, or a package for it is missing.
        """
        import fsspec

        try:
            return fsspec.url_to_fs(self._root, **self._storage_options)[0]
        except (ImportError, ValueError) as error:
            raise BadInput(f"store {self._root!r}: {error}") from error

    def _fresh(self) -> Any:
        """The file system, with no listing remembered."""
        fs = self.fs()
        fs.invalidate_cache()
        return fs

    def open(self, uri: str, path: str = "") -> BinaryIO:
        """Opens a file to be read, or one that is named by its path in a folder."""
        stream: BinaryIO = self._fresh().open(f"{uri}/{path}" if path else uri, "rb")
        return stream

    def read(self, uri: str) -> bytes:
        """The content of a small file."""
        content: bytes = self.fs().cat_file(uri)
        return content

    def fetch(self, uri: str, path: Path) -> None:
        """Copies a file to a local path. Raises FileNotFoundError where there is none."""
        self.fs().get_file(uri, str(path))

    def write(self, uri: str, content: bytes) -> None:
        """Writes a small file atomically."""
        self.fs().pipe_file(uri, content)

    def create(self, uri: str, content: bytes) -> None:
        """Writes a small file that is not there yet, atomically."""
        self.fs().pipe_file(uri, content, mode="create")

    def remove(self, uri: str) -> None:
        """Removes a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.fs().rm_file(uri)

    def exists(self, uri: str) -> bool:
        """Whether a file is there now."""
        return bool(self._fresh().exists(uri))

    def names(self, uri: str) -> list[str]:
        """Names of what lies in a folder now."""
        fs = self._fresh()
        try:
            return sorted(PurePosixPath(path).name for path in fs.ls(fs._strip_protocol(uri), detail=False))
        except FileNotFoundError:
            return []

    def has(self, uri: str, entries: Iterable[FileEntry]) -> bool:
        """Whether a folder has all of these files now, by their sizes."""
        fs = self._fresh()
        folder = fs._strip_protocol(uri)
        found = {path: info["size"] for path, info in fs.find(folder, detail=True).items()}
        return all(found.get(f"{folder}/{entry.path}") == entry.size_bytes for entry in entries)

    def lock(self, uri: str) -> contextlib.AbstractContextManager[None]:
        """Nothing: there is no lock to hold."""
        return contextlib.nullcontext()

    def staging(self, uri: str) -> Path:
        """A new temporary folder."""
        return Path(tempfile.mkdtemp(prefix="hops-artifact-"))

    def publish(self, staged: Path, uri: str, paths: Sequence[str]) -> None:
        """Uploads a staged folder: first the old manifest goes, last the new one comes."""
        fs = self._fresh()
        if fs.exists(uri):
            if fs.exists(f"{uri}/{MANIFEST_NAME}"):
                fs.rm_file(f"{uri}/{MANIFEST_NAME}")
            with contextlib.suppress(FileNotFoundError):  # the manifest was all there was
                fs.rm(uri, recursive=True)
        for path in (*paths, MANIFEST_NAME):
            fs.put_file(str(staged / path), f"{uri}/{path}")
        fs.invalidate_cache()


def has_files(folder: Path, entries: Iterable[FileEntry]) -> bool:
    """Whether a local folder is there with all of these files, by their sizes."""
    for entry in entries:
        path = folder / entry.path
        if not path.is_file() or path.stat().st_size != entry.size_bytes:
            return False
    return folder.is_dir()


Files = LocalFiles | RemoteFiles
"""Either has the same methods, but for what only one place has: a path, or a file system of fsspec's."""
