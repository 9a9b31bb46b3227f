"""Writes prepared images: TFRecord to train on, and the same rows as Parquet for the stages that read columns."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.contract.images import IMAGE, KEY
from airflow_hops.processes.tensorflow_graphs import import_tensorflow

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


class ImageWriter:
    """Writes a part of a split: ``part-<number>.tfrecord`` and ``part-<number>.parquet``.

    Encoded images are compressed already, and so the files are not. A task that Spark runs twice writes the same names;
    a part bears its name when it is whole. A context manager, which removes what was not committed.

    Args:
        folder: The split's folder.
        part: Its number within the split.
        label: Name of the label column.
    """

    def __init__(self, folder: Path, part: int, label: str) -> None:
        self.tfrecord = folder / f"part-{part:05d}.tfrecord"
        self._parquet = folder / f"part-{part:05d}.parquet"
        self._schema = pa.schema([(KEY, pa.string()), (IMAGE, pa.binary()), (label, pa.int64())])
        self._label = label
        self._records: Any = None
        self._columns: Any = None
        self.rows = 0

    def __enter__(self) -> ImageWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._columns is None:
            return
        for writer in (self._records, self._columns):
            with contextlib.suppress(Exception):  # a full disk refuses the last bytes too
                writer.close()
        for path in (self.tfrecord, self._parquet):
            staging(path).unlink(missing_ok=True)

    def write(self, keys: Sequence[str], images: Sequence[bytes], labels: Sequence[int]) -> None:
        """Writes a batch; it becomes a row group."""
        if self._columns is None:
            self._open()
        example = import_tensorflow().train.Example
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

    def commit(self) -> None:
        """Finishes both files and gives them their names."""
        if self._columns is None:
            return
        self._columns.close()
        self._records.close()
        self._columns = None
        for path in (self.tfrecord, self._parquet):
            staging(path).replace(path)

    def _open(self) -> None:
        self.tfrecord.parent.mkdir(parents=True, exist_ok=True)
        self._columns = pq.ParquetWriter(
            staging(self._parquet), self._schema, use_dictionary=False, compression="none", write_statistics=False
        )
        self._records = import_tensorflow().io.TFRecordWriter(str(staging(self.tfrecord)))


class RejectedWriter:
    """Writes what a task sets aside, with its reasons, as one Parquet file, which bears its name when it is whole.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None

    def __enter__(self) -> RejectedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            with contextlib.suppress(Exception):
                self._writer.close()
            staging(self._path).unlink(missing_ok=True)

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Writes rows of :data:`REJECTED_SCHEMA`."""
        if rows and self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(staging(self._path), REJECTED_SCHEMA)
        if rows:
            self._writer.write_table(pa.Table.from_pylist(list(rows), schema=REJECTED_SCHEMA))

    def commit(self) -> None:
        """Finishes the file and gives it its name."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
            staging(self._path).replace(self._path)


def staging(path: Path) -> Path:
    """What a file is called while it is written."""
    return path.with_name(f".{path.name}.{os.getpid()}")
