"""Reads a part's images in batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.extensions.images.ml.plan import ImagePart, class_of
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.rows_file import RowsFile

BATCH_IMAGES = 256
BATCH_BYTES = 32 << 20
_PARQUET_ROWS = 16


@dataclass
class ImageBatch:
    """Images of a source, encoded or, for IDX files, as pixels.

    Attributes:
        keys: Identity of each image.
        labels: Name or number of each class, or None.
        encoded: Bytes of each image, or None if missing.
        pixels: uint8 of shape ``[images, height, width, channels]``, instead of ``encoded``.
        where: Location of each image, for people.
        size_bytes: Total size of ``encoded``.
    """

    keys: list[str] = field(default_factory=list)
    labels: list[str | int | None] = field(default_factory=list)
    encoded: list[bytes | None] = field(default_factory=list)
    pixels: np.ndarray | None = None
    where: list[str] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, key: str, label: str | int | None, encoded: bytes | None, where: str) -> None:
        """Appends an image."""
        self.keys.append(key)
        self.labels.append(label)
        self.encoded.append(encoded)
        self.where.append(where)
        self.size_bytes += len(encoded or b"")

    @property
    def is_full(self) -> bool:
        """Whether the next image needs a new batch."""
        return len(self.keys) >= BATCH_IMAGES or self.size_bytes >= BATCH_BYTES


def read_images(part: ImagePart) -> Iterator[ImageBatch]:
    """Reads a part's images.

    Raises:
        BadInput: a Parquet or IDX file is damaged.
        HopsError: an image file was deleted after it was listed, or a packed one is damaged.
    """
    if part.idx is not None:
        yield from _read_idx(part)
        return
    batch = ImageBatch()
    read = _read_files if part.files else _read_packed if part.packed else _read_parquet
    for image in read(part):
        batch.add(*image)
        if batch.is_full:
            yield batch
            batch = ImageBatch()
    if batch.keys:
        yield batch


def _read_files(part: ImagePart) -> Iterator[tuple[str, str | None, bytes, str]]:
    for path, key in part.files:
        try:
            encoded = part.fs.cat_file(path)
        except FileNotFoundError as error:
            raise HopsError(f"{path}: it was deleted while the source was read") from error
        yield key, class_of(key), encoded, path


def _read_packed(part: ImagePart) -> Iterator[tuple[str, str | None, bytes, str]]:
    with part.fs.open(part.path, "rb") as shard:
        for file in part.packed:
            yield file.path, class_of(file.path), file.read(shard), f"{part.path}, {file.path}"


def _read_parquet(part: ImagePart) -> Iterator[tuple[str, str | int | None, bytes | None, str]]:
    image_column, label_column, key_column = part.columns
    name = PurePosixPath(part.path).name
    row = part.first_row
    file = RowsFile(part.path, part.path, 0, part.fs)
    columns = [column for column in part.columns if column]
    # Small batches, to hold only a few images and a column chunk's pages.
    for batch in scan.batches(file, columns, rows=_PARQUET_ROWS, row_groups=part.row_groups):
        images = batch[image_column]
        if pa.types.is_struct(images.type):
            images = images.flatten()[images.type.get_field_index("bytes")]
        keys = batch[key_column].to_pylist() if key_column else [None] * batch.num_rows
        labels = batch[label_column].to_pylist()
        for key, label, encoded in zip(keys, labels, images.to_pylist(), strict=True):
            yield str(key) if key is not None else f"{name}:{row}", label, encoded, f"{part.path}, row {row}"
            row += 1


def _read_idx(part: ImagePart) -> Iterator[ImageBatch]:
    assert part.idx is not None
    row = part.first_row
    labels = np.frombuffer(part.labels, np.uint8)
    size = int(np.prod(part.idx.shape[1:]))
    if not size:
        raise BadInput(f"{part.path}: images of shape {list(part.idx.shape[1:])} have no pixels")
    images = max(1, min(BATCH_IMAGES, BATCH_BYTES // size))
    for pixels in part.idx.read(row, row + len(labels), batch=images):
        rows = range(row, row + len(pixels))
        yield ImageBatch(
            keys=[f"{part.source}/{number:08d}" for number in rows],
            labels=labels[row - part.first_row :][: len(pixels)].tolist(),
            pixels=pixels if pixels.ndim == 4 else pixels[..., np.newaxis],
            where=[f"{part.path}, image {number}" for number in rows],
        )
        row += len(pixels)
