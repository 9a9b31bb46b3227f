"""Random access to the files that :class:`~airflow_hops.extensions.images.PackOperator` has packed into tar shards."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.processes.remote_files import open_url
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.rows_file import RowsFile

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
            HopsError: it differs from the packed file.
        """
        shard.seek(self.offset)
        content = shard.read(self.size)
        if hashlib.sha256(content).digest() != self.sha256:
            raise HopsError(f"{self.shard}: the content of {self.path!r} is damaged (SHA-256 differs); pack it again")
        return content


class PackedFiles:
    """The packed files as a sequence of ``(path, content)``, read one by one at any position.

    It is a map-style data set of PyTorch, for ``torch.utils.data.DataLoader``; for ``tf.data``, use
    ``tf.data.Dataset.from_generator``. Each content is compared with its checksum. Forked processes, and those that
    unpickle it, open the shards themselves.

    Args:
        folder: Folder or address of the artifact ``packed_files``.
        storage_options: fsspec options of its store.

    Raises:
        BadInput: the folder has no index.
    """

    def __init__(self, folder: str | Path, storage_options: Mapping[str, object] | None = None) -> None:
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
        BadInput: it does not exist, is another table, or a line leads out of a shard or of the folder.
    """
    paths = sorted(fs.glob(f"{root}/{INDEX}/*.parquet"))
    if not paths:
        raise BadInput(f"{root}: there is no {INDEX}/*.parquet; expected an artifact of kind packed_files")
    sizes = {entry["name"].rpartition("/")[2]: entry["size"] for entry in _listed(fs, f"{root}/{SHARDS}")}
    shards = pa.table(
        {"shard": pa.array(list(sizes), pa.string()), "shard_bytes": pa.array(list(sizes.values()), pa.int64())}
    )
    tables = []
    for path in paths:
        tables.append(scan.table([RowsFile(path, path, 0, fs)]))
        if not tables[-1].schema.equals(INDEX_SCHEMA):
            raise BadInput(f"{path}: its columns are {tables[-1].schema.names}, expected {INDEX_SCHEMA.names}")
        _check_lines(tables[-1], shards, path)
    return pa.concat_tables(tables)


def _check_lines(index: pa.Table, shards: pa.Table, where: str) -> None:
    """Checks that each line names a part of a shard, and a path below the source."""
    shard_bytes = shards["shard_bytes"].take(pc.index_in(index["shard"], shards["shard"]))
    end = pc.add(index["offset"], index["size"])  # wraps around to below the offset if it is too large
    is_part = pc.and_(pc.greater_equal(index["offset"], 0), pc.greater_equal(end, index["offset"]))
    is_inside = pc.and_(is_part, pc.less_equal(end, shard_bytes))
    is_below = pc.invert(pc.match_substring_regex(index["path"], r"^/|(^|/)\.\.(/|$)"))
    wrong = pc.invert(pc.fill_null(pc.and_(is_inside, is_below), False))
    if (row := pc.index(wrong, True).as_py()) >= 0:
        line = index.slice(row, 1).select(["path", "shard", "offset", "size"]).to_pylist()[0]
        raise BadInput(
            f"{where}, row {row}: {line} is not a part of a shard with a path below the source; expected an index that "
            "PackOperator wrote: pack the files again"
        )


def _listed(fs: Any, folder: str) -> list[Any]:
    try:
        return [entry for entry in fs.ls(folder, detail=True) if entry["type"] == "file"]
    except FileNotFoundError:
        return []


def is_packed(names: Sequence[str]) -> bool:
    """Returns whether a folder of files with these paths below it holds packed files."""
    return any(name.startswith(f"{INDEX}/") and name.endswith(".parquet") for name in names) and any(
        name.startswith(f"{SHARDS}/") and name.endswith(".tar") for name in names
    )
