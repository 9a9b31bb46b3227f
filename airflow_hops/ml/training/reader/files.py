"""The files of a split: local ones are read in place, others through a cache of complete files."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.names import check_known
from airflow_hops.core.processes.files import locked
from airflow_hops.core.processes.remote_files import open_url
from airflow_hops.core.sources.source_files import list_files
from airflow_hops.core.sources.sources import Source, SourceFile
from airflow_hops.core.store.private_folders import cache_folder, private_folder
from airflow_hops.ml.readers.rows_file import RowsFile

# The cache: a file is complete when it has its name; it is fetched as <name>.part under one of a fixed number of locks,
# and renamed. The lock .lock-room serializes making room, which removes the files that were used longest ago (mtime). A
# reader opens a file immediately after fetching it: an open file stays readable when it is removed.

CACHE_BYTES = 50 << 30
_LOCKS = 64
_PART = ".part"
_SUFFIXES = {"parquet": (".parquet",), "tfrecord": (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz")}


class SplitFiles:
    """The files of one format below a folder, sorted by name.

    Args:
        source: Folder, file or glob: a local path, or any URI that fsspec opens.
        format: ``parquet`` or ``tfrecord``; None prefers Parquet.
        storage_options: Options for fsspec.
        cache_dir: Folder for fetched remote files.
        cache_bytes: Maximum size of that folder.

    Attributes:
        format: Format of the files.

    Raises:
        BadInput: there are none.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        format: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | Path | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        if format is not None:
            check_known("format", format, _SUFFIXES)
        self.source = str(source)
        uri = self.source if "://" in self.source else str(Path(source).expanduser().absolute())
        try:
            self._fs, result = list_files(Source(uri, storage_options=storage_options or {}))
        except BadInput as error:
            raise BadInput(f"{error}; expected the examples of a split{_neighbours(uri, storage_options)}") from None
        self.format, self._files = _of_one_format(self.source, result, format)
        self._is_local = "file" in ([self._fs.protocol] if isinstance(self._fs.protocol, str) else self._fs.protocol)
        self.cache_dir = Path(cache_dir or private_folder(cache_folder() / "files"))
        self._cache = None if self._is_local else FileCache(self._fs, self.cache_dir, cache_bytes)

    def __len__(self) -> int:
        return len(self._files)

    def name(self, number: int) -> str:
        """Returns a file's name, for errors."""
        return self._files[number].name

    def fetched(self, number: int) -> RowsFile:
        """Returns a file on this machine, after fetching it if it is remote.

        Open it immediately: another process may clear the cache at any time.
        """
        file = self._files[number]
        path = file.path if self._cache is None else str(self._cache.fetch(file))
        return RowsFile(path, file.name, file.size_bytes)

    def stored(self, number: int) -> RowsFile:
        """Returns a file in place, to read some of its bytes; from the cache if it has been fetched."""
        file = self._files[number]
        if self._cache is None or self._cache.find(file) is not None:
            return self.fetched(number)
        return RowsFile(file.path, file.name, file.size_bytes, self._fs)

    def beside(self, name: str) -> bytes | None:
        """Returns the content of a small file in the folder of the first file; None if it does not exist."""
        try:
            content: bytes = self._fs.cat_file(f"{self._files[0].path.rpartition('/')[0]}/{name}")
        except FileNotFoundError:
            return None
        return content

    def version(self, number: int) -> str:
        """Returns a version string that changes when the file does."""
        file = self._files[number]
        return f"{file.name} {file.size_bytes} {file.version}"


def split_names(root: str | Path, *, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Lists the folders in a folder of examples; none if it does not exist.

    Args:
        root: A local path, or any URI that fsspec opens.
        storage_options: Options for fsspec.

    Example:
        >>> import pyarrow as pa, pyarrow.parquet as pq
        >>> from pathlib import Path
        >>> from airflow_hops import open_split, row_count, split_names
        >>> Path("examples/train").mkdir(parents=True)
        >>> pq.write_table(pa.table({"km": [1.0, 2.0, 3.0], "late": [0, 1, 0]}), "examples/train/part.parquet")
        >>> split_names("examples")
        ['train']
    """
    try:
        fs, path = open_url(str(root), storage_options)
        fs.invalidate_cache()
        result = fs.ls(path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(item["name"].rstrip("/").rpartition("/")[2] for item in result if item["type"] == "directory")


def _of_one_format(
    source: str, result: tuple[SourceFile, ...], wanted: str | None
) -> tuple[str, tuple[SourceFile, ...]]:
    for format in [wanted] if wanted else _SUFFIXES:
        if files := tuple(file for file in result if file.path.endswith(_SUFFIXES[format])):
            return format, files
    suffixes = ", ".join(suffix for format in ([wanted] if wanted else _SUFFIXES) for suffix in _SUFFIXES[format])
    raise BadInput(f"{source}: there are no files that end in {suffixes}; expected the examples of a split")


def _neighbours(uri: str, storage_options: Mapping[str, Any] | None) -> str:
    """Lists the existing splits, for the error about a missing one."""
    parent = uri.rstrip("/").rpartition("/")[0]
    try:
        names = split_names(parent, storage_options=storage_options)
    except (OSError, ImportError, ValueError):
        return ""
    return f"; {parent} holds {', '.join(names)}" if names else ""


class FileCache:
    """A folder of fetched files of at most ``max_bytes``, which processes share.

    A file is named by its address, size and version, so that a changed file is fetched again. The fetching process
    holds a lock, which is released if it dies; the next process overwrites its partial file.
    """

    def __init__(self, fs: Any, folder: str | Path, max_bytes: int) -> None:
        self._fs, self._folder, self._max_bytes = fs, Path(folder), max_bytes

    def find(self, file: SourceFile) -> Path | None:
        """Returns the local copy, if it exists."""
        path = self._path(file)
        try:
            if path.stat().st_size != file.size_bytes:
                return None
            now_ns = time.time_ns()  # the kernel's own "now" may be some milliseconds old
            os.utime(path, ns=(now_ns, now_ns))  # marks the time of the last use
        except FileNotFoundError:
            return None
        return path

    def fetch(self, file: SourceFile) -> Path:
        """Returns the local copy, after fetching it if it does not exist.

        Raises:
            BadInput: the file is larger than the maximum size of the cache.
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
            # A fixed number of locks, which need not be removed.
            with locked(self._folder / f".lock-{int(path.name[:8], 16) % _LOCKS:02d}"):
                if (result := self.find(file)) is not None:
                    return result
                with locked(self._folder / ".lock-room"):
                    self._make_room(file.size_bytes)
                part = path.with_name(path.name + _PART)
                try:
                    self._fs.get_file(file.path, str(part))
                    source = Source(file.name, storage_options=self._fs.storage_options)
                    now = list_files(source)[1][0]
                    size = part.stat().st_size
                    if size != file.size_bytes or now.version != file.version:
                        raise HopsError(
                            f"{file.name} was changed while it was fetched: got {size} bytes, "
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
