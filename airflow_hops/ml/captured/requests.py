"""Reads the captured requests of a model, on this machine or in any store that fsspec opens."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from airflow_hops.core.capture_layout import IS_SHADOW, folder_name, rows_file_pattern
from airflow_hops.core.errors import ConnectionFieldError, HopsError
from airflow_hops.core.processes.remote_files import open_url
from airflow_hops.core.steps.shared_places import capture_path, storage_options_of
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.captured.feedback import read_feedback
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.rows_file import RowsFile

log = logging.getLogger(__name__)


class CapturedRequests:
    """Files of a model below a capture base path.

    Args:
        base_path: The server's ``--capture_base_path``, as this machine sees it: a folder, or a URL that fsspec opens.
        model_name: Model name.
        storage_options: Passed to fsspec.

    Raises:
        BadInput: the kind of store is unknown, or its library is not installed.
    """

    def __init__(self, base_path: str, model_name: str, storage_options: Mapping[str, object] | None = None) -> None:
        self._options = dict(storage_options or {})
        self._url = f"{base_path.rstrip('/')}/{folder_name(model_name)}"
        try:
            self._fs, self._folder = open_url(self._url, self._options)
        except (ImportError, ValueError) as error:
            raise ConnectionFieldError("serving_capture_path", f" is {base_path!r}: {error}") from error

    @classmethod
    def of(cls, services: Mapping[str, str], store: ArtifactStore, model_name: str) -> CapturedRequests | None:
        """Returns the captured requests that the connection names; None if it names none.

        Raises:
            BadInput: a field of the connection is invalid.
        """
        base_path = capture_path(services)
        if base_path is None:
            return None
        return cls(base_path, model_name, storage_options_of(services, base_path, store))

    @property
    def is_remote(self) -> bool:
        """Whether the files are in a store that other hosts reach, not in a folder of this machine."""
        return not isinstance(self._fs, LocalFileSystem)

    def __str__(self) -> str:
        return self._url

    def names(self, version: int | None = None) -> list[str]:
        """Returns names of the files of rows, oldest first, of one version that scored, or of all that clients got.

        Raises:
            HopsError: the store does not answer.
        """
        pattern = rows_file_pattern(version)
        with self._reached():
            self._fs.invalidate_cache()
            try:
                listed = self._fs.ls(self._folder, detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
        names = sorted(name for name in (path.rsplit("/", 1)[-1] for path in listed) if fnmatchcase(name, pattern))
        return names if version is not None else [name for name in names if not IS_SHADOW.search(name)]

    def fetch(self, names: Sequence[str], scratch: Path) -> list[RowsFile]:
        """Returns files of :meth:`names` on this machine: themselves, or copies in ``scratch``.

        Raises:
            HopsError: the store does not answer, or a file was removed meanwhile.
        """
        if not self.is_remote:
            with self._reached():
                return [RowsFile.at(Path(self._folder) / name) for name in names]
        scratch.mkdir(parents=True, exist_ok=True)
        with self._reached():
            self._fs.get([f"{self._folder}/{name}" for name in names], [str(scratch / name) for name in names])
        copies = [RowsFile.at(scratch / name, f"{self._url}/{name}") for name in names]
        if copies:
            size = sum(copy.size_bytes for copy in copies)
            log.info("%d captured files, %.1f MB, copied from %s", len(copies), size / 1e6, self._url)
        return copies

    def files(self, names: Sequence[str]) -> list[RowsFile]:
        """Returns the paths of files of :meth:`names`.

        Raises:
            HopsError: the store does not answer, or a file was removed meanwhile.
        """
        with self._reached():
            sizes = {
                entry["name"].rpartition("/")[2]: entry["size"] for entry in self._fs.ls(self._folder, detail=True)
            }
            return [self._file(name, sizes[name]) for name in names]

    def footer(self, name: str) -> Any:
        """Returns the ``pyarrow.parquet.FileMetaData`` of a file of :meth:`names`; errors as of :meth:`table`."""
        file = self._file(name)
        with self._reached(file.origin):
            return scan.footer(file)

    def table(self, name: str, columns: Sequence[str] | None = None) -> Any:
        """Reads columns of a file of :meth:`names`, by default all, as an Arrow table.

        Raises:
            HopsError: the store does not answer, or the file was removed meanwhile.
            BadInput: it is damaged, or lacks a column.
        """
        file = self._file(name)
        with self._reached(file.origin):
            return scan.table([file], columns)

    def _file(self, name: str, size_bytes: int = 0) -> RowsFile:
        return RowsFile(f"{self._folder}/{name}", f"{self._url}/{name}", size_bytes, self._fs)

    def feedback(self) -> Any:
        """Reads the labels (:func:`~airflow_hops.ml.captured.feedback.read_feedback`).

        Raises:
            HopsError: the store does not answer.
            BadInput: a file is damaged.
        """
        with self._reached():
            return read_feedback(self._url, self._options)

    @contextlib.contextmanager
    def _reached(self, origin: str | None = None) -> Iterator[None]:
        """Adds the place to errors of a store's library, which may be of any class."""
        try:
            yield
        except HopsError:
            raise
        except Exception as error:
            raise HopsError(f"{origin or self._url}: cannot be read: {type(error).__name__}: {error}") from error
