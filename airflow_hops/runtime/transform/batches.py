"""The transform in a Spark task: runs the graph over Arrow batches of its part of a split, and writes the examples.

Parquet for whoever trains on columns, TFRecord of tf.Example for whoever trains on those.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.contract.target import Target
from airflow_hops.data.feature_specs import OutputSpec
from airflow_hops.data.raw_features import dense_arrays
from airflow_hops.processes.tensorflow_graphs import import_tensorflow, use_one_thread
from airflow_hops.runtime.transform.graph import load_transform

BATCH_ROWS = 65_536
"""Rows of an Arrow batch."""

TASK_ROWS = 500_000
"""Rows that a task takes at least, where a file has more than one row group."""

_PROBED_ROWS = 32
_loaded: dict[str, Callable[..., dict[str, Any]]] = {}


@dataclass(frozen=True)
class TransformTask:
    """A part of a split: row groups of one Parquet file of examples, and the number of what is made of them."""

    split: str
    path: str
    row_groups: tuple[int, ...]
    rows: int
    part: int


@dataclass(frozen=True)
class TransformPlan:
    """The plan that every task gets.

    Attributes:
        transform_graph: Folder of the SavedModel; every executor can read it.
        folder: Folder to write to, with a folder per split; every executor can write to it.
        inputs: Dtypes of the raw features and the time column by name.
        outputs: What the graph puts out.
        target: What is to be predicted; labels and weight are kept as they are.
    """

    transform_graph: str
    folder: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, OutputSpec]
    target: Target


@dataclass
class TaskSummary:
    """The summary of a task: one line of JSON that it hands to the driver.

    Attributes:
        split: The split that the task worked on.
        rows: Rows written.
        widths: Widths of the outputs as found in the data; None for shape ``[batch]``.
        not_finite: Outputs with NaN or infinity: how many rows.
        error: What is wrong with the input, or None.
        no_space: Whether the disk is full.
    """

    split: str
    rows: int = 0
    widths: dict[str, int | None] = field(default_factory=dict)
    not_finite: dict[str, int] = field(default_factory=dict)
    error: str | None = None
    no_space: bool = False

    def to_json(self) -> str:
        """One line."""
        return json.dumps(self.__dict__)


def plan_tasks(files: Sequence[tuple[str, Path]]) -> list[TransformTask]:
    """Shares out files of examples among tasks, the largest first, so that the last to end is a small one.

    Args:
        files: Split and path of each file.
    """
    tasks: list[TransformTask] = []
    parts: dict[str, int] = {}
    for split, path in files:
        metadata = pq.read_metadata(path)
        groups: list[int] = []
        rows = 0
        for index in range(metadata.num_row_groups):
            groups.append(index)
            rows += metadata.row_group(index).num_rows
            if rows and (rows >= TASK_ROWS or index == metadata.num_row_groups - 1):
                tasks.append(TransformTask(split, str(path), tuple(groups), rows, parts.setdefault(split, 0)))
                parts[split] += 1
                groups, rows = [], 0
    return sorted(tasks, key=lambda task: -task.rows)


def transform_task(plan: TransformPlan, task: TransformTask) -> str:
    """Does a task.

    Bad input goes into the summary, so that the driver can say it in one sentence; everything else raises.

    Returns:
        The :class:`TaskSummary` as JSON.
    """
    summary = TaskSummary(task.split)
    try:
        _transform(plan, task, summary)
    except BadInput as error:
        summary.error = str(error)
    except pa.ArrowInvalid as error:
        summary.error = f"{task.path}: not a readable Parquet file ({error})"
    except Exception as error:
        # Arrow says it with an error number, TensorFlow with words.
        if os.strerror(errno.ENOSPC) in str(error):
            summary.error, summary.no_space = f"no space left on the device of {plan.folder} ({error})", True
        elif isinstance(error, OSError) and error.errno is None:
            summary.error = f"{task.path}: not a readable Parquet file ({error})"
        else:
            raise
    return summary.to_json()


def _transform(plan: TransformPlan, task: TransformTask, summary: TaskSummary) -> None:
    transform = _load(plan.transform_graph)
    columns = {**plan.inputs, **plan.target.dtypes}
    with (
        pq.ParquetFile(task.path) as file,
        ExampleWriter(Path(plan.folder) / task.split, task.part) as writer,
    ):
        for batch in file.iter_batches(batch_size=BATCH_ROWS, row_groups=list(task.row_groups), columns=list(columns)):
            if not batch.num_rows:
                continue
            arrays = dense_arrays(batch, columns, f"split {task.split!r} ({task.path})")
            kept = {name: arrays.pop(name) for name in plan.target.dtypes}
            _check_finite(kept, f"split {task.split!r} ({task.path})")
            outputs = run_graph(transform, arrays, plan, task.split)
            if not summary.rows:
                check_rows_are_independent(transform, arrays, outputs, plan, task.split)
            _check_widths(outputs, summary, task.split)
            _count_not_finite(outputs, summary)
            writer.write({**outputs, **kept})
            summary.rows += batch.num_rows
        writer.commit()


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
    """Writes a part of a split: ``part-<number>.parquet`` and ``part-<number>.tfrecord.gz``.

    A task that Spark runs twice writes the same names; a part bears its name when it is whole. A context manager, which
    removes what was not committed.

    Args:
        folder: The split's folder.
        part: Its number within the split.
    """

    def __init__(self, folder: Path, part: int) -> None:
        self._parquet = folder / f"part-{part:05d}.parquet"
        self._tfrecord = folder / f"part-{part:05d}.tfrecord.gz"
        self._parquet_writer: Any = None
        self._tfrecord_writer: Any = None

    def __enter__(self) -> ExampleWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._parquet_writer is None:
            return
        for writer in (self._parquet_writer, self._tfrecord_writer):
            with contextlib.suppress(Exception):  # a full disk refuses the last bytes too
                writer.close()
        for path in (self._parquet, self._tfrecord):
            _staging(path).unlink(missing_ok=True)

    def write(self, columns: Mapping[str, Any]) -> None:
        """Writes one batch.

        Args:
            columns: The outputs, the labels and, if there is one, the weight: arrays of shape ``[rows]`` or
                ``[rows, width]``.
        """
        batch = pa.RecordBatch.from_arrays([_flat(v) for v in columns.values()], list(columns))
        if self._parquet_writer is None:
            self._open(batch.schema)
        self._parquet_writer.write_table(pa.Table.from_batches([batch]))
        from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder

        lists = pa.RecordBatch.from_arrays([_lists(v) for v in columns.values()], list(columns))
        write = self._tfrecord_writer.write
        for example in RecordBatchToExamplesEncoder().encode(lists):
            write(example)

    def commit(self) -> None:
        """Finishes both files and gives them their names."""
        self._parquet_writer.close()
        self._tfrecord_writer.close()
        self._parquet_writer = None
        for path in (self._parquet, self._tfrecord):
            _staging(path).replace(path)

    def _open(self, schema: Any) -> None:
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
    offsets: Any = np.arange(len(values) + 1, dtype=np.int32) * width
    return pa.ListArray.from_arrays(pa.array(offsets), _flat(np.ascontiguousarray(values).reshape(-1)))


def _check_finite(kept: Mapping[str, Any], where: str) -> None:
    for name, values in kept.items():
        if bad := int((~np.isfinite(values)).sum()):
            raise BadInput(
                f"{where}: column {name!r}, a label or a weight, is missing, NaN or infinite in {bad} of {len(values)} "
                "rows; give those rows a reject_reason in prepare()"
            )


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
        use_one_thread()
        _loaded.clear()
        _loaded[path] = load_transform(Path(path))
    return _loaded[path]
