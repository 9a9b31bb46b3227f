"""Held-out rows, as a trained model takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from airflow_hops.core.errors import BadInput
from airflow_hops.core.serving_api import tensors
from airflow_hops.serving.models.model_signature import MATRIX_INPUT, EstimatorInputs

Array = np.ndarray


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
                    raise BadInput(f"column {name!r} of the sample holds strings; expected only numbers")
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

    def with_columns(self, columns: Sequence[Array], labels: Sequence[object]) -> Sample:
        """Returns a sample with the same inputs and other rows."""
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
