"""Inputs of a model that is not a SavedModel, as ``signature.json`` describes them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.core.serving_api import tensors

SIGNATURE_FILE = "signature.json"

MATRIX_INPUT = "inputs"
"""Name of the input of an estimator that takes a matrix."""


class SignatureFileError(ValueError):
    """A signature file is missing or describes a model that cannot be served."""


@dataclass(frozen=True)
class EstimatorInputs:
    """The inputs of an estimator: columns of a table, or one matrix.

    Attributes:
        columns: Name to type of each column, in the order of training; for a matrix, ``inputs`` is the only key.
        width: Number of columns of the matrix; None if the estimator takes named columns.
        vectors: Name to length of the named columns that hold vectors.
    """

    columns: Mapping[str, tensors.TensorType]
    width: int | None = None
    vectors: Mapping[str, int] = field(default_factory=dict)

    def width_of(self, name: str) -> int | None:
        """Returns the number of values that a row has in an input; None for a column of scalars."""
        return self.vectors.get(name) if self.width is None else self.width

    def specs(self) -> list[tuple[str, tensors.TensorType, tuple[int, ...]]]:
        """Returns name, type and shape of each input of the signature."""
        widths = {name: self.width_of(name) for name in self.columns}
        shapes = {name: (-1,) if width is None else (-1, width) for name, width in widths.items()}
        return [(name, tensor_type, shapes[name]) for name, tensor_type in self.columns.items()]

    def arrange(self, inputs: Mapping[str, np.ndarray]) -> Any:
        """Returns the argument of ``predict``: a data frame, or a matrix.

        Inputs are ``[batch]`` or ``[batch, 1]`` for a column, ``[batch, width]`` for the matrix.

        Raises:
            ValueError: A column has the wrong shape.
        """
        if self.width is not None:
            # An estimator may work in place, but arrays backed by a message are read-only.
            return np.require(next(iter(inputs.values())), requirements="W")
        import pandas as pd

        columns = {name: _as_column(name, inputs[name]) for name in self.columns}
        return pd.DataFrame(
            {name: tensors.decoded(values) if values.dtype == object else values for name, values in columns.items()}
        )

    def to_document(self) -> dict[str, object]:
        """Returns the inputs as a JSON value for the signature file."""
        if self.width is not None:
            (tensor_type,) = self.columns.values()
            return {"matrix": {"type": tensor_type.name, "width": self.width}}
        width = {name: {"width": width} for name, width in self.vectors.items()}
        columns = self.columns.items()
        return {"columns": [{"name": name, "type": kind.name, **width.get(name, {})} for name, kind in columns]}

    @classmethod
    def from_document(cls, document: Any) -> EstimatorInputs:
        """Inverse of :meth:`to_document`.

        Raises:
            ValueError: A type cannot be served, or the columns are missing.
            KeyError: A key is missing.
            TypeError: A value has the wrong type.
        """
        if "matrix" in document:
            matrix = document["matrix"]
            return cls({MATRIX_INPUT: _type_named(matrix["type"])}, int(matrix["width"]))
        types = {column["name"]: _type_named(column["type"]) for column in document["columns"]}
        widths = {column["name"]: int(column["width"]) for column in document["columns"] if "width" in column}
        return replace(with_columns(types), vectors=widths)


def _as_column(name: str, values: np.ndarray) -> np.ndarray:
    """Returns the values of a column, which may be ``[batch, 1]``, as ``[batch]``; raises ValueError."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"input {name} has shape {list(values.shape)}; expected [batch] or [batch, 1]")
    return values


def read_inputs(folder: Path) -> EstimatorInputs:
    """Reads the inputs of the model in a version folder from ``signature.json``.

    Raises:
        SignatureFileError: The file is missing, or describes inputs that cannot be served.
    """
    path = folder / SIGNATURE_FILE
    if not path.is_file():
        raise SignatureFileError(f"{path}: no such file; expected the description of the model's inputs")
    with reading_signature(path):
        return EstimatorInputs.from_document(json.loads(path.read_text()))


@contextlib.contextmanager
def reading_signature(path: Path) -> Iterator[None]:
    """Names the file in errors of what is inside the ``with`` block; raises SignatureFileError."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SignatureFileError(f"{path}: no signature of a model ({type(error).__name__}: {error})") from error
    except ValueError as error:
        raise SignatureFileError(f"{path}: {error}") from error


def with_columns(columns: dict[str, tensors.TensorType]) -> EstimatorInputs:
    """Returns the inputs of named columns; raises ValueError if there are none."""
    if not columns:
        raise ValueError("the signature has no inputs")
    return EstimatorInputs(columns)


def _type_named(name: str) -> tensors.TensorType:
    if name not in tensors.BY_NAME:
        raise ValueError(f"type {name!r} is none of {', '.join(tensors.BY_NAME)}")
    return tensors.BY_NAME[name]
