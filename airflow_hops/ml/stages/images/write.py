"""Writes prepared images: TFRecord to train on, and the same rows as Parquet for the stages that read columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from airflow_hops.core.contract.images import IMAGE, KEY
from airflow_hops.ml.spark.tasks import StagedFiles

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

    Encoded images are compressed already, and so the files are not.
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
        """Writes a batch; it becomes a row group."""
        if self._columns is None:
            settings = {"use_dictionary": False, "compression": "none", "write_statistics": False}
            of_table = partial(pq.ParquetWriter, schema=self._schema, **settings)
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


class RejectedWriter(StagedFiles):
    """Writes what a task sets aside, with its reasons, as one Parquet file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._writer: Any = None

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Writes rows of :data:`REJECTED_SCHEMA`."""
        if rows and self._writer is None:
            self._writer = self.open(self._path, partial(pq.ParquetWriter, schema=REJECTED_SCHEMA))
        if rows:
            self._writer.write_table(pa.Table.from_pylist(list(rows), schema=REJECTED_SCHEMA))
