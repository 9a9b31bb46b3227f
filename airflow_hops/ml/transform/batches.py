"""Transforms a part of a split: runs the graph on Arrow batches, and writes the examples.

Parquet is for trainings on columns, TFRecord for those on tf.Example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.core.artifacts.target import Target
from airflow_hops.core.errors import BadInput
from airflow_hops.ml.features.feature_specs import OutputSpec
from airflow_hops.ml.features.raw_features import dense_arrays
from airflow_hops.ml.features.transform_graph import load_transform
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import File, OutputFolder, fetched, unpacked
from airflow_hops.ml.spark.pools import SplitSummary, StagedFiles

BATCH_ROWS = 16_384
"""Rows per call of the graph, which determine the memory of a Python worker."""

PART_ROWS = 500_000
"""Minimum rows per part, if a file has several row groups."""

_PROBED_ROWS = 32
_ENCODED_ROWS = 8_192  # per call: the encoder holds all examples in memory
_loaded: dict[Path, Callable[..., dict[str, object]]] = {}


@dataclass(frozen=True)
class TransformPart:
    """Part of a split: row groups of one Parquet file of examples, and the number in the names of the written files."""

    split: str
    file: File
    row_groups: tuple[int, ...]
    rows: int
    number: int


@dataclass(frozen=True)
class TransformPlan:
    """Plan that every part gets.

    Attributes:
        transform_graph: Folder of the SavedModel, or its archive, for executors on other hosts.
        folder: Folder to write to, with a subfolder per split.
        inputs: Dtypes of the raw features and the time column, by name.
        outputs: Outputs of the graph.
        target: Labels and weight, which are copied unchanged.
    """

    transform_graph: Path | bytes
    folder: OutputFolder
    inputs: Mapping[str, str]
    outputs: Mapping[str, OutputSpec]
    target: Target


def plan_parts(files: Sequence[tuple[str, File]]) -> list[TransformPart]:
    """Divides files of examples, with their splits, into parts, the largest first, so that the last to end is small."""
    parts: list[TransformPart] = []
    numbers: dict[str, int] = {}
    for split, file in files:
        for groups, rows in scan.parts(scan.footer(file), PART_ROWS):
            parts.append(TransformPart(split, file, groups, rows, numbers.setdefault(split, 0)))
            numbers[split] += 1
    return sorted(parts, key=lambda part: -part.rows)


def transform_part(plan: TransformPlan, part: TransformPart) -> str:
    """Transforms a part; returns its :class:`SplitSummary` as JSON."""
    summary = SplitSummary(part.split)
    with summary.recording_errors(plan.folder.path):
        graph = unpacked(plan.transform_graph)
        if graph not in _loaded:
            _loaded.clear()
            _loaded[graph] = load_transform(graph)
        transform = _loaded[graph]
        columns = {**plan.inputs, **plan.target.dtypes}
        with (
            fetched(part.file) as path,
            plan.folder.writing(summary.uploaded) as folder,
            ExampleWriter(folder / part.split, part.number) as writer,
        ):
            for batch in scan.batches(path, columns, rows=BATCH_ROWS, row_groups=part.row_groups):
                arrays = dense_arrays(batch, columns, f"split {part.split!r} ({part.file})")
                retained = {name: arrays.pop(name) for name in plan.target.dtypes}
                for name, values in retained.items():
                    if bad := int((~np.isfinite(values)).sum()):
                        raise BadInput(
                            f"split {part.split!r} ({part.file}): column {name!r}, a label or a weight, is missing, "
                            f"NaN or infinite in {bad} of {len(values)} rows; give those rows a reject_reason in "
                            "prepare()"
                        )
                outputs = run_graph(transform, arrays, plan, part.split)
                if not summary.rows:
                    check_rows_are_independent(transform, arrays, outputs, plan, part.split)
                for name, values in outputs.items():
                    width = None if values.ndim == 1 else int(values.shape[1])
                    expected = summary.widths.setdefault(name, width)
                    if width != expected:
                        raise BadInput(shapes_differ(name, expected, width, f"split {part.split!r}"))
                summary.count_not_finite(outputs)
                writer.write({**outputs, **retained})
                summary.rows += batch.num_rows
    return summary.to_json()


def run_graph(
    transform: Callable[..., dict[str, object]], arrays: Mapping[str, np.ndarray], plan: TransformPlan, split: str
) -> dict[str, np.ndarray]:
    """Runs the graph on one batch of raw features of shape ``[rows]``.

    Returns:
        Arrays of shape ``[rows]`` or ``[rows, width]`` in the order of ``plan.outputs``.

    Raises:
        BadInput: the graph fails on the values, or an output does not have one entry per row.
    """
    from tensorflow.python.framework.errors_impl import OpError

    rows = len(next(iter(arrays.values())))
    try:
        result = transform(**arrays)
    except (OpError, ValueError) as error:
        raise BadInput(f"split {split!r}: the transform graph fails on a batch of {rows} rows: {error}") from None
    outputs = {name: np.asarray(result[name]) for name in plan.outputs}
    for name, values in outputs.items():
        if values.ndim not in (1, 2) or values.shape[0] != rows:
            raise BadInput(
                f"split {split!r}: preprocessing output {name!r} has shape {list(values.shape)} for a batch of {rows} "
                f"rows; expected [{rows}] or [{rows}, width]"
            )
    return outputs


def check_rows_are_independent(
    transform: Callable[..., dict[str, object]],
    arrays: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    plan: TransformPlan,
    split: str,
) -> None:
    """Runs a few rows again without the others: a row's outputs must not depend on its batch.

    A function that uses the mean of its batch would transform differently in training and serving.

    Raises:
        BadInput: an output of a row, or its width, depends on the other rows of its batch.
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


class ExampleWriter(StagedFiles):
    """Writes a part of a split: ``part-<number>.parquet`` and ``part-<number>.tfrecord.gz``."""

    def __init__(self, folder: Path, part: int) -> None:
        super().__init__()
        self._path = folder / f"part-{part:05d}"
        self._tfrecord: Any = None

    def write(self, columns: Mapping[str, np.ndarray]) -> None:
        """Writes one batch of outputs, labels and weight: arrays of shape ``[rows]`` or ``[rows, width]``."""
        batch = pa.RecordBatch.from_arrays([_flat(v) for v in columns.values()], list(columns))
        strings = [column.name for column in batch.schema if pa.types.is_binary(column.type)]
        self.write_rows(self._path.with_suffix(".parquet"), batch, use_dictionary=strings)
        if self._tfrecord is None:
            from tensorflow.python.lib.io.tf_record import TFRecordOptions, TFRecordWriter

            # Level 1: level 6 takes four times as long for 10% less, and examples are read only once or twice.
            options = TFRecordOptions(compression_type="GZIP", compression_level=1)
            of_records = partial(TFRecordWriter, options=options)
            self._tfrecord = self.open(self._path.with_suffix(".tfrecord.gz"), of_records)
        from tensorflow.core.example.example_pb2 import Example
        from tfx_bsl.coders.example_coder import RecordBatchToExamplesEncoder

        lists = pa.RecordBatch.from_arrays([_lists(v) for v in columns.values()], list(columns))
        write = self._tfrecord.write
        for start in range(0, lists.num_rows, _ENCODED_ROWS):
            for example in RecordBatchToExamplesEncoder().encode(lists.slice(start, _ENCODED_ROWS)):
                # The encoder writes features in an order that differs from process to process.
                write(Example.FromString(example).SerializeToString(deterministic=True))


def _flat(values: np.ndarray) -> pa.Array:
    if values.ndim == 1:
        return pa.array(values, type=pa.binary()) if values.dtype == object else pa.array(values)
    flat = _flat(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def _lists(values: np.ndarray) -> pa.ListArray:
    """Converts to lists of int64, float32 or binary, as the encoder of tf.Example requires."""
    if values.dtype.kind in "iu":
        values = values.astype(np.int64, copy=False)
    elif values.dtype.kind == "f":
        values = values.astype(np.float32, copy=False)
    width = 1 if values.ndim == 1 else values.shape[1]
    offsets: np.ndarray = np.arange(len(values) + 1, dtype=np.int32) * width
    return pa.ListArray.from_arrays(pa.array(offsets), _flat(np.ascontiguousarray(values).reshape(-1)))


def shapes_differ(name: str, first: int | None, second: int | None, where: str) -> str:
    """Returns the error message for an output with varying width."""
    shapes = ["[batch]" if width is None else f"[batch, {width}]" for width in (first, second)]
    return (
        f"{where}: preprocessing output {name!r} has shape {shapes[0]} in one batch and {shapes[1]} in another; its "
        "width must not depend on the data"
    )
