"""Prepares a part: decodes, resizes, crops and writes images, or rejects them with a reason."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from airflow_hops.core.parquet_writer import parquet_writer
from airflow_hops.core.prepare.options import EVAL, TRAIN
from airflow_hops.core.serving_api.encoded_images import largest_image
from airflow_hops.extensions.images.core.images import IMAGE, KEY, MAX_PIXELS, REJECTED, ImageSpec
from airflow_hops.extensions.images.ml.features import decode_pixel_batch
from airflow_hops.extensions.images.ml.plan import ImagePart
from airflow_hops.extensions.images.ml.read import ImageBatch, read_images
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.spark.pools import StagedFiles, WorkSummary, use_one_thread

NOT_AN_IMAGE, TOO_SMALL, MISSING = "not an image", "smaller than the crop", "image is missing"
TOO_LARGE, TOO_DEEP = f"more than {MAX_PIXELS} pixels", "16 bits a channel"
NO_LABEL, UNKNOWN_CLASS = "label is missing", "unknown class"


@dataclass(frozen=True)
class ImagePreparation:
    """Plan that every part gets.

    Attributes:
        folder: Folder to write to, with a subfolder per split.
        classes: Names in the order of their numbers.
        label: Name of the label column.
        eval_percent: Percentage of the keys of source ``train`` that go to split ``eval``.
        encoding: ``png`` or ``jpeg``.
    """

    folder: OutputFolder
    spec: ImageSpec
    classes: tuple[str, ...]
    label: str
    eval_percent: int = 0
    encoding: str = "png"
    jpeg_quality: int = 95

    def split_of(self, source: str, key: str) -> str:
        """Returns the split of an image; it depends only on the key's hash, so it is the same in every run."""
        if source != TRAIN or not self.eval_percent:
            return source
        number = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
        return EVAL if number % 100 < self.eval_percent else TRAIN


@dataclass
class ImageSummary(WorkSummary):
    """Summary of a part.

    Attributes:
        rows_in: Images read, by split.
        rows_out: Images written, by split and class number.
        rejected: Rejected images, by split and reason.
        files: Rows of each TFRecord file, by ``<split>/<name>``.
        pixels: Pixels written to split ``train``.
        sums: Sum of their values (0 to 255), by channel.
        squares: Sum of their squares, by channel.
    """

    rows_in: dict[str, int] = field(default_factory=dict)
    rows_out: dict[str, dict[str, int]] = field(default_factory=dict)
    rejected: dict[str, dict[str, int]] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    pixels: int = 0
    sums: list[int] = field(default_factory=list)
    squares: list[int] = field(default_factory=list)


def prepare_part(preparation: ImagePreparation, part: ImagePart) -> str:
    """Prepares a part; returns its :class:`ImageSummary` as JSON."""
    summary = ImageSummary()
    with summary.recording_errors(preparation.folder.path):
        _Part(preparation, part, summary).run()
    return summary.to_json()


class _Part:
    def __init__(self, preparation: ImagePreparation, part: ImagePart, summary: ImageSummary) -> None:
        self.preparation, self.part, self.summary = preparation, part, summary
        self._numbers = {name: number for number, name in enumerate(preparation.classes)}
        self._rejected: list[dict[str, Any]] = []

    def run(self) -> None:
        use_one_thread()
        splits = [TRAIN, EVAL] if self.part.source == TRAIN else [self.part.source]
        with ExitStack() as stack:
            target = stack.enter_context(self.preparation.folder.writing(self.summary.uploaded))
            writers = {
                split: stack.enter_context(ImageWriter(target / split, self.part.number, self.preparation.label))
                for split in splits
            }
            path = target / REJECTED / f"{self.part.source}-{self.part.number:05d}.parquet"
            files, rejected = stack.enter_context(StagedFiles()), None
            for batch in read_images(self.part):
                self._prepare(batch, writers)
                if self._rejected:
                    rejected = rejected or files.open(path, partial(parquet_writer, schema=REJECTED_SCHEMA))
                    rejected.write_table(pa.Table.from_pylist(self._rejected, schema=REJECTED_SCHEMA))
                    self._rejected.clear()
            for split, writer in writers.items():
                if writer.rows:
                    self.summary.files[f"{split}/{writer.tfrecord.name}"] = writer.rows

    def _prepare(self, batch: ImageBatch, writers: Mapping[str, ImageWriter]) -> None:
        splits = [self.preparation.split_of(self.part.source, key) for key in batch.keys]
        for split, count in Counter(splits).items():
            self.summary.rows_in[split] = self.summary.rows_in.get(split, 0) + count
        classes = [self._class_of(label) for label in batch.labels]
        good = []
        for index, result in enumerate(classes):
            if isinstance(result, str):
                self._reject(batch, index, splits[index], result, f"label {batch.labels[index]!r}")
            elif batch.pixels is None and not batch.encoded[index]:
                self._reject(batch, index, splits[index], MISSING, "no bytes")
            elif (size := largest_image(batch.encoded[index] or b"") if batch.pixels is None else 0) > MAX_PIXELS:
                self._reject(batch, index, splits[index], TOO_LARGE, f"{size} pixels in all")
            else:
                good.append(index)
        decoded, pixels = self._decode(batch, good, splits)
        if not decoded:
            return
        encoded = encode(pixels, self.preparation)
        in_train = np.array([splits[index] == TRAIN for index in decoded])
        self._sum(pixels[in_train])
        for split, writer in writers.items():
            chosen = [position for position, index in enumerate(decoded) if splits[index] == split]
            if not chosen:
                continue
            labels = [int(classes[decoded[position]]) for position in chosen]
            writer.write([batch.keys[decoded[p]] for p in chosen], [encoded[p] for p in chosen], labels)
            counts = self.summary.rows_out.setdefault(split, {})
            for number, count in Counter(labels).items():
                counts[str(number)] = counts.get(str(number), 0) + count

    def _class_of(self, label: str | int | None) -> int | str:
        """Returns the number of a class, or the reason to reject the image."""
        if label is None:
            return NO_LABEL
        if isinstance(label, str):
            return self._numbers.get(label, UNKNOWN_CLASS)
        return label if 0 <= label < len(self.preparation.classes) else UNKNOWN_CLASS

    def _decode(self, batch: ImageBatch, good: Sequence[int], splits: Sequence[str]) -> tuple[list[int], Any]:
        """Returns the indices of the decodable images, and their pixels."""
        spec = self.preparation.spec
        if not good:
            return [], None
        if batch.pixels is not None and batch.pixels.shape[1:] == spec.shape:
            return list(good), batch.pixels[list(good)]
        # Pixels of another size are encoded, to be resized like a client's image.
        encoded = batch.encoded if batch.pixels is None else _as_png(batch.pixels)
        decode = _decoder(spec)
        try:
            return list(good), decode(tf.constant([encoded[index] for index in good], tf.string)).numpy()
        except tf.errors.InvalidArgumentError:
            pass
        decoded, pixels = [], []
        for index in good:
            try:
                pixels.append(decode(tf.constant([encoded[index]], tf.string)).numpy())
                decoded.append(index)
            except tf.errors.InvalidArgumentError as error:
                reasons = {"smaller than the crop": TOO_SMALL, "16 bits a channel": TOO_DEEP, "pixels, the": TOO_LARGE}
                reason = next((name for words, name in reasons.items() if words in str(error)), NOT_AN_IMAGE)
                self._reject(batch, index, splits[index], reason, _first_words(error))
        return decoded, np.concatenate(pixels) if pixels else None

    def _reject(self, batch: ImageBatch, index: int, split: str, reason: str, detail: str) -> None:
        reasons = self.summary.rejected.setdefault(split, {})
        reasons[reason] = reasons.get(reason, 0) + 1
        label = batch.labels[index]
        self._rejected.append(
            {
                "key": batch.keys[index],
                "split": split,
                "reason": reason,
                "detail": detail,
                "where": batch.where[index],
                "class": None if label is None else str(label),
                # Image files remain in the source; images inside larger files are copied.
                "image": batch.encoded[index] if batch.pixels is None and not self.part.files else None,
            }
        )

    def _sum(self, pixels: Any) -> None:
        values = pixels.reshape(-1, pixels.shape[-1])
        sums = values.sum(axis=0, dtype=np.uint64).tolist()
        squares = np.square(values, dtype=np.uint32).sum(axis=0, dtype=np.uint64).tolist()
        totals = (self.summary.sums or [0] * len(sums), self.summary.squares or [0] * len(sums))
        self.summary.pixels += len(values)
        self.summary.sums, self.summary.squares = (
            [a + b for a, b in zip(old, new, strict=True)] for old, new in zip(totals, (sums, squares), strict=True)
        )


def encode(pixels: Any, preparation: ImagePreparation) -> list[bytes]:
    """Encodes pixels, uint8 of shape ``[images, height, width, channels]``, as PNG or JPEG."""
    if preparation.encoding == "png":
        return list(_as_png(pixels))
    quality = preparation.jpeg_quality
    return [tf.io.encode_jpeg(image, quality=quality, optimize_size=True).numpy() for image in pixels]


def _as_png(pixels: object) -> Any:
    return tf.io.encode_png(pixels).numpy()


@cache
def _decoder(spec: ImageSpec) -> Any:
    """Returns the graph from encoded images to pixels, traced once per Python worker."""
    return tf.function(
        lambda encoded: decode_pixel_batch(encoded, spec),
        input_signature=[tf.TensorSpec([None], tf.string)],
        autograph=False,
    )


def _first_words(error: Exception) -> str:
    """Returns the sentence of a TensorFlow error without node names."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0].rpartition("}} ")[2] if lines else type(error).__name__)[:300]


REJECTED_SCHEMA = pa.schema(
    [
        pa.field(KEY, pa.string()),
        pa.field("split", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("where", pa.string()),
        pa.field("class", pa.string()),
        pa.field(IMAGE, pa.binary()),
    ]
)


class ImageWriter(StagedFiles):
    """Writes a part of a split: ``part-<number>.tfrecord`` and ``part-<number>.parquet``.

    The files are not compressed, since encoded images are.
    """

    def __init__(self, folder: Path, part: int, label: str) -> None:
        super().__init__()
        self.tfrecord = folder / f"part-{part:05d}.tfrecord"
        self._schema = pa.schema([(KEY, pa.string()), (IMAGE, pa.binary()), (label, pa.int64())])
        self._label = label
        self._records: Any = None
        self._columns: Any = None
        self.rows = 0

    def write(self, keys: Sequence[str], images: Sequence[bytes], labels: Sequence[int]) -> None:
        """Writes a batch as a row group."""
        if self._columns is None:
            settings = {"use_dictionary": False, "compression": "none", "write_statistics": False}
            of_table = partial(parquet_writer, schema=self._schema, **settings)
            self._columns = self.open(self.tfrecord.with_suffix(".parquet"), of_table)
            self._records = self.open(self.tfrecord, tf.io.TFRecordWriter)
        example = tf.train.Example
        for key, image, label in zip(keys, images, labels, strict=True):
            record = example()
            feature = record.features.feature
            feature[KEY].bytes_list.value.append(key.encode())
            feature[IMAGE].bytes_list.value.append(image)
            feature[self._label].int64_list.value.append(label)
            self._records.write(record.SerializeToString(deterministic=True))
        arrays = [
            pa.array(values, field.type) for values, field in zip((keys, images, labels), self._schema, strict=True)
        ]
        self._columns.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        self.rows += len(keys)
