"""File operations of a store: on a local file system, or on any other file system of fsspec.

Addresses are whole URIs below the store's root, which the caller checks.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import itertools
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import unquote

from airflow_hops.core.artifacts.artifact import MANIFEST_NAME
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.files import create_atomically, locked, make_private, write_atomically
from airflow_hops.core.processes.remote_files import RemoteFiles, without_markers
from airflow_hops.core.processes.temporary_folders import make_temporary_folder

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FOR_GOOD = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)

STAGING = "!staging-"
"""Part of the name of a staging folder, ``<address>!staging-<random>``, which is in no segment of an id."""

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def exchange(first: Path, second: Path) -> bool:
    """Swaps two paths atomically, see renameat2(2); returns False if the system or file system cannot."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except AttributeError:
        return False
    return bool(rename(_AT_FDCWD, bytes(first), _AT_FDCWD, bytes(second), _RENAME_EXCHANGE) == 0)


def normalized(address: str) -> str:
    """Returns a URI without empty parts of its path and parts ``.``."""
    scheme, _, path = address.partition("://")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return f"{scheme}://{'/' if path.startswith('/') else ''}{'/'.join(parts)}"


class LocalFiles:
    """Operations on a local file system, which can rename and lock.

    Args:
        root: URI of the store, whose folder is created for this user only.
    """

    def __init__(self, root: str) -> None:
        self._root = root

    def path(self, uri: str) -> Path:
        """Returns the local path."""
        # Artifact addresses have only safe characters; only the root may contain percent escapes.
        return Path(unquote(uri.removeprefix("file://")))

    def canonical(self, address: str) -> str:
        """Returns an address in the spelling of the store's root, if it is inside the store, perhaps through links."""
        if not address.startswith("file://"):
            return address
        root, path = str(self.path(self._root)), os.path.normpath(self.path(address))
        if not path.startswith(f"{root}/"):
            root, path = os.path.realpath(root), os.path.realpath(path)
        return f"{self._root}/{path[len(root) + 1 :]}" if path.startswith(f"{root}/") else address

    def open(self, uri: str, path: str = "") -> BinaryIO:
        """Opens a file, or a file in a folder by its path, for reading.

        Raises:
            FileNotFoundError: the file does not exist.
        """
        return (self.path(uri) / path).open("rb")

    def read(self, uri: str, most_bytes: int = -1) -> bytes:
        """Returns the content of a small file, or its first bytes. Raises FileNotFoundError if it does not exist."""
        with self.path(uri).open("rb") as stream:
            return stream.read(most_bytes)

    def write(self, uri: str, content: bytes) -> None:
        """Writes a small file atomically."""
        make_private(self.path(self._root))
        write_atomically(self.path(uri), content)

    def create(self, uri: str, content: bytes) -> None:
        """Creates a small file atomically. Raises FileExistsError if it exists."""
        make_private(self.path(self._root))
        create_atomically(self.path(uri), content)

    def rename(self, uri: str, new: str) -> None:
        """Renames a file. Raises FileNotFoundError if it does not exist."""
        self.path(uri).rename(self.path(new))

    def remove(self, uri: str) -> None:
        """Removes a file if it exists."""
        self.path(uri).unlink(missing_ok=True)

    def remove_folder(self, uri: str) -> None:
        """Removes a folder if it exists; the manifest first, so that it is no longer an artifact."""
        self.remove(f"{uri}/{MANIFEST_NAME}")
        shutil.rmtree(self.path(uri), ignore_errors=True)

    def check(self) -> None:
        """Lists the store's folder or, before the first step makes it, the nearest folder above; creates nothing.

        Raises:
            OSError: it is no folder, or may not be read or written.
        """
        path = self.path(self._root)
        folder = next(each for each in (path, *path.parents) if each.exists())
        next(folder.iterdir(), None)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, "it may not be written", str(folder))

    def exists(self, uri: str) -> bool:
        """Returns whether a file exists."""
        return self.path(uri).is_file()

    def names(self, uri: str) -> list[str]:
        """Returns the names of a folder's entries, sorted; empty if there is not a folder."""
        folder = self.path(uri)
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def stamps(self, uri: str) -> dict[str, str]:
        """Returns for each file of a folder a text that changes when the file does; empty if there is not a folder."""
        stamps = dict[str, str]()
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.path(uri)) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                    status = entry.stat()
                    stamps[entry.name] = f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"
        return stamps

    def folders_with(self, uri: str, name: str) -> list[str]:
        """Returns the addresses of the folders at or below an address that have a file of that name, sorted."""
        folder = self.path(uri)
        result = (place for place, names in self._walk(folder) if name in names)
        return sorted("/".join([uri, *place.relative_to(folder).parts]) for place in result)

    def sizes(self, uri: str, *, staged: bool = False) -> dict[str, int]:
        """Returns the sizes in bytes of the files in a folder, by path; of staged ones only with ``staged``."""
        folder, sizes = self.path(uri), dict[str, int]()
        for place, names in self._walk(folder, staged=staged):
            for path in (place / name for name in names):
                with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                    sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
        return sizes

    def _walk(self, folder: Path, *, staged: bool = False) -> Iterator[tuple[Path, list[str]]]:
        """Yields folders with the names of their files; follows links in the store's root, as to a DAG's other disk."""
        tops = [folder]
        if folder == self.path(self._root) and folder.is_dir():
            tops += [path for path in folder.iterdir() if path.is_symlink() and path.is_dir()]
        for place, folders, names in itertools.chain.from_iterable(map(os.walk, tops)):
            folders[:] = [name for name in folders if staged or STAGING not in name]
            yield Path(place), names

    def modified(self, uri: str) -> datetime:
        """Returns the time of a file's last change. Raises FileNotFoundError if it does not exist."""
        return datetime.fromtimestamp(self.path(uri).stat().st_mtime, UTC)

    def lock(self, uri: str, timeout_s: float | None = None) -> contextlib.AbstractContextManager[None]:
        """Locks a folder against threads and processes."""
        make_private(self.path(self._root))
        return locked(self.path(uri) / ".lock", timeout_s)

    def staging(self, uri: str) -> Path:
        """Creates a staging folder beside the address."""
        # A killed try leaves its staging folder behind; the next one removes it.
        for rubbish in self.staged(uri):
            shutil.rmtree(rubbish, ignore_errors=True)
        target = self.path(uri)
        staged = target.parent / f"{target.name}{STAGING}{uuid.uuid4().hex[:8]}"
        make_private(self.path(self._root))
        staged.mkdir(parents=True)
        return staged

    def discard(self, staged: Path) -> None:
        """Removes a staging folder if it exists."""
        shutil.rmtree(staged, ignore_errors=True)

    def staged(self, uri: str) -> Iterator[Path]:
        """Yields the existing staging folders of an address."""
        target = self.path(uri)
        return target.parent.glob(f"{glob.escape(target.name)}{STAGING}*")

    def publish(self, staged: Path, uri: str, paths: Sequence[str]) -> None:
        """Moves a staging folder to its address, replacing an existing one; readers find all files or none.

        The caller discards the rest of the staging folder. ``paths`` are the folder's files, without the manifest.
        """
        target = self.path(uri)
        if not target.exists():
            staged.rename(target)
        elif not exchange(staged, target):
            replaced = staged.with_name(f"{target.name}{STAGING}replaced-{uuid.uuid4().hex[:8]}")
            target.rename(replaced)
            staged.rename(target)
            shutil.rmtree(replaced, ignore_errors=True)


class StoreFiles:
    """Operations on any other file system of fsspec; the methods are those of :class:`LocalFiles`.

    Args:
        root: URI of the store.
        storage_options: Passed to fsspec.
    """

    def __init__(self, root: str, storage_options: Mapping[str, object]) -> None:
        self._root, self._storage_options = root, storage_options
        self._locks: dict[Path, int] = {}

    def remote(self) -> RemoteFiles:
        """Opens the file system.

        Raises:
            BadInput: fsspec does not know the file system, or a package for it is missing.
        """
        try:
            return RemoteFiles(self._root, self._storage_options)
        except (ImportError, ValueError) as error:
            raise BadInput(f"store {self._root!r}: {error}") from error

    def canonical(self, address: str) -> str:
        """Returns an address in the spelling of the store's root."""
        return normalized(address)

    def open(self, uri: str, path: str = "") -> BinaryIO:
        """Opens a file, or a file in a folder by its path, for reading."""
        fs = self.remote().fs
        fs.invalidate_cache()
        stream: BinaryIO = fs.open(f"{uri}/{path}" if path else uri, "rb")
        return stream

    def read(self, uri: str, most_bytes: int = -1) -> bytes:
        """Returns the content of a small file."""
        return self.remote().read(uri)  # the whole file, since a store may refuse a range of an empty object

    def fetch(self, uri: str, path: Path) -> None:
        """Copies a file to a local path. Raises FileNotFoundError if it does not exist."""
        self.remote().fs.get_file(uri, str(path))

    def upload(self, path: Path, uri: str) -> None:
        """Copies a local file to an address."""
        self.remote().put(path, uri)

    def write(self, uri: str, content: bytes) -> None:
        """Writes a small file atomically."""
        self.remote().write(uri, content)

    def create(self, uri: str, content: bytes) -> None:
        """Creates a small file atomically."""
        self.remote().fs.pipe_file(uri, content, mode="create")

    def rename(self, uri: str, new: str) -> None:
        """Copies and removes a file, as most stores cannot rename. Raises FileNotFoundError if it does not exist."""
        self.remote().fs.mv(uri, new)

    def remove(self, uri: str) -> None:
        """Removes a file if it exists."""
        self.remote().remove(uri)

    def remove_folder(self, uri: str) -> None:
        """Removes a folder if it exists; the manifest first."""
        self.remote().clear(uri, first=(MANIFEST_NAME,))

    def check(self) -> None:
        """Lists the store's folder or, before the first step makes it, the nearest folder above, such as the bucket.

        Raises:
            Exception: of the file system's client; there is no such bucket, or it cannot be reached or read.
        """
        remote = self.remote()
        remote.fs.invalidate_cache()
        folder = remote.root
        while True:
            try:
                remote.fs.ls(folder)
                return
            except FileNotFoundError:
                above = remote.fs._parent(folder)
                if above in ("", folder):
                    raise
                folder = above

    def exists(self, uri: str) -> bool:
        """Returns whether a file exists."""
        return self.remote().exists(uri)

    def names(self, uri: str) -> list[str]:
        """Returns the names of a folder's entries."""
        remote = self.remote()
        return sorted(PurePosixPath(entry["name"]).name for entry in remote.entries(remote.fs._strip_protocol(uri)))

    def stamps(self, uri: str) -> dict[str, str]:
        """Returns for each file of a folder a text that changes when the file does: time, size or checksum."""
        remote = self.remote()
        listed = remote.entries(remote.fs._strip_protocol(uri))
        return {PurePosixPath(entry["name"]).name: repr(sorted(entry.items(), key=str)) for entry in listed}

    def sizes(self, uri: str, *, staged: bool = True) -> dict[str, int]:
        """Returns the sizes in bytes of the files in a folder, by their paths in it, including staged ones."""
        fs = self.remote().fs
        fs.invalidate_cache()
        folder = fs._strip_protocol(uri)
        listed = without_markers(fs.find(folder, detail=True).values())
        return {entry["name"].removeprefix(f"{folder}/"): entry["size"] for entry in listed}

    def folders_with(self, uri: str, name: str) -> list[str]:
        """Returns the addresses of the folders at or below an address that have a file of that name, sorted."""
        result = (PurePosixPath(path) for path in self.sizes(uri))
        return sorted("/".join([uri, *path.parent.parts]) for path in result if path.name == name)

    def modified(self, uri: str) -> datetime:
        """Returns the time of a file's last change. Raises FileNotFoundError if it does not exist."""
        time: datetime = self.remote().fs.modified(uri)
        return time if time.tzinfo else time.replace(tzinfo=UTC)

    def lock(self, uri: str, timeout_s: float | None = None) -> contextlib.AbstractContextManager[None]:
        """No-op: remote stores have no lock."""
        return contextlib.nullcontext()

    def staging(self, uri: str) -> Path:
        """Creates a temporary folder."""
        folder, lock = make_temporary_folder("artifact")
        self._locks[folder] = lock
        return folder

    def discard(self, staged: Path) -> None:
        """Removes a staging folder if it exists."""
        shutil.rmtree(staged, ignore_errors=True)
        lock = self._locks.pop(staged, None)
        if lock is not None:
            os.close(lock)

    def publish(
        self, staged: Path, uri: str, paths: Sequence[str], *, parts: str = "", uploaded: Sequence[str] = ()
    ) -> None:
        """Uploads a staging folder: removes the old manifest first, and uploads the new one last.

        ``uploaded`` are files in another folder of the store, ``parts``, which become the artifact's too.
        """
        remote = self.remote()
        remote.clear(uri, first=(MANIFEST_NAME,))
        for path in uploaded:
            remote.move(f"{parts}/{path}", f"{uri}/{path}")
        remote.publish({path: staged / path for path in (*paths, MANIFEST_NAME)}, uri, last=(MANIFEST_NAME,))


Files = LocalFiles | StoreFiles
"""Both have the same methods, except for local paths and the file system of fsspec."""


@contextmanager
def reaching_store(root: str) -> Iterator[None]:
    """Names the store, and the field with its address, in errors of its file system.

    Raises:
        BadInput: the store does not exist or cannot be written.
        HopsError: another error, possibly temporary.
    """
    try:
        yield
    except HopsError:
        raise
    except Exception as error:  # whatever the file system's own client raises
        number = error.errno if isinstance(error, OSError) else None
        if number in _FULL:
            raise
        for_good = number in _FOR_GOOD or isinstance(error, PermissionError | FileNotFoundError)
        raise (BadInput if for_good else HopsError)(
            f"the artifact store {root} cannot be used ({type(error).__name__}: {error}); correct the field 'store' "
            "of the connection of type hops, or '[hops] store', its 'storage_options', or the rights to that place"
        ) from error
