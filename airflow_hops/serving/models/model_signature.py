"""The file ``signature.json`` of a model: inputs of requests, features of the model, and outputs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.core.serving_api import tensors
from airflow_hops.serving.models.signature_defs import ProblemOutputs

SIGNATURE_FILE = "signature.json"

MATRIX_INPUT = "inputs"
"""Name of the input of an estimator that takes a matrix."""

TRANSFORM_GRAPH = "transform_graph"
"""Folder, in the version folder, of the transform graph whose outputs go into the model."""


@dataclass(frozen=True)
class Refused:
    """Columns in which the trained model refuses NaN or infinity, although the exported model accepts them.

    Attributes:
        missing: Indices of the model's columns that must not contain NaN.
        infinite: Indices of the model's columns that must not contain infinity.
    """

    missing: tuple[int, ...] = ()
    infinite: tuple[int, ...] = ()

    def check(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Checks the inputs of the model, which are columns by name in the model's order, or one matrix.

        Raises:
            ValueError: A value is refused; the message names column and row.
        """
        for columns, is_refused, what in ((self.missing, np.isnan, "NaN"), (self.infinite, np.isinf, "infinite")):
            if not columns:
                continue
            names = list(arrays)
            is_matrix = len(names) == 1 and arrays[names[0]].ndim == 2
            values = arrays[names[0]].T if is_matrix else [arrays[name].ravel() for name in names]
            for column in columns:
                if (refused := is_refused(values[column])).any():
                    name = f"column {column} of the model's matrix" if is_matrix else f"input {names[column]!r}"
                    raise ValueError(
                        f"{name} is {what} in row {int(refused.argmax())}, which the trained model refuses; send a "
                        "finite number, or train it with a step that replaces such values"
                    )


@dataclass(frozen=True)
class ModelSignature:
    """The signature of a model.

    Attributes:
        requests: Inputs of requests: columns, or one matrix.
        model: Inputs of the model: columns of the request, or outputs of the transform graph.
        order: Names of the columns or graph outputs that form the model's matrix, from left to right; None if the model
            takes them by name or requests hold the matrix.
        outputs: The predictions; None if the file does not describe them.
        output: Name of the graph's output that is the prediction; None for the only output of floats.
        heads: Further label to its predictions, whose names begin with the label's, and the name of the graph's output.
        passed: Served name to the graph's output that is served unchanged.
        refused: Values that the model refuses.
    """

    requests: EstimatorInputs
    model: EstimatorInputs
    order: tuple[str, ...] | None = None
    outputs: ProblemOutputs | None = None
    output: str | None = None
    heads: Mapping[str, tuple[ProblemOutputs, str]] = field(default_factory=dict)
    passed: Mapping[str, str] = field(default_factory=dict)
    refused: Refused = Refused()

    @property
    def wanted(self) -> tuple[str, ...]:
        """Names of the columns or graph outputs that the model takes."""
        return self.order or tuple(self.model.columns)

    def arrange(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the inputs of the model: columns by name, or the matrix.

        The arrays for the names in :attr:`wanted` are ``[batch]`` or ``[batch, width]``.

        Raises:
            ValueError: Arrays differ in rows, or their total width is not that of the matrix.
        """
        if self.order is None:
            return {name: values[name] for name in self.model.columns}
        ((name, tensor_type),) = self.model.columns.items()
        arrays = [values[part] for part in self.order]
        rows, width = len(arrays[0]), sum([1 if array.ndim == 1 else array.shape[1] for array in arrays])
        if width != self.model.width:
            raise ValueError(f"{', '.join(self.order)} have a total width of {width}; expected {self.model.width}")
        if any(len(array) != rows for array in arrays):
            result = ", ".join(f"{part} {len(values[part])}" for part in self.order)
            raise ValueError(f"inputs differ in their 0th dimension: {result}")
        # Filling columns one by one is three times as fast as np.concatenate for a single row.
        matrix: np.ndarray = np.empty((rows, width), tensor_type.numpy)
        column = 0
        for array in arrays:
            if array.ndim == 1:
                matrix[:, column] = array
                column += 1
            else:
                matrix[:, column : column + array.shape[1]] = array
                column += array.shape[1]
        return {name: matrix}

    def to_json(self) -> str:
        """Returns the content of ``signature.json``."""
        document: dict[str, Any] = self.requests.to_document()
        if self.model != self.requests or self.order is not None:
            document["model"] = self.model.to_document()
            if self.order is not None:
                document["model"]["order"] = list(self.order)
        if self.outputs is not None:
            document |= _predicted(self.outputs)
        if self.output is not None:
            document["output"] = self.output
        if self.heads:
            document["heads"] = {
                label: {**_predicted(outputs), "output": output} for label, (outputs, output) in self.heads.items()
            }
        if self.passed:
            document["passed"] = dict(self.passed)
        if self.refused != Refused():
            document["refused"] = {"missing": self.refused.missing, "infinite": self.refused.infinite}
        return json.dumps(document, indent=1) + "\n"


def read_signature(folder: Path) -> ModelSignature:
    """Reads the signature of a version folder from ``signature.json``.

    Raises:
        SignatureFileError: The file is missing, or describes a model that cannot be served.
    """
    requests = read_inputs(folder)
    path = folder / SIGNATURE_FILE
    with reading_signature(path):
        document = json.loads(path.read_text())
        model, order = requests, None
        if "model" in document:
            model = EstimatorInputs.from_document(document["model"])
            order = _names(document["model"], "order")
        elif (folder / TRANSFORM_GRAPH).is_dir():
            raise ValueError(
                f"there is a {TRANSFORM_GRAPH}, but no 'model', which lists the outputs that the model takes"
            )
        outputs = None
        if "problem" in document:
            outputs = ProblemOutputs(document["problem"], _names(document, "classes"))
        output = document.get("output")
        if output is not None and not isinstance(output, str):
            raise ValueError(f"'output' is {output!r}; expected the name of an output")
        heads = {
            label: (ProblemOutputs(head["problem"], _names(head, "classes"), f"{label}_"), head["output"])
            for label, head in document.get("heads", {}).items()
        }
        passed = dict(document.get("passed", {}))
        if (heads or passed) and outputs is None:
            raise ValueError("there are 'heads' or 'passed' outputs, but no 'problem' of the first prediction")
        refused = Refused(**{kind: tuple(map(int, columns)) for kind, columns in document.get("refused", {}).items()})
        signature = ModelSignature(requests, model, order, outputs, output, heads, passed, refused)
        _check(signature, folder)
        return signature


def _predicted(outputs: ProblemOutputs) -> dict[str, Any]:
    classes = {} if outputs.classes is None else {"classes": list(outputs.classes)}
    return {"problem": outputs.problem, **classes}


def _names(document: Mapping[str, object], key: str) -> tuple[str, ...] | None:
    result = document.get(key)
    if result is None:
        return None
    if not isinstance(result, list) or not result or not all(isinstance(name, str) for name in result):
        raise ValueError(f"{key!r} is {result!r}; expected a list of names")
    return tuple(result)


def _check(signature: ModelSignature, folder: Path) -> None:
    if signature.order is not None and signature.model.width is None:
        raise ValueError("'model' has an order, but no matrix")
    if signature.order is None and signature.model.width is not None and signature.requests.width is None:
        raise ValueError("'model' takes a matrix; expected 'order', the names of the inputs that it joins")
    if (folder / TRANSFORM_GRAPH).is_dir():
        return
    held = signature.requests.columns
    for name in signature.wanted:
        if name not in held:
            raise ValueError(f"the model takes {name!r}, which requests do not hold; they hold {', '.join(held)}")
        if signature.order and (held[name] is tensors.STRING) != (tensors.STRING in signature.model.columns.values()):
            raise ValueError(f"the model's matrix takes {name!r}, which is a {held[name].name}")


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
