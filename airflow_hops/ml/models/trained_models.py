"""Predictions of trained models of any framework, which the exported model must reproduce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.target import BINARY, MULTICLASS, OUTPUTS, Target, check_heads
from airflow_hops.core.serving_api import tensors
from airflow_hops.ml.features.predictions import check_predictions
from airflow_hops.ml.models.frameworks import frameworks
from airflow_hops.serving.models.estimator_signature import MATRIX_INPUT, EstimatorInputs

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sample:
    """Rows as a model takes them.

    Attributes:
        inputs: The same inputs in the model server's terms: columns with their types, or a matrix.
        order: Names of the columns; None for a matrix without column names.
        labels: Names of the rows, for messages.
    """

    rows: Any
    inputs: EstimatorInputs
    order: tuple[str, ...] | None
    labels: Sequence[Any]

    @classmethod
    def of(cls, rows: Any, order: Sequence[str] | None) -> Sample:
        """Makes a sample from a data frame or a matrix.

        Raises:
            BadInput: it is neither, it has no rows, or a column has a type that requests cannot hold.
        """
        if hasattr(rows, "columns"):
            inputs = EstimatorInputs({str(name): _column_type(str(name), rows[name]) for name in rows.columns})
            names = tuple(inputs.columns)
            if order is not None and tuple(order) != names:
                raise BadInput(f"order is {', '.join(order)}, but the sample's columns are {', '.join(names)}")
            sample = cls(rows, inputs, names, list(rows.index))
        else:
            matrix = np.asarray(rows)
            if matrix.ndim != 2 or matrix.dtype.kind not in "fiub":
                raise BadInput(
                    f"the sample is {matrix.dtype} of shape {list(matrix.shape)}; expected a data frame, or numbers "
                    "[rows, width]"
                )
            inputs = EstimatorInputs({MATRIX_INPUT: tensors.BY_NAME["float"]}, matrix.shape[1])
            sample = cls(matrix, inputs, None if order is None else tuple(order), range(len(matrix)))
        if not len(rows):
            raise BadInput("the sample has no rows; expected held-out rows, to check the exported model")
        return sample

    def columns_of_requests(self, widths: Mapping[str, int]) -> EstimatorInputs:
        """Returns the inputs of requests, for a model without a transform graph.

        ``widths`` are the numbers of columns of vectors, by name.

        Raises:
            BadInput: the order does not have as many columns as the matrix.
        """
        if self.inputs.width is None or self.order is None:
            return self.inputs
        columns = sum(widths.get(name, 1) for name in self.order)
        if columns != self.inputs.width:
            raise BadInput(f"order has {columns} columns ({', '.join(self.order)}), and the sample {self.inputs.width}")
        vectors = {name: widths[name] for name in self.order if name in widths}
        return EstimatorInputs(dict.fromkeys(self.order, tensors.BY_NAME["float"]), vectors=vectors)

    @property
    def matrix(self) -> Array:
        """Rows as float32 numbers.

        Raises:
            BadInput: a column holds strings.
        """
        if self.inputs.width is None:
            for name, kind in self.inputs.columns.items():
                if kind is tensors.STRING:
                    raise BadInput(f"column {name!r} of the sample holds strings; expected numbers alone")
        return np.asarray(self.rows, dtype=np.float32)

    def columns(self) -> list[Array]:
        """Returns the columns of the data frame or matrix: numbers, or objects."""
        if self.inputs.width is not None:
            rows = np.asarray(self.rows)
            return list((rows if rows.dtype.kind == "f" else rows.astype(np.float32)).T)
        return [self.rows[name].to_numpy() for name in self.rows.columns]

    def column_name(self, number: int) -> str:
        """Returns the name of a column for messages."""
        names = self.inputs.columns if self.inputs.width is None else self.order or ()
        is_named = len(names) == (self.inputs.width or len(names))
        return repr(list(names)[number]) if is_named else f"column {number} of the matrix"

    def with_columns(self, columns: Sequence[Array], labels: Sequence[Any]) -> Sample:
        """Returns other rows of the same inputs."""
        if self.inputs.width is not None:
            return replace(self, rows=np.stack(columns, axis=1), labels=labels)
        frame = type(self.rows)(dict(zip(self.rows.columns, columns, strict=True)))
        return replace(self, rows=frame, labels=labels)

    def rounded(self) -> Sample:
        """Returns the rows with numbers rounded to float32, as the server holds them."""
        columns = [
            column.astype(np.float32).astype(column.dtype) if column.dtype.kind == "f" else column
            for column in self.columns()
        ]
        return self.with_columns(columns, self.labels)

    def take(self, rows: Array) -> Sample:
        """Returns the rows with the given numbers."""
        return self.with_columns([column[rows] for column in self.columns()], [self.labels[row] for row in rows])

    def between(self, first: int, end: int) -> Sample:
        """Returns some of the rows."""
        rows = self.rows[first:end] if self.inputs.width is not None else self.rows.iloc[first:end]
        return replace(self, rows=rows, labels=self.labels[first:end])

    def arrays(self, inputs: EstimatorInputs) -> dict[str, Array]:
        """Returns the rows as a request holds them."""
        if inputs.width is not None:
            ((name, kind),) = inputs.columns.items()
            return {name: _as_texts(np.asarray(self.rows)) if kind is tensors.STRING else self.matrix}
        return {
            name: _as_texts(self.rows[name].to_numpy())
            if kind is tensors.STRING
            else self.rows[name].to_numpy().astype(kind.numpy)
            for name, kind in inputs.columns.items()
        }


def answers_of(model: Any, sample: Sample, framework: str, target: Target, *, checked: bool = True) -> dict[str, Array]:
    """Returns a model's predictions for the rows, by the names of the served outputs.

    Args:
        model: The model, or one for each label by name; one model may return a dict by label, with other
            arrays ``[batch, …]`` by other names.
        sample: The rows.
        framework: The framework that it was trained with.
        target: What it predicts.
        checked: Whether predictions must be finite, and probabilities between 0 and 1.

    Returns:
        float64: for a label, the probability of the second class, those of all classes, or a number; other outputs
        unchanged.

    Raises:
        BadInput: the model cannot predict that, a label has no prediction, or a model's name is not a label.
    """
    by_label = isinstance(model, Mapping)
    predictions: Any = model if by_label else _ask(model, sample, framework, target)
    whose = "the train function" if by_label else type(model).__name__
    heads = check_heads(predictions, target, whose)
    if heads is None:
        return {OUTPUTS[target.problem]: _scores(model, predictions, sample, target, checked)}
    answers = {}
    for each in target.all:
        head, served = heads[each.label], target.output_prefix(each.label) + OUTPUTS[each.problem]
        try:
            said = _ask(head, sample, framework, each) if by_label else head
            answers[served] = _scores(head if by_label else model, said, sample, each, checked)
        except BadInput as error:
            raise BadInput(f"label {each.label!r}: {error}") from None
    labels = [each.label for each in target.all]
    for name in (name for name in heads if name not in labels):
        if by_label:
            raise BadInput(f"{whose} returned a model for {name!r}; the labels are {', '.join(map(repr, labels))}")
        if name in answers:
            raise BadInput(f"{whose} gives {name!r}, the name of what is served for a label; rename it")
        if not heads[name].ndim or len(heads[name]) != len(sample.labels):
            raise BadInput(f"{whose} gives {name!r} of shape {list(heads[name].shape)}; expected [rows, …]")
        answers[name] = heads[name]
    return answers


def _ask(model: Any, sample: Sample, framework: str, target: Target) -> Any:
    try:
        return frameworks()[framework].predict(model, sample, target)
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(f"{type(model).__name__} does not predict for the rows of the sample: {error}") from error


def _scores(model: Any, predictions: Any, sample: Sample, target: Target, checked: bool) -> Array:
    scores = np.asarray(predictions, dtype=np.float64)
    if scores.ndim == 2 and scores.shape[1] == 1:
        scores = scores[:, 0]
    if target.problem == BINARY and scores.ndim == 2 and scores.shape[1] == 2:
        scores = scores[:, 1]
    rows = len(sample.labels)
    expected = (rows, len(target.classes or ())) if target.problem == MULTICLASS else (rows,)
    if scores.shape != expected:
        raise BadInput(
            f"{type(model).__name__} gives {list(scores.shape)} for {rows} rows; expected {list(expected)}, since the "
            f"problem is {target.problem}"
        )
    if checked:
        check_predictions(scores, target.problem, f"the output of {type(model).__name__}")
    return scores


def _column_type(name: str, column: Any) -> tensors.TensorType:
    kind = column.dtype.kind
    if kind in "iub":
        return tensors.BY_NAME["int64"]
    if kind == "f":
        return tensors.BY_NAME["float"]
    values = column.to_numpy()
    if all(value is None or value != value or isinstance(value, str | bytes) for value in values):
        return tensors.STRING
    raise BadInput(f"column {name!r} of the sample is {column.dtype}; expected numbers or strings")


def _as_texts(values: Array) -> Array:
    texts: Array = np.empty(values.shape, object)
    texts.ravel()[:] = [
        value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else b""
        for value in values.ravel().tolist()
    ]
    return texts
