"""Reads IDX files, the format of MNIST and Fashion-MNIST: a header of big-endian integers, then the values, row by row.

Source: https://yann.lecun.org/exdb/mnist/ ("File formats for the MNIST database").
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from airflow_hops.core.errors import BadInput

_UINT8 = 0x08
_GZIP = b"\x1f\x8b"


def is_idx_file(fs: object, path: str) -> bool:
    """Returns whether a file, optionally compressed with gzip, begins like an IDX file."""
    try:
        with _stream(fs, path) as stream:
            return _is_idx(stream.read(4))
    except BadInput:
        return False


def _is_idx(head: bytes) -> bool:
    return len(head) >= 4 and head[:2] == b"\0\0" and 0x08 <= head[2] <= 0x0E and 1 <= head[3] <= 4


@dataclass(frozen=True)
class IdxFile:
    """IDX file of unsigned bytes on an fsspec file system; the first dimension of its shape is the rows."""

    fs: Any
    path: str
    shape: tuple[int, ...]

    @classmethod
    def open(cls, fs: object, path: str, *, dimensions: tuple[int, ...]) -> IdxFile:
        """Reads the header of a file, optionally compressed with gzip.

        Raises:
            BadInput: it is not an IDX file of unsigned bytes whose number of dimensions is one of ``dimensions``.
        """
        with _stream(fs, path) as stream:
            head = stream.read(4)
            if not _is_idx(head):
                raise BadInput(f"{path}: not an IDX file: it begins with {head.hex(' ') or 'nothing'}")
            if head[2] != _UINT8 or head[3] not in dimensions:
                raise BadInput(
                    f"{path}: IDX values of type 0x{head[2]:02x} in {head[3]} dimensions; expected unsigned bytes "
                    f"(0x08) in {' or '.join(map(str, dimensions))}"
                )
            sizes = stream.read(4 * head[3])
            if len(sizes) < 4 * head[3]:
                raise BadInput(f"{path}: the header ends after {4 + len(sizes)} of {4 + 4 * head[3]} bytes")
        return cls(fs, path, struct.unpack(f">{head[3]}I", sizes))

    @property
    def rows(self) -> int:
        """Number of rows according to the header."""
        return self.shape[0]

    def read(self, first: int, last: int, *, batch: int) -> Iterator[np.ndarray]:
        """Reads rows ``first`` to ``last`` (excluded), at most ``batch`` at a time: uint8 of shape ``[rows, …]``.

        If the last row of the file is among them, also checks that the file ends there.

        Raises:
            BadInput: the file is shorter or longer than its header says, or damaged.
        """
        header, row_bytes = 4 + 4 * len(self.shape), math.prod(self.shape[1:])
        expected = header + self.rows * row_bytes
        with _stream(self.fs, self.path) as stream:
            stream.seek(header + first * row_bytes)
            for position in range(first, last, batch):
                count = min(batch, last - position)
                values = stream.read(count * row_bytes)
                if len(values) < count * row_bytes:
                    raise BadInput(f"{self.path}: it ends early, where its header promises {expected:,} bytes")
                yield np.frombuffer(values, np.uint8).reshape(count, *self.shape[1:])
            if last == self.rows and stream.read(1):
                raise BadInput(f"{self.path}: it has more than the {expected:,} bytes that its header promises")


@contextmanager
def _stream(fs: Any, path: str) -> Iterator[Any]:
    with fs.open(path, "rb") as raw:
        compressed = raw.read(2) == _GZIP
        raw.seek(0)
        try:
            yield gzip.GzipFile(fileobj=raw) if compressed else raw
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise BadInput(f"{path}: damaged: {error}") from error
