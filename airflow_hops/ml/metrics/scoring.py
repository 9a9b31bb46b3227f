"""Scores rows of examples with exported models, as a server would: raw features in, predictions out."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.core.artifacts.target import CLASS, MULTICLASS, OUTPUTS, REGRESSION, Problem
from airflow_hops.core.errors import BadInput
from airflow_hops.ml.features.raw_features import check_columns, dense_arrays
from airflow_hops.ml.features.transform_graph import SIGNATURE
from airflow_hops.ml.metrics.metrics import copies_of
from airflow_hops.ml.models.loaded_models import LoadedModel
from airflow_hops.ml.readers import scan
from airflow_hops.serving.models.model_signature import MATRIX_INPUT

BATCH_ROWS = 8192
BATCH_BLOBS = 256
"""Rows of a batch if rows hold bytes, such as an encoded image, which becomes a thousand times as large."""

MISSING = "(missing)"


class ScoredModel:
    """Signature ``serving_default`` of an exported model of any format.

    Args:
        path: The model's folder.

    Attributes:
        inputs: Dtypes (int64, float32, float64, string; ``float32[16]`` for vectors) of the raw features by name.
        problem: Problem of the model, from its outputs.
        output: Output with the prediction: ``probability``, ``probabilities`` or ``prediction``.
        classes: Number of classes of ``probabilities``; None for other outputs.

    Raises:
        BadInput: the model does not load, has another signature, or an input is not a column.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._loaded = LoadedModel(path, SIGNATURE)
        if not self._choose(""):
            expected = ", ".join(map(repr, OUTPUTS.values()))
            raise BadInput(
                f"{path}: {SIGNATURE} has none of the outputs {expected}; its outputs are "
                f"{', '.join(self._loaded.outputs)}"
            )
        self.inputs: dict[str, str] = {name: spec.column for name, spec in self._loaded.inputs.items()}
        for name, spec in self._loaded.inputs.items():
            of_row = spec.shape[1:] if spec.shape and spec.shape[0] is None else (None,)
            if len(of_row) > 1 or None in of_row or (name == MATRIX_INPUT and of_row not in ((), (1,))):
                raise BadInput(
                    f"{path}: input {name!r} has shape {spec.shape}; expected [batch] or [batch, width], to take a "
                    "column of the examples (a model that takes a matrix is exported with the names of its columns)"
                )

    def head(self, prefix: str) -> ScoredModel | None:
        """Returns the model with another label's outputs, whose names begin with ``prefix``; None if it has none."""
        other = copy.copy(self)
        return other if other._choose(prefix) else None

    def _choose(self, prefix: str) -> bool:
        """Selects the outputs whose names begin with ``prefix``; false if there are none."""
        outputs = self._loaded.outputs
        known = [problem for problem, output in OUTPUTS.items() if prefix + output in outputs]
        if not known:
            return False
        self.problem: Problem = known[0]
        self.output, self._class = prefix + OUTPUTS[self.problem], prefix + CLASS
        shape = outputs[self.output].shape or ()
        self.classes: int | None = shape[-1] if self.problem == MULTICLASS and len(shape) == 2 else None
        if self.problem == MULTICLASS and self.classes is None:
            raise BadInput(
                f"{self.path}: output {self.output!r} has shape {list(shape)}; expected [batch, classes], with the "
                "number of classes: name it where the model is exported"
            )
        return True

    def predict(self, arrays: Mapping[str, Any]) -> np.ndarray:
        """Predicts rows.

        Args:
            arrays: Raw features by name, ``[rows]``, vectors ``[rows, width]``.

        Returns:
            float32 ``[rows]``: the probability of the second class, or the predicted number; with several classes the
            probability of each, ``[rows, classes]``.

        Raises:
            BadInput: the model refuses the rows, or does not answer each of them.
        """
        values = self._run(arrays)[self.output]
        values = values.reshape(-1) if self.classes is None else values
        expected = (len(next(iter(arrays.values()))), *(() if self.classes is None else (self.classes,)))
        if values.shape != expected:
            raise BadInput(
                f"{self.path}: {self.output!r} has shape {list(values.shape)} for {expected[0]} rows, expected "
                f"{list(expected)}"
            )
        return values

    def likeliest(self, arrays: Mapping[str, object]) -> np.ndarray | None:
        """Returns names of the rows' likeliest classes, ``[rows]``; None if the model does not have this output."""
        result = self._run(arrays).get(self._class)
        if result is None or result.dtype != object:
            return None
        return np.array([name.decode() for name in result.ravel().tolist()], object)

    def _run(self, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
        inputs = self._loaded.inputs.items()
        return self._loaded.run({name: arrays[name].reshape(-1, *(spec.shape or ())[1:]) for name, spec in inputs})


@dataclass(frozen=True)
class ScoredRows:
    """Rows with their labels and the prediction of each model.

    Attributes:
        labels: 0 or 1, or the class number, int64; in a regression the number, float64; ``[rows]``.
        predictions: By model, ``[rows]``, or with several classes ``[rows, classes]``.
        slices: Values of the slicing columns as text, ``[rows]``.
        weights: Weights of the rows, ``[rows]``, or None.
        unscored: Why an optional model has no predictions, by model.
        compared: Whether the champion knows a row's class, ``[rows]``; None if it knows all.
        copies: Equal numbers for rows that are copies of each other, ``[rows]``; None if there are no copies.
    """

    labels: np.ndarray
    predictions: Mapping[str, np.ndarray]
    slices: Mapping[str, np.ndarray]
    weights: np.ndarray | None = None
    unscored: Mapping[str, str] = field(default_factory=dict)
    compared: np.ndarray | None = None
    copies: np.ndarray | None = None


def score(
    models: Mapping[str, ScoredModel],
    files: Sequence[Path],
    label: str,
    *,
    classes: int | None = None,
    weight: str | None = None,
    slices: Sequence[str] = (),
    split: str = "",
    optional: Collection[str] = (),
) -> ScoredRows:
    """Scores the rows of Parquet files with several models; each file is read once.

    Args:
        models: Models of one problem by name.
        files: Parquet files of examples.
        label: Name of the label column: 0 or 1, a class number, or any number.
        classes: Number of classes of the labels; None for the models' number.
        weight: Name of the column of the rows' weights, or None.
        slices: Columns to slice the rows by.
        split: Name of the split for messages.
        optional: Models that may be unable to score the rows, in any way that is an error of the others.

    Raises:
        BadInput: a column is missing or of another type, a label is not a class or not finite, a weight is not above 0,
            or a prediction is not finite.
    """
    first = next(iter(models.values()))
    known = {label: "float64" if first.problem == REGRESSION else "int64", **({weight: "float64"} if weight else {})}
    facts: dict[str, list[Any]] = {name: [] for name in known}
    sliced: dict[str, list[Any]] = {name: [] for name in slices}
    predictions: dict[str, list[Any]] = {name: [] for name in models}
    inputs: list[Any] = []
    where = f"split {split!r}" if split else "the examples"
    unscored: dict[str, str] = {}

    @contextmanager
    def scoring(name: str) -> Iterator[None]:
        try:
            yield
        except BadInput as error:
            if name not in optional:
                raise
            unscored[name] = str(error)

    for path in files:
        _check_slices(path, slices)
        for name, model in models.items():
            with scoring(name):
                check_columns(path, {**model.inputs, **known}, of=f"the {name} model's signature")
        able = {name: model for name, model in models.items() if name not in unscored}
        wanted = [*(column for model in able.values() for column in model.inputs), *known, *slices]
        for batch in scan.batches(path, wanted, rows=batch_rows(scan.schema(path), wanted)):
            for name, values in dense_arrays(batch, known, str(path)).items():
                facts[name].append(values)
            of_batch: dict[str, Any] = {}
            for name, model in able.items():
                if name not in unscored:
                    with scoring(name):
                        of_batch |= (arrays := dense_arrays(batch, model.inputs, str(path)))
                        predictions[name].append(model.predict(arrays))
            inputs.append(row_hashes(of_batch, batch.num_rows))
            for name in slices:
                column = batch.column(batch.schema.get_field_index(name))
                try:
                    text = column.cast(pa.string()).fill_null(MISSING)
                except pa.ArrowInvalid as error:  # bytes
                    raise BadInput(f"{path}: column {name!r} of slices is no text ({error})") from None
                sliced[name].append(text.to_numpy(zero_copy_only=False))
    joined = {name: np.concatenate(v) if v else np.zeros(0, known[name]) for name, v in facts.items()}
    scored = {
        name: np.concatenate(p) if p else _no_rows(models[name])
        for name, p in predictions.items()
        if name not in unscored
    }
    _check_labels(joined[label], label, first, classes, where)
    weights = joined[weight] if weight else None
    if weights is not None and len(wrong := weights[~(np.isfinite(weights) & (weights > 0))]):
        raise BadInput(f"{where}: weight {weight!r} is {wrong[0]} in a row, expected a finite number above 0")
    for name, p in scored.items():
        with scoring(name):
            if bad := int((~np.isfinite(p).all(axis=tuple(range(1, p.ndim)))).sum()):
                raise BadInput(
                    f"{where}: the {name} model's {models[name].output} is NaN or infinite in {bad} of {len(p)} rows "
                    f"({models[name].path})"
                )
    by = {name: np.concatenate(v) if v else np.zeros(0, object) for name, v in sliced.items()}
    finite = {name: p for name, p in scored.items() if name not in unscored}
    copies = None
    if inputs:
        hashes = np.concatenate(inputs)
        copies = copies_of(row_hashes({"inputs": hashes, "label": joined[label]}, len(hashes)), hashes)
    return ScoredRows(joined[label], finite, by, weights, unscored, copies=copies)


def row_hashes(columns: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
    """Returns a number for each row that depends on its values, uint64 ``[rows]``; valid in this process alone."""
    hashes = np.zeros(rows, np.uint64)
    for name in sorted(columns):
        for column in columns[name].reshape(rows, -1).T:
            values: np.ndarray
            if column.dtype == object:
                values = np.array([hash(value) for value in column.tolist()], np.int64)
            elif np.issubdtype(column.dtype, np.floating):
                values = column.astype(np.float64) + 0.0  # -0.0 is 0.0
            else:
                values = column.astype(np.int64)
            hashes = (hashes ^ values.view(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            hashes ^= hashes >> np.uint64(29)
    return hashes


def _check_slices(path: Path, slices: Sequence[str]) -> None:
    """Raises BadInput for a column that has no text for each row."""
    schema = scan.schema(path)
    for name in [name for name in slices if name in schema.names]:  # reading the file reports others
        kind = schema.field(name).type
        try:
            pa.nulls(0, kind).cast(pa.string())
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            raise BadInput(
                f"{path}: column {name!r} of slices is {kind}; expected one number, text or time in each row: slice by "
                "another column, or make one of it in prepare()"
            ) from None


def batch_rows(schema: pa.Schema, columns: Sequence[str]) -> int:
    """Returns how many rows may be scored at once with these columns."""
    blobs = any(field.name in columns and pa.types.is_binary(field.type) for field in schema)
    return BATCH_BLOBS if blobs else BATCH_ROWS


def _no_rows(model: ScoredModel) -> np.ndarray:
    return np.zeros(0 if model.classes is None else (0, model.classes), np.float32)


def _check_labels(labels: np.ndarray, name: str, model: ScoredModel, classes: int | None, where: str) -> None:
    if model.problem == REGRESSION:
        wrong, expected = labels[~np.isfinite(labels)], "a finite number"
    else:
        count = classes or model.classes or 2
        wrong = labels[(labels < 0) | (labels >= count)]
        expected = "0 or 1" if count == 2 else f"a class's number, 0 to {count - 1}"
    if len(wrong):
        raise BadInput(f"{where}: label {name!r} is {wrong[0]} in a row, expected {expected}")
