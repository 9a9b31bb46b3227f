"""A file of rows, on this machine or in any store that fsspec opens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_hops.core.processes.remote_files import open_url
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import File
from airflow_hops.ml.readers.raw_file import explained


@dataclass(frozen=True)
class RowsFile:
    """File of rows: Parquet, or a stream of Arrow (``.arrow``).

    Attributes:
        path: Path in its file system.
        origin: Address for messages; ``path`` may be of a copy.
        size_bytes: Size.
        fs: File system of fsspec; None for this machine's.
    """

    path: str
    origin: str
    size_bytes: int
    fs: Any = None

    @classmethod
    def at(cls, path: Path, origin: str | None = None) -> RowsFile:
        """Returns a file on this machine."""
        return cls(str(path), origin or str(path), path.stat().st_size)

    @classmethod
    def stored(cls, file: File) -> RowsFile:
        """Returns a file of an artifact."""
        if isinstance(file, Path):
            return cls.at(file)
        fs, path = open_url(str(file), file.store.storage_options)
        return cls(path, str(file), file.entry.size_bytes, fs)

    @property
    def name(self) -> str:
        """File name; captured files sort by time."""
        return self.path.rpartition("/")[2]

    @property
    def is_stream(self) -> bool:
        """Whether it is a stream of Arrow."""
        return self.path.endswith(".arrow")

    def open(self) -> Any:
        """Opens the file for reading; a context manager."""
        return pa.OSFile(self.path) if self.fs is None else self.fs.open(self.path, "rb")

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields columns in this order, in batches of bounded size.

        Raises:
            BadInput: the file is damaged, or lacks a column.
        """
        if not self.is_stream:
            yield from scan.batches(self, columns)
            return
        with explained(self.origin), self.open() as stream:
            for batch in pa.ipc.open_stream(stream):
                yield batch.from_arrays([batch[name] for name in columns], list(columns))

    def __str__(self) -> str:
        return self.origin
