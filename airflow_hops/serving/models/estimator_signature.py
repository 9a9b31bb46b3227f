"""Signature of an estimator: read from ``signature.json`` or MLflow's ``MLmodel``, or derived from a sample."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.core.serving_api import tensors

SIGNATURE_FILE = "signature.json"
MLFLOW_FILE = "MLmodel"

MATRIX_INPUT = "inputs"
"""Name of the input of an estimator that takes a matrix."""

_MLFLOW_TYPES = {
    "boolean": "bool",
    "integer": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
}


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
        return replace(_with_columns(types), vectors=widths)


def _as_column(name: str, values: np.ndarray) -> np.ndarray:
    """Returns the values of a column, which may be ``[batch, 1]``, as ``[batch]``; raises ValueError."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1:
        raise ValueError(f"input {name} has shape {list(values.shape)}; expected [batch] or [batch, 1]")
    return values


def read_inputs(folder: Path) -> EstimatorInputs:
    """Reads the inputs of the estimator in a version folder from ``signature.json``, or else from ``MLmodel``.

    Raises:
        SignatureFileError: Both files are missing, or the file describes inputs that cannot be served.
    """
    path = folder / SIGNATURE_FILE
    try:
        if path.is_file():
            return EstimatorInputs.from_document(json.loads(path.read_text()))
        path = folder / MLFLOW_FILE
        if path.is_file():
            return _from_mlflow(path.read_text())
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SignatureFileError(f"{path}: no signature of an estimator ({type(error).__name__}: {error})") from error
    except ValueError as error:
        raise SignatureFileError(f"{path}: {error}") from error
    raise SignatureFileError(
        f"{folder}: neither {SIGNATURE_FILE} nor {MLFLOW_FILE}; expected one that describes the estimator's inputs"
    )


def inputs_of(sample: Any) -> EstimatorInputs:
    """Returns the inputs of an estimator that was fitted on data like the sample.

    The sample is a data frame, or a matrix ``[rows, width]`` of numbers.

    Raises:
        ValueError: The sample is neither, or a column has a type that cannot be served.
    """
    if hasattr(sample, "columns"):
        return EstimatorInputs({str(name): _type_of_column(str(name), sample[name]) for name in sample.columns})
    matrix = np.asarray(sample)
    if matrix.ndim != 2:
        raise ValueError(f"the sample has shape {list(matrix.shape)}; expected a data frame, or a matrix [rows, width]")
    return EstimatorInputs({MATRIX_INPUT: tensors.type_of(matrix)}, matrix.shape[1])


def _type_of_column(name: str, column: Any) -> tensors.TensorType:
    values = column.to_numpy()
    if values.dtype == object and not all(isinstance(value, str) for value in values):
        raise ValueError(f"column {name!r} of the sample holds objects that are not strings; these have no tensor type")
    try:
        return tensors.type_of(values)
    except tensors.TensorError as error:
        raise ValueError(f"column {name!r} of the sample: {error}") from None


def _from_mlflow(text: str) -> EstimatorInputs:
    import yaml

    try:
        signature = yaml.safe_load(text).get("signature")
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {error}") from None
    if not signature:
        raise ValueError("the model was logged without a signature; log it with signature=infer_signature(…)")
    inputs = json.loads(signature["inputs"])
    if len(inputs) == 1 and inputs[0]["type"] == "tensor" and "name" not in inputs[0]:
        spec = inputs[0]["tensor-spec"]
        if len(spec["shape"]) != 2 or spec["shape"][1] < 1:
            raise ValueError(f"input has shape {spec['shape']}; expected [-1, width]")
        return EstimatorInputs({MATRIX_INPUT: tensors.type_of(np.empty(0, spec["dtype"]))}, spec["shape"][1])
    columns = {}
    for column in inputs:
        if column["type"] not in _MLFLOW_TYPES or "name" not in column:
            raise ValueError(f"input {column} cannot be served; expected a name and one of {', '.join(_MLFLOW_TYPES)}")
        columns[column["name"]] = tensors.BY_NAME[_MLFLOW_TYPES[column["type"]]]
    return _with_columns(columns)


def _with_columns(columns: dict[str, tensors.TensorType]) -> EstimatorInputs:
    if not columns:
        raise ValueError("the signature has no inputs")
    return EstimatorInputs(columns)


def _type_named(name: str) -> tensors.TensorType:
    if name not in tensors.BY_NAME:
        raise ValueError(f"type {name!r} is none of {', '.join(tensors.BY_NAME)}")
    return tensors.BY_NAME[name]
