"""Plans the preparation: the sources' files, their classes, and parts of similar size."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
from fsspec import AbstractFileSystem

from airflow_hops.core.errors import BadInput
from airflow_hops.core.sources.source_files import list_files, source_root
from airflow_hops.core.sources.sources import FileSource, SourceFile
from airflow_hops.extensions.images.core.images import MAX_PIXELS, ImageSource
from airflow_hops.extensions.images.ml.packed import SHARDS, PackedFile, is_packed, read_index
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.rows_file import RowsFile

_UINT8 = 0x08
_GZIP = b"\x1f\x8b"

PART_ROWS = 8192
"""Approximate images per part of Parquet or IDX."""

PART_FILES, PART_BYTES = 512, 64 << 20
"""Maximum image files per part, and their maximum total bytes."""

MAX_CLASSES = 100_000


@dataclass(frozen=True)
class ImagePart:
    """Part of a source.

    Attributes:
        source: Split of the source.
        number: Number in the names of the written files.
        fs: fsspec file system.
        files: Path and key of each image file (folders); the key is the path below the source.
        packed: Packed image files.
        path: The file (Parquet and IDX), or the shard (packed files).
        row_groups: Row groups to read (Parquet).
        first_row: Number of the first row in the file (Parquet and IDX).
        columns: Columns of image, label and key (Parquet).
        idx: File of images (IDX).
        labels: Labels of the part's rows (IDX).
    """

    source: str
    number: int
    fs: AbstractFileSystem
    files: tuple[tuple[str, str], ...] = ()
    packed: tuple[PackedFile, ...] = ()
    path: str = ""
    row_groups: tuple[int, ...] = ()
    first_row: int = 0
    columns: tuple[str, str, str | None] = ("", "", None)
    idx: IdxFile | None = None
    labels: bytes = b""


Classes = set[str | int]
"""Names or numbers of the classes in the sources."""


def plan_images(sources: Mapping[str, ImageSource]) -> tuple[list[ImagePart], Classes]:
    """Lists the files of all sources and divides them into parts, the same ones on any cluster; and their classes.

    Raises:
        BadInput: a source has no images, or a file is damaged or of none of these kinds.
    """
    planned: list[ImagePart] = []
    classes: Classes = set()
    for split, source in sources.items():
        fs, listed = list_files(FileSource(source.uri, storage_options=source.storage_options))
        root = source_root(fs, source.uri)
        count = len(planned)
        if source.labels is not None or (len(listed) == 1 and is_idx_file(fs, listed[0].path)):
            parts = _of_idx(classes, fs, listed, source)
        elif all(file.path.endswith((".parquet", ".pq")) for file in listed):
            parts = _of_parquet(classes, fs, listed, source)
        elif is_packed([file.path.removeprefix(f"{root}/") for file in listed]):
            parts = _of_packed(classes, fs, root)
        else:
            parts = _of_folder(classes, fs, listed, source)
        for number, fields in enumerate(parts):
            planned.append(ImagePart(split, number, fs, **fields))
        if len(planned) == count:
            raise BadInput(f"sources[{split!r}]: {source.uri} holds no images")
    return planned, classes


def name_classes(classes: Classes, given: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the classes' names in the order of their numbers: ``given``, or else those of the sources.

    Raises:
        BadInput: a name occurs twice, or some sources have names, others numbers, and ``given`` is empty.
    """
    if given:
        if len(set(given)) < len(given):
            raise BadInput(f"classes names a class twice: {', '.join(given)}")
        return tuple(given)
    names = {name for name in classes if isinstance(name, str)}
    numbers = classes - names
    if names and numbers:
        raise BadInput(
            f"some sources name their classes ({min(names)}), others number them ({min(numbers)}); give the names "
            "in 'classes', in the order of their numbers"
        )
    if names:
        return tuple(sorted(names))
    highest = max((number for number in numbers if isinstance(number, int)), default=-1)
    if highest >= MAX_CLASSES:
        raise BadInput(f"a label is {highest}; expected numbers of classes, from 0 on and below {MAX_CLASSES}")
    return tuple(str(number) for number in range(highest + 1))


def _of_folder(
    classes: Classes, fs: AbstractFileSystem, listed: Sequence[SourceFile], source: ImageSource
) -> Iterator[dict[str, Any]]:
    root = fs._strip_protocol(source.uri).rstrip("/")
    if not fs.isdir(root):
        raise BadInput(
            f"{source.uri}: expected a folder with a folder of image files for each class, packed files, Parquet files "
            "(*.parquet), or an IDX file of images with 'labels'"
        )
    files = [(str(PurePosixPath(file.path).relative_to(root)), file) for file in listed]
    # Includes classes without files.
    folders = {PurePosixPath(entry["name"]).name for entry in fs.ls(root, detail=True) if entry["type"] == "directory"}
    classes |= {name for name in folders if not name.startswith((".", "_"))}
    # A listing is ordered by class, and a reader's shuffle buffer is limited.
    files.sort(key=lambda each: hashlib.blake2b(each[0].encode(), digest_size=8).digest())
    chunk: list[tuple[str, str]] = []
    size = 0
    for key, file in files:
        chunk.append((file.path, key))
        size += file.size_bytes
        if len(chunk) == PART_FILES or size >= PART_BYTES:
            yield {"files": tuple(chunk)}
            chunk, size = [], 0
    if chunk:
        yield {"files": tuple(chunk)}


def _of_packed(classes: Classes, fs: object, root: str) -> Iterator[dict[str, Any]]:
    files = [PackedFile(**row) for row in read_index(fs, root).to_pylist()]
    classes |= {label for file in files if (label := class_of(file.path)) is not None}
    for shard, of_shard in itertools.groupby(files, lambda file: file.shard):
        chunk: list[PackedFile] = []
        for file in of_shard:
            chunk.append(file)
            if len(chunk) == PART_FILES or chunk[-1].offset - chunk[0].offset >= PART_BYTES:
                yield {"path": f"{root}/{SHARDS}/{shard}", "packed": tuple(chunk)}
                chunk = []
        if chunk:
            yield {"path": f"{root}/{SHARDS}/{shard}", "packed": tuple(chunk)}


def class_of(path: str) -> str | None:
    """Returns the folder of a class that an image's path below the source names, or None."""
    folder, separator, _ = path.partition("/")
    return folder if separator else None


def _of_parquet(
    classes: Classes, fs: object, listed: Sequence[SourceFile], source: ImageSource
) -> Iterator[dict[str, Any]]:
    columns = (source.image_column, source.label_column, source.key_column)
    for file in listed:
        opening = RowsFile(file.path, file.name, file.size_bytes, fs)
        footer = scan.footer(opening)
        _check_columns(footer.schema.to_arrow_schema(), columns, file.name)
        for batch in scan.batches(opening, [source.label_column]):
            classes |= set(batch.column(0).unique().drop_null().to_pylist())
        first = 0
        for groups, rows in scan.parts(footer, PART_ROWS):
            yield {"path": file.path, "row_groups": groups, "first_row": first, "columns": columns}
            first += rows


def _of_idx(
    classes: Classes, fs: object, listed: Sequence[SourceFile], source: ImageSource
) -> Iterator[dict[str, Any]]:
    if source.labels is None or len(listed) != 1:
        raise BadInput(
            f"{listed[0].name}: an IDX file of images; expected only one, and the IDX file of its labels "
            "as 'labels' (ImageSource(images, labels=…))"
        )
    images = IdxFile.open(fs, listed[0].path, dimensions=(3, 4))
    if (pixels := math.prod(images.shape[1:3])) > MAX_PIXELS:
        raise BadInput(f"{listed[0].name}: images of {pixels} pixels by its header; the limit is {MAX_PIXELS} pixels")
    label_fs, label_files = list_files(FileSource(source.labels, storage_options=source.storage_options))
    label_file = IdxFile.open(label_fs, label_files[0].path, dimensions=(1,))
    if label_file.rows != images.rows:
        raise BadInput(
            f"{label_files[0].name} has {label_file.rows:,} labels for the {images.rows:,} images of {listed[0].name}"
        )
    if not images.rows:
        return
    labels = np.concatenate(list(label_file.read(0, label_file.rows, batch=1 << 20)))
    classes |= {int(label) for label in np.unique(labels)}
    for first in range(0, images.rows, PART_ROWS):
        part = labels[first : first + PART_ROWS]
        yield {"path": listed[0].path, "first_row": first, "idx": images, "labels": part.tobytes()}


def _check_columns(schema: pa.Schema, columns: Sequence[str | None], name: str) -> None:
    for column in columns:
        if column is not None and column not in schema.names:
            raise BadInput(f"{name}: there is no column {column!r}; it has {', '.join(schema.names)}")
    image, label = schema.field(columns[0]).type, schema.field(columns[1]).type
    if pa.types.is_struct(image) and image.get_field_index("bytes") >= 0:
        image = image.field("bytes").type
    if not (pa.types.is_binary(image) or pa.types.is_large_binary(image)):
        raise BadInput(f"{name}: column {columns[0]!r} is {image}, expected binary, or a struct with a field 'bytes'")
    if not (pa.types.is_integer(label) or pa.types.is_string(label) or pa.types.is_large_string(label)):
        raise BadInput(f"{name}: column {columns[1]!r} is {label}, expected names (string) or numbers (integer)")


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
