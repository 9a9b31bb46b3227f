"""Random access to the files that :class:`~airflow_hops.operators.PackOperator` has packed into tar shards."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.core.processes.remote_files import open_url

SHARDS, INDEX = "shards", "index"
INDEX_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("shard", pa.string()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("sha256", pa.binary(32)),
    ]
)
"""Columns of the index: each file's path below the source, and the place and SHA-256 of its content in a shard."""


_OPEN_SHARDS = 64


@dataclass(frozen=True)
class PackedFile:
    """A line of the index; attributes as the columns of :data:`INDEX_SCHEMA`."""

    path: str
    shard: str
    offset: int
    size: int
    sha256: bytes

    def read(self, shard: BinaryIO) -> bytes:
        """Returns the content, read from the opened shard.

        Raises:
            HopsError: it is not what was packed.
        """
        shard.seek(self.offset)
        content = shard.read(self.size)
        if hashlib.sha256(content).digest() != self.sha256:
            raise HopsError(f"{self.shard}: the content of {self.path!r} is damaged (SHA-256 differs); pack it again")
        return content


class PackedFiles:
    """The packed files as a sequence of ``(path, content)``, read one by one at any position.

    It is a map-style data set of PyTorch, for ``torch.utils.data.DataLoader``; for ``tf.data``, use
    ``tf.data.Dataset.from_generator``. Each content is compared with its checksum. Processes that are forked, and those
    that get it pickled, open the shards anew.

    Args:
        folder: Folder or address of the artifact ``packed_files``.
        storage_options: fsspec options of its store.

    Raises:
        BadInput: there is no index in the folder.
    """

    def __init__(self, folder: str | Path, storage_options: Mapping[str, Any] | None = None) -> None:
        self._fs, self._root = open_url(str(folder), storage_options or {})
        self.index = read_index(self._fs, self._root).combine_chunks()
        self._opened: dict[tuple[int, str], BinaryIO] = {}

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, position: int) -> tuple[str, bytes]:
        if not -len(self) <= position < len(self):
            raise IndexError(position)
        file = PackedFile(**self.index.slice(position % len(self), 1).to_pylist()[0])
        opened = os.getpid(), file.shard  # a forked process must not move the position of its parent's file
        if opened not in self._opened:
            if len(self._opened) == _OPEN_SHARDS:
                del self._opened[next(iter(self._opened))]
            self._opened[opened] = self._fs.open(f"{self._root}/{SHARDS}/{file.shard}", "rb")
        return file.path, file.read(self._opened[opened])

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": {}}


def read_index(fs: Any, root: str) -> pa.Table:
    """Returns the index of packed files below a folder, in the order of the shards.

    Raises:
        BadInput: there is none, or it is another table.
    """
    paths = sorted(fs.glob(f"{root}/{INDEX}/*.parquet"))
    if not paths:
        raise BadInput(f"{root}: there is no {INDEX}/*.parquet; expected an artifact of kind packed_files")
    tables = []
    for path in paths:
        with fs.open(path, "rb") as file:
            tables.append(pq.read_table(file))
        if not tables[-1].schema.equals(INDEX_SCHEMA):
            raise BadInput(f"{path}: its columns are {tables[-1].schema.names}, expected {INDEX_SCHEMA.names}")
    return pa.concat_tables(tables)


def is_packed(names: Sequence[str]) -> bool:
    """Returns whether a folder of files with these paths below it holds packed files."""
    return any(name.startswith(f"{INDEX}/") and name.endswith(".parquet") for name in names) and any(
        name.startswith(f"{SHARDS}/") and name.endswith(".tar") for name in names
    )
