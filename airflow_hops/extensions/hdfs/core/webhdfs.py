"""HDFS over HTTP for fsspec, with renames that replace a file or fail, and whole files."""

from __future__ import annotations

import errno
from datetime import UTC, datetime

from fsspec.implementations.webhdfs import WebHDFS

from airflow_hops.extensions.hdfs.core.renaming import pipe_by_renaming


class WebHdfsFileSystem(WebHDFS):
    """Files in HDFS; the arguments are those of fsspec's own class, whose renames ignore that the target exists."""

    writes_atomically = True

    def mv(self, path1: str, path2: str, overwrite: bool = True, **options: object) -> None:
        """Renames a file or folder atomically. Raises FileExistsError if the target exists, without ``overwrite``."""
        self.makedirs(self._parent(path2), exist_ok=True)  # as in object stores, which have no folders
        target, option = self._strip_protocol(path2), "OVERWRITE" if overwrite else "NONE"
        try:
            self._call("RENAME", method="put", path=path1, destination=target, renameoptions=option)
        except RuntimeError as error:
            if "already exists" in str(error):
                raise FileExistsError(errno.EEXIST, str(error), path2) from error
            raise

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: object) -> None:
        """Writes a file atomically. Raises FileExistsError if it exists in mode ``create``."""
        pipe_by_renaming(self, path, value, overwrite=mode != "create")

    def modified(self, path: str) -> datetime:
        """Returns the time of a file's last change."""
        return datetime.fromtimestamp(self.info(path)["modificationTime"] / 1000, UTC)
