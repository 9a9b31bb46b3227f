"""The ways to read flights in batches that are measured; each runs in the runtime environment by itself.

``python -m benchmarks.measurement.reader_ways <way> <folder> …``, for :mod:`benchmarks.measurement.timing`. ``cold_s``
is the first pass, from opening the files to the last batch; ``warm_s`` is the second pass.
"""

from __future__ import annotations

import sys
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measurement.worker import Work, perform

BATCH_ROWS = 1_024
NUMBERS = ("month", "day", "sched_dep_time", "sched_arr_time", "flight", "distance", "hour", "minute")
TEXTS = ("carrier", "origin", "dest")
LABEL = "arr_delay"
WARM_UP = "warm-up"


def write_tables(folder: str, raw: str) -> Work:
    """Not a way: writes flights, without missing values, as Parquet and as TFRecord."""

    def write() -> Mapping[str, Any]:
        import pyarrow as pa
        import pyarrow.csv

        content = zipfile.ZipFile(Path(raw) / "flights.csv.zip").read("flights.csv")
        options = pa.csv.ConvertOptions(strings_can_be_null=True, include_columns=[*NUMBERS, *TEXTS, LABEL])
        table = pa.csv.read_csv(pa.py_buffer(content), convert_options=options)
        table = table.set_column(len(table.column_names) - 1, LABEL, table[LABEL].fill_null(0))
        _write(table, Path(folder))
        _write(table.slice(0, 5_000), Path(folder) / WARM_UP)
        return {"rows": table.num_rows}

    return write


def _write(table: Any, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq
    import tensorflow as tf
    from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder

    for name in ("parquet", "tfrecord", "tfrecord_gz"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / "parquet" / "part-0.parquet", row_group_size=32_768)
    arrays = [table[name].combine_chunks() for name in table.column_names]
    offsets = pa.array(range(table.num_rows + 1), pa.int32())
    lists = [pa.ListArray.from_arrays(offsets, a.cast(pa.binary()) if a.type == pa.string() else a) for a in arrays]
    examples = RecordBatchToExamplesEncoder().encode(pa.RecordBatch.from_arrays(lists, table.column_names))
    for name, compression, suffix in (("tfrecord", "", ""), ("tfrecord_gz", "GZIP", ".gz")):
        for part in range(2):
            path = folder / name / f"part-{part}.tfrecord{suffix}"
            with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type=compression)) as writer:
                for example in examples[part * len(examples) // 2 : (part + 1) * len(examples) // 2]:
                    writer.write(example)


def ours(folder: str, format: str, mode: str, order: str) -> Work:
    """This project's reader.

    Args:
        folder: The tables.
        format: ``parquet``, ``tfrecord`` or ``tfrecord_gz``.
        mode: ``memory`` or ``streamed``.
        order: ``shuffled``, or ``ordered``: as the rows lie.
    """
    from airflow_hops.ml.training.reader import open_split

    settings = {"memory_bytes": 0, "buffer_bytes": 8 << 20} if mode == "streamed" else {}

    def read(where: Path) -> Callable[[], Iterable[Any]]:
        reader = open_split(where / format, [*NUMBERS, *TEXTS], label=LABEL, **settings)
        dataset = reader.dataset(BATCH_ROWS, shuffle_seed=1 if order == "shuffled" else None)
        return lambda: (label for _, label in dataset)

    return two_passes(read, folder)


def parse_example(folder: str, format: str) -> Work:
    """``tf.data`` over TFRecord, not shuffled: batched, then parsed by ``tf.io.parse_example``, in parallel."""
    import tensorflow as tf

    specs = {
        **{name: tf.io.FixedLenFeature([], tf.int64) for name in (*NUMBERS, LABEL)},
        **{name: tf.io.FixedLenFeature([], tf.string) for name in TEXTS},
    }
    compression = "GZIP" if format == "tfrecord_gz" else ""

    def read(where: Path) -> Callable[[], Iterable[Any]]:
        files = sorted(str(path) for path in (where / format).iterdir())
        dataset = (
            tf.data.TFRecordDataset(files, compression, num_parallel_reads=tf.data.AUTOTUNE)
            .batch(BATCH_ROWS, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False)
            .map(lambda records: tf.io.parse_example(records, specs), tf.data.AUTOTUNE, deterministic=False)
            .prefetch(tf.data.AUTOTUNE)
        )
        return lambda: (batch[LABEL] for batch in dataset)

    return two_passes(read, folder)


def numpy(folder: str) -> Work:
    """The floor: pyarrow to NumPy, all columns, and slices of as many rows as a batch has."""
    import pyarrow.parquet as pq

    def read(where: Path) -> Callable[[], Iterable[Any]]:
        path = next((where / "parquet").iterdir())

        def one_pass() -> Iterable[Any]:
            table = pq.read_table(path, columns=[*NUMBERS, *TEXTS, LABEL])
            columns = {name: table[name].to_numpy() for name in table.column_names}
            for first in range(0, table.num_rows, BATCH_ROWS):
                yield {name: values[first : first + BATCH_ROWS] for name, values in columns.items()}[LABEL]

        return one_pass

    return two_passes(read, folder)


def two_passes(read: Callable[[Path], Callable[[], Iterable[Any]]], folder: str) -> Work:
    """Reads a small table of the same form first; then times two passes over the whole one.

    Args:
        read: Opens a folder; returns what begins a pass, which gives an array of each batch.
        folder: The tables.
    """
    _rows(read(Path(folder) / WARM_UP)())

    def work() -> Mapping[str, Any]:
        began = time.perf_counter()
        one_pass = read(Path(folder))
        rows = _rows(one_pass())
        cold_s = time.perf_counter() - began
        if _rows(one_pass()) != rows:
            raise RuntimeError("the second pass had another number of rows than the first")
        return {"rows": rows, "cold_s": cold_s, "warm_s": time.perf_counter() - began - cold_s}

    return work


def _rows(batches: Iterable[Any]) -> int:
    return sum(int(batch.shape[0]) for batch in batches)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
    perform({"write": write_tables, "ours": ours, "parse_example": parse_example, "numpy": numpy})
