"""What a Spark task does with its Arrow batches: runs the transform graph and writes Parquet and TFRecord."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.artifacts import BadInput
from airflow_hops.runtime.feature_specs import OutputSpec
from airflow_hops.runtime.raw_features import dense_arrays

SPLIT_COLUMN = "__hops_split"
SUMMARY_FIELD = "summary"
_PROBED_ROWS = 32
_loaded: dict[str, Callable[..., dict[str, Any]]] = {}


@dataclass(frozen=True)
class TransformPlan:
    """What every task needs to know.

    Attributes:
        transform_graph: Folder of the SavedModel; every executor can read it.
        target: Folder to write to, with a folder per split; every executor can write to it.
        inputs: Dtypes of the raw features and the time column by name.
        outputs: What the graph puts out.
        label: Name of the label column.
    """

    transform_graph: str
    target: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, OutputSpec]
    label: str


@dataclass
class TaskSummary:
    """What a task has done: one line of JSON that it hands to the driver.

    Attributes:
        split: The split that the task worked on; empty if it had no rows.
        rows: Rows written.
        widths: Widths of the outputs as found in the data; None for shape ``[batch]``.
        not_finite: Outputs with NaN or infinity: how many rows.
        error: What is wrong with the input, or None.
        no_space: Whether the disk is full.
    """

    split: str = ""
    rows: int = 0
    widths: dict[str, int | None] = field(default_factory=dict)
    not_finite: dict[str, int] = field(default_factory=dict)
    error: str | None = None
    no_space: bool = False

    def to_json(self) -> str:
        """One line."""
        return json.dumps(self.__dict__)


def transform_task(plan: TransformPlan, batches: Iterator[Any]) -> Iterator[Any]:
    """A task: for ``DataFrame.mapInArrow``.

    Bad input goes into the summary, so that the driver can say it in one sentence; everything else raises.

    Args:
        plan: What to do.
        batches: Record batches of one split, which the column ``__hops_split`` names.

    Yields:
        One record batch of one row: the :class:`TaskSummary` as JSON.
    """
    summary = TaskSummary()
    try:
        _transform(plan, batches, summary)
    except BadInput as error:
        summary.error = str(error)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        summary.error, summary.no_space = str(error), True
    yield pa.RecordBatch.from_arrays([pa.array([summary.to_json()])], [SUMMARY_FIELD])


def _transform(plan: TransformPlan, batches: Iterator[Any], summary: TaskSummary) -> None:
    writer: ExampleWriter | None = None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            split = batch.column(batch.schema.get_field_index(SPLIT_COLUMN))[0].as_py()
            transform = _load(plan.transform_graph)
            arrays = dense_arrays(batch, {**plan.inputs, plan.label: "int64"}, f"split {split!r}")
            label = arrays.pop(plan.label)
            outputs = run_graph(transform, arrays, plan, split)
            if writer is None:
                check_rows_are_independent(transform, arrays, outputs, plan, split)
                summary.split = split
                writer = ExampleWriter(Path(plan.target) / split, _task_number())
            _check_widths(outputs, summary, split)
            _count_not_finite(outputs, summary)
            writer.write(outputs, label, plan.label)
            summary.rows += batch.num_rows
        if writer is not None:
            writer.close()
    finally:
        if writer is not None:
            writer.discard()


def run_graph(
    transform: Callable[..., dict[str, Any]], arrays: Mapping[str, Any], plan: TransformPlan, split: str
) -> dict[str, Any]:
    """Runs the graph over one batch.

    Args:
        transform: The loaded graph.
        arrays: Raw features of shape ``[rows]``.
        plan: Names the outputs.
        split: For messages.

    Returns:
        Arrays of shape ``[rows]`` or ``[rows, width]`` in the order of ``plan.outputs``.

    Raises:
        BadInput: the graph fails on the values, or an output is not of the batch's rows.
    """
    from airflow_hops.runtime.tensorflow_graphs import import_tensorflow

    tf = import_tensorflow()
    rows = len(next(iter(arrays.values())))
    tensors = {name: tf.constant(values) for name, values in arrays.items()}
    try:
        found = transform(**tensors)
    except (tf.errors.OpError, ValueError) as error:
        raise BadInput(f"split {split!r}: the transform graph fails on a batch of {rows} rows: {error}") from None
    outputs = {name: found[name].numpy() for name in plan.outputs}
    for name, values in outputs.items():
        if values.ndim not in (1, 2) or values.shape[0] != rows:
            raise BadInput(
                f"split {split!r}: preprocessing output {name!r} has shape {list(values.shape)} for a batch of {rows} "
                f"rows; expected [{rows}] or [{rows}, width]"
            )
    return outputs


def check_rows_are_independent(
    transform: Callable[..., dict[str, Any]],
    arrays: Mapping[str, Any],
    outputs: Mapping[str, Any],
    plan: TransformPlan,
    split: str,
) -> None:
    """Runs a few rows again without the others: a row's outputs must be the same in any company.

    A function that takes the mean of its batch trains on one thing and serves another.

    Raises:
        BadInput: an output of a row depends on the other rows of its batch, or its width does.
    """
    rows = len(next(iter(arrays.values())))
    few = min(_PROBED_ROWS, rows // 2)
    if not few:
        return
    alone = run_graph(transform, {name: values[:few] for name, values in arrays.items()}, plan, split)
    for name, values in alone.items():
        expected = outputs[name][:few]
        if values.shape != expected.shape:
            raise BadInput(
                f"preprocessing output {name!r} has shape {list(outputs[name].shape)} for a batch of {rows} rows and "
                f"{list(values.shape)} for one of {few}; its width must not depend on the batch"
            )
        same = (
            np.allclose(values, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
            if values.dtype.kind == "f"
            else np.array_equal(values, expected)
        )
        if not same:
            raise BadInput(
                f"preprocessing output {name!r} of a row depends on the other rows of its batch; take what describes "
                "the data set (a mean, a vocabulary) from the constants, so that the server computes the same"
            )


class ExampleWriter:
    """Writes a task's part of a split: ``part-<task>.parquet`` and ``part-<task>.tfrecord.gz``.

    A task that Spark runs twice writes the same names; a part appears under its name when it is whole.

    Args:
        folder: The split's folder.
        task: The task's number.
    """

    def __init__(self, folder: Path, task: int) -> None:
        self._parquet = folder / f"part-{task:05d}.parquet"
        self._tfrecord = folder / f"part-{task:05d}.tfrecord.gz"
        self._parquet_writer: Any = None
        self._tfrecord_writer: Any = None

    def write(self, outputs: Mapping[str, Any], label: Any, label_name: str) -> None:
        """Writes one batch.

        Args:
            outputs: Arrays of shape ``[rows]`` or ``[rows, width]``.
            label: int64 of shape ``[rows]``.
            label_name: Name of its column.
        """
        columns = {**outputs, label_name: label}
        batch = pa.RecordBatch.from_arrays([_flat(v) for v in columns.values()], list(columns))
        if self._parquet_writer is None:
            self._open(batch.schema)
        self._parquet_writer.write_table(pa.Table.from_batches([batch]))
        from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder

        lists = pa.RecordBatch.from_arrays([_lists(v) for v in columns.values()], list(columns))
        write = self._tfrecord_writer.write
        for example in RecordBatchToExamplesEncoder().encode(lists):
            write(example)

    def close(self) -> None:
        """Finishes both files and gives them their names."""
        self._parquet_writer.close()
        self._tfrecord_writer.close()
        for path in (self._parquet, self._tfrecord):
            _staging(path).replace(path)
        self._parquet_writer = self._tfrecord_writer = None

    def discard(self) -> None:
        """Closes and removes what was not finished."""
        if self._parquet_writer is None:
            return
        self._parquet_writer.close()
        self._tfrecord_writer.close()
        for path in (self._parquet, self._tfrecord):
            _staging(path).unlink(missing_ok=True)

    def _open(self, schema: Any) -> None:
        from airflow_hops.runtime.tensorflow_graphs import import_tensorflow

        tf = import_tensorflow()
        self._parquet.parent.mkdir(parents=True, exist_ok=True)
        strings = [column.name for column in schema if pa.types.is_binary(column.type)]
        self._parquet_writer = pq.ParquetWriter(_staging(self._parquet), schema, use_dictionary=strings)
        # Level 1: the examples are read once or twice, and level 6 takes four times as long for a tenth less.
        options = tf.io.TFRecordOptions(compression_type="GZIP", compression_level=1)
        self._tfrecord_writer = tf.io.TFRecordWriter(str(_staging(self._tfrecord)), options)


def _staging(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def _flat(values: Any) -> Any:
    if values.ndim == 1:
        return pa.array(values, type=pa.binary()) if values.dtype == object else pa.array(values)
    flat = _flat(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _lists(values: Any) -> Any:
    """As lists, which the encoder of tf.Example wants: of int64, float32 or binary."""
    if values.dtype.kind in "iu":
        values = values.astype(np.int64, copy=False)
    elif values.dtype.kind == "f":
        values = values.astype(np.float32, copy=False)
    width = 1 if values.ndim == 1 else values.shape[1]
    offsets = np.arange(len(values) + 1, dtype=np.int32) * width
    return pa.ListArray.from_arrays(pa.array(offsets), _flat(np.ascontiguousarray(values).reshape(-1)))


def _check_widths(outputs: Mapping[str, Any], summary: TaskSummary, split: str) -> None:
    for name, values in outputs.items():
        width = None if values.ndim == 1 else int(values.shape[1])
        expected = summary.widths.setdefault(name, width)
        if width != expected:
            raise BadInput(shapes_differ(name, expected, width, f"split {split!r}"))


def shapes_differ(name: str, first: int | None, second: int | None, where: str) -> str:
    """The sentence that says so."""
    shapes = ["[batch]" if width is None else f"[batch, {width}]" for width in (first, second)]
    return (
        f"{where}: preprocessing output {name!r} has shape {shapes[0]} in one batch and {shapes[1]} in another; its "
        "width must not depend on the data"
    )


def _count_not_finite(outputs: Mapping[str, Any], summary: TaskSummary) -> None:
    for name, values in outputs.items():
        if values.dtype.kind == "f":
            bad = ~np.isfinite(values)
            count = int((bad if bad.ndim == 1 else bad.any(axis=1)).sum())
            if count:
                summary.not_finite[name] = summary.not_finite.get(name, 0) + count


def _load(path: str) -> Callable[..., dict[str, Any]]:
    """The transform graph, loaded once in a Python worker."""
    if path not in _loaded:
        from airflow_hops.runtime.tensorflow_graphs import import_tensorflow
        from airflow_hops.runtime.transform_graph import load_transform

        # Spark runs a worker for each core; threads of their own would only get into each other's way.
        threading = import_tensorflow().config.threading
        try:
            threading.set_intra_op_parallelism_threads(1)
            threading.set_inter_op_parallelism_threads(1)
        except RuntimeError:  # already in use in this process
            pass
        _loaded.clear()
        _loaded[path] = load_transform(Path(path))
    return _loaded[path]


def _task_number() -> int:
    try:
        from pyspark import TaskContext

        task = TaskContext.get()
    except ImportError:
        task = None
    return int(task.partitionId()) if task is not None else 0
