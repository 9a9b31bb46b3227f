"""Scores rows of examples with exported models, as a server would: raw features in, probabilities out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.data.raw_features import check_columns, dense_arrays
from airflow_hops.processes.tensorflow_graphs import import_tensorflow
from airflow_hops.runtime.transform.graph import PROBABILITIES, PROBABILITY, SIGNATURE
from airflow_hops.runtime.transform.signature_inputs import LoadedSignature

BATCH_ROWS = 8192
BATCH_BLOBS = 256
"""Rows of a batch where a row holds bytes, such as an encoded image, which becomes a thousand times as large."""

MISSING = "(missing)"


class ServedModel:
    """The signature ``serving_default`` of an exported SavedModel.

    Args:
        path: The SavedModel's folder.

    Attributes:
        inputs: Dtypes of the raw features by name.
        output: ``probability``, or, of several classes, ``probabilities``.
        classes: How many classes there are; None for a label of 0 or 1.

    Raises:
        BadInput: it does not load, or its signature is another.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        tf = import_tensorflow()
        try:
            self._loaded = tf.saved_model.load(str(path))
        except Exception as error:  # a damaged file can fail in any way
            raise BadInput(f"{path}: the SavedModel does not load ({type(error).__name__}: {error})") from error
        signatures = self._loaded.signatures
        if SIGNATURE not in signatures:
            raise BadInput(f"{path}: there is no signature {SIGNATURE!r}; there are {', '.join(signatures)}")
        self._signature = LoadedSignature(path, self._loaded, SIGNATURE)
        outputs = self._signature.outputs
        if PROBABILITY not in outputs and PROBABILITIES not in outputs:
            found = ", ".join(outputs)
            raise BadInput(
                f"{path}: {SIGNATURE} has no output {PROBABILITY!r} or {PROBABILITIES!r}; its outputs are {found}"
            )
        self.output = PROBABILITY if PROBABILITY in outputs else PROBABILITIES
        self.classes: int | None = None if self.output == PROBABILITY else int(outputs[PROBABILITIES].shape[1])
        self.inputs: dict[str, str] = {name: spec.dtype.name for name, spec in self._signature.inputs.items()}

    def probabilities(self, arrays: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """Probabilities of rows.

        Args:
            arrays: Raw features of shape ``[rows]`` by name.

        Returns:
            float32 of shape ``[rows]``; of several classes ``[rows, classes]``.
        """
        tf = import_tensorflow()
        tensors = {name: tf.constant(arrays[name], dtype) for name, dtype in self.inputs.items()}
        values: np.ndarray[Any, Any] = self._signature(tensors)[self.output].numpy()
        return values.reshape(-1) if self.classes is None else values


@dataclass(frozen=True)
class ScoredRows:
    """Rows with their labels and what each model says of them.

    Attributes:
        labels: 0 or 1, or the class's number; shape ``[rows]``.
        probabilities: By model, shape ``[rows]``, or of several classes ``[rows, classes]``.
        slices: Values of the slicing columns as text, shape ``[rows]``.
    """

    labels: np.ndarray[Any, Any]
    probabilities: Mapping[str, np.ndarray[Any, Any]]
    slices: Mapping[str, np.ndarray[Any, Any]]


def score(
    models: Mapping[str, ServedModel], files: Sequence[Path], label: str, *, slices: Sequence[str] = (), split: str = ""
) -> ScoredRows:
    """Scores the rows of Parquet files with several models, each file read once.

    Args:
        models: Models by name.
        files: Parquet files of examples.
        label: Name of the label column: 0 or 1, or the number of one of the models' classes.
        slices: Columns by whose values the rows are to be told apart.
        split: For messages.

    Raises:
        BadInput: a column is missing or of another type, a label is no class, or a probability is not finite.
    """
    labels: list[Any] = []
    probabilities: dict[str, list[Any]] = {name: [] for name in models}
    values: dict[str, list[Any]] = {name: [] for name in slices}
    where = f"split {split!r}" if split else "the examples"
    for path in files:
        for name, model in models.items():
            check_columns(path, model.inputs, label=label, of=f"the {name} model's signature")
        columns = list(dict.fromkeys([*(c for model in models.values() for c in model.inputs), label, *slices]))
        _check_slices(path, slices)
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=batch_rows(file.schema_arrow, columns), columns=columns):
                if not batch.num_rows:
                    continue
                labels.append(dense_arrays(batch, {label: "int64"}, str(path))[label])
                for name, model in models.items():
                    probabilities[name].append(model.probabilities(dense_arrays(batch, model.inputs, str(path))))
                for name in slices:
                    values[name].append(_as_text(batch.column(batch.schema.get_field_index(name))))
    joined = np.concatenate(labels) if labels else np.zeros(0, np.int64)
    classes = next(iter(models.values())).classes
    wrong = joined[(joined < 0) | (joined >= (classes or 2))]
    if len(wrong):
        expected = "0 or 1" if classes is None else f"a class's number, 0 to {classes - 1}"
        raise BadInput(f"{where}: label {label!r} is {int(wrong[0])} in a row, expected {expected}")
    scored = {name: np.concatenate(p) if p else _no_rows(models[name]) for name, p in probabilities.items()}
    for name, p in scored.items():
        bad = int((~np.isfinite(p).all(axis=tuple(range(1, p.ndim)))).sum())
        if bad:
            raise BadInput(
                f"{where}: the {name} model's probability is NaN or infinite in {bad} of {len(p)} rows "
                f"({models[name].path})"
            )
    return ScoredRows(
        joined, scored, {name: np.concatenate(v) if v else np.zeros(0, object) for name, v in values.items()}
    )


def batch_rows(schema: pa.Schema, columns: Sequence[str]) -> int:
    """Rows that may be scored at once, given the columns that a model takes."""
    blobs = any(field.name in columns and pa.types.is_binary(field.type) for field in schema)
    return BATCH_BLOBS if blobs else BATCH_ROWS


def _no_rows(model: ServedModel) -> np.ndarray[Any, Any]:
    return np.zeros(0 if model.classes is None else (0, model.classes), np.float32)


def _check_slices(path: Path, slices: Sequence[str]) -> None:
    names = pq.read_schema(path).names
    for name in slices:
        if name not in names:
            raise BadInput(f"{path}: there is no column {name!r} to slice by; the columns are {', '.join(names)}")


def _as_text(column: Any) -> np.ndarray[Any, Any]:
    text: np.ndarray[Any, Any] = column.cast(pa.string()).fill_null(MISSING).to_numpy(zero_copy_only=False)
    return text
