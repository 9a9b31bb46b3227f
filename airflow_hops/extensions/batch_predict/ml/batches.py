"""Predicts for a part of a split: runs a signature on its Arrow batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.parquet_writer import parquet_writer
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.features.raw_features import check_columns, dense_arrays
from airflow_hops.ml.models.loaded_models import LoadedModel, model_folder
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import File, OutputFolder, fetched
from airflow_hops.ml.readers.vectors import is_list
from airflow_hops.ml.spark.pools import SplitSummary, StagedFiles, use_one_thread
from airflow_hops.ml.transform.batches import TransformPart

Array = np.ndarray
_loaded: dict[tuple[str, str], SignatureModel] = {}


@dataclass(frozen=True)
class PredictionPlan:
    """Plan that every part gets.

    Attributes:
        model: The model's artifact.
        store: Store from which executors fetch the model.
        folder: Folder to write to, with a subfolder per split.
        columns: Columns of the examples that are copied beside the predictions.
        batch_rows: Rows per call of the model.
    """

    model: Artifact
    store: ArtifactStore
    signature: str
    folder: OutputFolder
    columns: tuple[str, ...]
    batch_rows: int


class SignatureModel:
    """Signature of a model of any format whose inputs are columns of the examples.

    Attributes:
        inputs: TensorFlow name of the dtype, by input.
        outputs: NumPy dtype, and whether a row has a single value, by output.

    Raises:
        BadInput: the model does not load, has no such signature, or an input's shape is neither ``[batch]`` nor
            ``[batch, width]``.
    """

    def __init__(self, path: Path, signature: str, *, threads: int = 0) -> None:
        self._model = LoadedModel(path, signature, threads=threads)
        for name, spec in self._model.inputs.items():
            if spec.shape is None or len(spec.shape) not in (1, 2) or spec.shape[0] is not None:
                raise BadInput(
                    f"{path}: input {name!r} of signature {signature!r} has shape {spec.shape}; expected [None] or "
                    "[None, width], to take a column of the examples"
                )
        self.inputs: dict[str, str] = {name: spec.dtype for name, spec in self._model.inputs.items()}
        self.outputs: dict[str, tuple[Any, bool]] = {
            name: (_wide(spec.numpy), spec.shape is not None and (len(spec.shape) == 1 or spec.shape[1:] == (1,)))
            for name, spec in self._model.outputs.items()
        }

    def check(self, file: File) -> None:
        """Compares a file's columns with the inputs.

        Raises:
            BadInput: a column is missing or has another type.
        """
        schema = scan.schema(file)
        # If the signature leaves the width of lists open, the first row determines it.
        report = {n: s.column for n, s in self._model.inputs.items() if "[" in s.column or not _is_list(schema, n)}
        check_columns(file, report, of="the model's signature")

    def predict(self, batch: pa.RecordBatch, where: str) -> dict[str, Array]:
        """Runs the signature on an Arrow record batch; returns arrays of shape ``[rows, ...]`` by output.

        Half floats become float32, which holds them exactly.

        Raises:
            BadInput: the model fails on the values, or an output does not have one entry per row.
        """
        arrays = {name: self._array(name, batch, where) for name in self.inputs}
        try:
            outputs = self._model.run(arrays)
        except BadInput as error:
            raise BadInput(f"{where}: the model fails on a batch of {batch.num_rows} rows: {error}") from None
        for name, values in outputs.items():
            if not values.ndim or len(values) != batch.num_rows:
                raise BadInput(
                    f"{where}: output {name!r} has shape {list(values.shape)} for a batch of {batch.num_rows} rows; "
                    f"expected [{batch.num_rows}, ...]"
                )
        return {name: values.astype(_wide(values.dtype), copy=False) for name, values in outputs.items()}

    def _array(self, name: str, batch: pa.RecordBatch, where: str) -> Array:
        spec = self._model.inputs[name]
        column = batch.column(batch.schema.get_field_index(name))
        dtype = spec.column
        if is_list(column.type) and "[" not in dtype:
            lengths = pc.list_value_length(column).drop_null()
            if not len(lengths) or not lengths[0].as_py():
                raise BadInput(
                    f"{where}: column {name!r} has {'an empty list first' if len(lengths) else 'no list'} in "
                    f"{batch.num_rows} rows, and the signature leaves the lists' length open; export the model with "
                    "an input [None, length], or leave out such rows"
                )
            dtype += f"[{lengths[0].as_py()}]"
        values: Array = dense_arrays(pa.RecordBatch.from_arrays([column], [name]), {name: dtype}, where)[name]
        if spec.shape is not None and len(spec.shape) == 2:
            return values.reshape(len(values), -1)
        return values[:, 0] if values.shape[1:] == (1,) else values


def predict_part(plan: PredictionPlan, part: TransformPart) -> str:
    """Predicts for a part; returns its :class:`~airflow_hops.ml.spark.pools.SplitSummary` as JSON."""
    summary = SplitSummary(part.split)
    with summary.recording_errors(plan.folder.path):
        key = (plan.model.fingerprint, plan.signature)
        if key not in _loaded:
            use_one_thread()
            _loaded.clear()
            _loaded[key] = SignatureModel(model_folder(plan.store, plan.model), plan.signature, threads=1)
        model = _loaded[key]
        writer: Any = None
        with (
            fetched(part.file) as path,
            plan.folder.writing(summary.uploaded) as folder,
            StagedFiles() as files,
        ):
            target = folder / part.split / f"part-{part.number:05d}.parquet"
            columns = [*model.inputs, *plan.columns]
            for batch in scan.batches(path, columns, rows=plan.batch_rows, row_groups=part.row_groups):
                outputs = model.predict(batch, f"split {part.split!r} ({part.file})")
                summary.count_not_finite(outputs)
                retained = [batch.column(batch.schema.get_field_index(name)) for name in plan.columns]
                made = [_as_column(values) for values in outputs.values()]
                written = pa.RecordBatch.from_arrays([*retained, *made], [*plan.columns, *outputs])
                if writer is None:
                    writer = files.open(target, partial(parquet_writer, schema=written.schema))
                writer.write_table(pa.Table.from_batches([written]))
                summary.rows += batch.num_rows
    return summary.to_json()


def empty_predictions(model: SignatureModel, plan: PredictionPlan, file: File) -> Any:
    """Returns an empty table with the columns of the predictions."""
    schema = scan.schema(file)
    fields = [schema.field(name) for name in plan.columns]
    for name, (dtype, scalar) in model.outputs.items():
        item = pa.binary() if dtype.kind == "O" else pa.from_numpy_dtype(dtype)
        fields.append(pa.field(name, item if scalar else pa.list_(item)))
    return pa.schema(fields).empty_table()


def _as_column(values: Array) -> Any:
    """Converts an output to a column: a scalar per row if it has a single value, else a list."""
    if values.ndim == 1:
        return pa.array(values, type=pa.binary()) if values.dtype == object else pa.array(values)
    if values.ndim == 2 and values.shape[1] == 1:
        return _as_column(values[:, 0])
    width = values.shape[1]
    items = np.ascontiguousarray(values).reshape(-1, *values.shape[2:])
    offsets: Any = np.arange(len(values) + 1, dtype=np.int32) * width
    return pa.ListArray.from_arrays(pa.array(offsets), _as_column(items))


def _wide(dtype: np.dtype) -> np.dtype:
    """Returns float32 for float16 and bfloat16, of which Arrow has no columns, and other types as they are."""
    return np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind in "fV" else dtype


def _is_list(schema: pa.Schema, name: str) -> bool:
    index = schema.get_field_index(name)
    if index < 0:
        return False
    return is_list(schema.field(index).type)
