"""Transformed examples as ``tf.data``: each rank reads its own shard of the Parquet files, and all take equal steps.

A shard is held in memory, which is what makes an epoch cheap: it is shuffled whole, and a batch is one gather a column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

from airflow_hops.artifacts import BadInput

_PREFETCHED_BATCHES = 8


@dataclass(frozen=True)
class Shard:
    """A rank's rows of a split.

    Attributes:
        columns: Arrays of shape ``[rows]`` or ``[rows, width]`` by name.
        rows: Rows of this shard.
        total_rows: Rows of the split, over all ranks.
        smallest_rows: Rows of the smallest shard; shards differ by one row at most.
    """

    columns: dict[str, np.ndarray[Any, Any]]
    rows: int
    total_rows: int
    smallest_rows: int

    def steps(self, batch_size: int) -> int:
        """Steps of an epoch: the same on every rank.

        Args:
            batch_size: Rows of a step over all ranks.
        """
        return max(1, min(-(-self.total_rows // batch_size), self.smallest_rows))

    def bounds(self, steps: int) -> np.ndarray[Any, Any]:
        """Where the batches begin and end: ``steps`` + 1 row numbers. Batches differ by one row at most."""
        return np.arange(steps + 1, dtype=np.int64) * self.rows // steps


def read_shard(folder: Path, columns: Sequence[str], *, rank: int = 0, size: int = 1) -> Shard:
    """Reads one of ``size`` equal, contiguous shares of the rows below a folder, and only the row groups that hold it.

    Args:
        folder: Folder of Parquet files: one split.
        columns: The columns to read.
        rank: Which share.
        size: How many shares there are.

    Raises:
        BadInput: there are no files or fewer rows than ranks; a file cannot be read, or has no such column, or a
            missing value, or rows of different widths.
    """
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise BadInput(f"{folder}: there are no Parquet files; expected the examples of a split")
    opened = [_open(file, columns) for file in files]
    total = sum(parquet.metadata.num_rows for parquet in opened)
    if total < size:
        raise BadInput(f"{folder} holds {total} rows, fewer than the {size} ranks; give it more rows, or lower np")
    begin, end = total * rank // size, total * (rank + 1) // size
    tables = []
    position = 0
    for file, parquet in zip(files, opened, strict=True):
        for group in range(parquet.metadata.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            first, last = max(begin - position, 0), min(end - position, rows)
            position += rows
            if first < last:
                tables.append(_read_row_group(file, parquet, group, columns).slice(first, last - first))
    table = pa.concat_tables(tables)
    arrays = {name: _to_numpy(table.column(name), f"{folder}: column {name!r}") for name in columns}
    return Shard(arrays, end - begin, total, total // size)


def row_count(folder: Path) -> int:
    """Rows of a split, from its files' footers.

    Raises:
        BadInput: a file cannot be read.
    """
    return sum(_open(file, ()).metadata.num_rows for file in sorted(folder.glob("*.parquet")))


def batches(
    shard: Shard, label: str, steps: int, *, order: Callable[[], np.ndarray[Any, Any]] | None = None
) -> tf.data.Dataset:
    """The shard's batches, as pairs of features by name and labels.

    Args:
        shard: The rows.
        label: The column that is the label; all others are features.
        steps: How many batches.
        order: Called at the start of each pass; returns the order of the rows for it, int64 ``[rows]``. None: as they
            lie.

    Returns:
        A finite dataset; each pass gives each row once.
    """
    columns = {name: tf.constant(values) for name, values in shard.columns.items()}
    bounds = tf.constant(shard.bounds(steps))

    def one_pass(_: Any) -> tf.data.Dataset:
        rows = None
        if order is not None:
            rows = tf.numpy_function(order, [], tf.int64, stateful=True)
            rows.set_shape([shard.rows])

        def batch(step: Any) -> tuple[dict[str, Any], Any]:
            first, last = bounds[step], bounds[step + 1]
            if rows is None:
                taken = {name: values[first:last] for name, values in columns.items()}
            else:
                chosen = rows[first:last]
                taken = {name: tf.gather(values, chosen) for name, values in columns.items()}
            labels = taken.pop(label)
            return taken, labels

        return tf.data.Dataset.range(steps).map(batch)

    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = 1
    options.autotune.enabled = False
    dataset = tf.data.Dataset.range(1).flat_map(one_pass)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    return dataset.prefetch(_PREFETCHED_BATCHES).with_options(options)


def _open(file: Path, columns: Sequence[str]) -> pq.ParquetFile:
    try:
        parquet = pq.ParquetFile(file)
    except (OSError, pa.ArrowInvalid) as error:
        raise BadInput(f"{file}: not a readable Parquet file ({error})") from None
    missing = [name for name in columns if name not in parquet.schema_arrow.names]
    if missing:
        raise BadInput(
            f"{file}: there is no column {missing[0]!r}; it has {', '.join(parquet.schema_arrow.names)}. The examples "
            "and their features.json do not belong together"
        )
    return parquet


def _read_row_group(file: Path, parquet: pq.ParquetFile, group: int, columns: Sequence[str]) -> pa.Table:
    try:
        return parquet.read_row_group(group, columns=list(columns), use_threads=False)
    except (OSError, pa.ArrowInvalid) as error:
        raise BadInput(f"{file}: row group {group} cannot be read ({error})") from None


def _to_numpy(column: pa.ChunkedArray, where: str) -> np.ndarray[Any, Any]:
    if column.null_count:
        raise BadInput(f"{where} has {column.null_count} missing values; a transform leaves none")
    values = column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):  # combine_chunks of pyarrow 10 keeps the wrapper for some types
        values = pa.concat_arrays(values.chunks)
    if not (pa.types.is_list(values.type) or pa.types.is_large_list(values.type) or _is_fixed_list(values.type)):
        found: np.ndarray[Any, Any] = values.to_numpy(zero_copy_only=False)
        return found
    flat = values.flatten()
    if flat.null_count or len(flat) % max(len(values), 1):
        raise BadInput(f"{where} is a list whose rows have no common width, or missing values")
    if not _is_fixed_list(values.type):
        lengths = np.diff(values.offsets.to_numpy())
        if len(lengths) and (lengths != lengths[0]).any():
            raise BadInput(f"{where} is a list of {lengths.min()} to {lengths.max()} values; expected one width")
    wide: np.ndarray[Any, Any] = flat.to_numpy(zero_copy_only=False).reshape(len(values), -1)
    return wide


def _is_fixed_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind))
