"""The files of a split: read in place if they are local, otherwise through a cache of whole files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.sources import Source, SourceFile
from airflow_hops.core.store.private_folders import cache_folder, private_folder
from airflow_hops.core.store.source_files import list_files
from airflow_hops.ml.training.reader.cache import FileCache

CACHE_BYTES = 50 << 30
_SUFFIXES = {"parquet": (".parquet",), "tfrecord": (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz")}


class SplitFiles:
    """The files of one format below a folder, sorted by name.

    Args:
        source: Folder, file or glob: a local path, or any URI that fsspec opens.
        format: ``parquet`` or ``tfrecord``; None takes Parquet if there are files of both.
        storage_options: For fsspec.
        cache_dir: Folder for fetched remote files.
        cache_bytes: Maximum size of that folder.

    Attributes:
        source: As given.
        format: Of the files.
        cache_dir: Folder for fetched remote files.

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
        if format is not None and format not in _SUFFIXES:
            raise BadInput(f"format is {format!r}, expected one of {', '.join(_SUFFIXES)}")
        self.source = str(source)
        uri = self.source if "://" in self.source else str(Path(source).expanduser().absolute())
        try:
            self._fs, result = list_files(Source(uri, storage_options=storage_options or {}))
        except BadInput as error:
            raise BadInput(f"{error}; expected the examples of a split{_neighbours(uri, storage_options)}") from None
        self.format, self._files = _of_one_format(self.source, result, format)
        self._is_local = "file" in ([self._fs.protocol] if isinstance(self._fs.protocol, str) else self._fs.protocol)
        self.cache_dir = Path(cache_dir or default_cache_dir())
        self._cache = None if self._is_local else FileCache(self._fs, self.cache_dir, cache_bytes)

    def __len__(self) -> int:
        return len(self._files)

    def name(self, number: int) -> str:
        """A file's name, for messages."""
        return self._files[number].name

    def size_bytes(self, number: int) -> int:
        """A file's size."""
        return self._files[number].size_bytes

    def local(self, number: int) -> str:
        """Returns a local path of a file, after fetching it if it is remote.

        Another process may clear the cache at any time: open it at once.
        """
        file = self._files[number]
        return file.path if self._cache is None else str(self._cache.fetch(file))

    def open(self, number: int) -> Any:
        """Opens a file in place, to read some of its bytes; from the cache if it is there already."""
        file = self._files[number]
        retained = file.path if self._cache is None else self._cache.find(file)
        return self._fs.open(file.path, "rb") if retained is None else Path(retained).open("rb")

    def beside(self, name: str) -> bytes | None:
        """Returns the content of a small file in the folder of the first file; None if there is none."""
        try:
            content: bytes = self._fs.cat_file(f"{self._files[0].path.rpartition('/')[0]}/{name}")
        except FileNotFoundError:
            return None
        return content

    def version(self, number: int) -> str:
        """A version string that changes when the file does."""
        file = self._files[number]
        return f"{file.name} {file.size_bytes} {file.version}"


def default_cache_dir() -> Path:
    """Folder of fetched files, in this user's cache below ``HOPS_LOCAL_CACHE`` or the temporary folder."""
    return private_folder(cache_folder() / "files")


def split_names(root: str | Path, *, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Returns the names of the folders in a folder of examples; none if it does not exist.

    Args:
        root: A local path, or any URI that fsspec opens.
        storage_options: For fsspec.
    """
    import fsspec

    try:
        fs, path = fsspec.url_to_fs(str(root), **(storage_options or {}))
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
    """For a message: the splits that there are beside one that there is not."""
    parent = uri.rstrip("/").rpartition("/")[0]
    try:
        names = split_names(parent, storage_options=storage_options)
    except (OSError, ImportError, ValueError):
        return ""
    return f"; {parent} holds {', '.join(names)}" if names else ""
