"""Base class of models that ``signature.json`` describes, with an optional transform graph, and their examples."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import Example, SignatureDefMap
from airflow_hops.core.serving_api.tensors import TensorType
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.formats import ModelOptions
from airflow_hops.serving.models.local import LocalServable, feeds_of
from airflow_hops.serving.models.model_signature import TRANSFORM_GRAPH, EstimatorInputs, ModelSignature
from airflow_hops.serving.models.servable import DEFAULT_SIGNATURE, Signature
from airflow_hops.serving.models.signature_defs import PREDICT, SIGNATURE_BY_METHOD, fill_info


class DescribedServable(LocalServable):
    """Model of a version folder with a signature file.

    Predict requests hold columns or a matrix; Classify and Regress hold the same as ``tf.Example`` messages. If the
    folder contains ``transform_graph/``, requests hold raw features, and the outputs of the graph go into the model.

    Raises:
        ServingError: The transform graph does not load or does not match the signature.
    """

    signature_by_method = MappingProxyType(SIGNATURE_BY_METHOD)

    def __init__(
        self, model: str, version: int, folder: Path, options: ModelOptions, signature: ModelSignature, definitions: Any
    ) -> None:
        self._signature = signature
        self._transform = None
        if (folder / TRANSFORM_GRAPH).is_dir():
            self._transform = _TransformGraph(model, version, folder / TRANSFORM_GRAPH, options, signature)
        super().__init__(model, version, os.fspath(folder), definitions.SerializeToString(), options)
        if self._transform is not None:
            self.computes_here = self.computes_here and self._transform.computes_here

    def _free(self) -> None:
        if self._transform is not None:
            self._transform.close()

    def _arranged(
        self, signature: Signature, feeds: Sequence[np.ndarray], deadline_s: float
    ) -> Mapping[str, np.ndarray]:
        """Returns the inputs of the model, by the model's own names.

        Raises:
            ValueError: An example lacks a feature, or inputs differ in rows.
            ServingError: The transform graph refuses the inputs.
        """
        if signature.name == DEFAULT_SIGNATURE:
            columns = dict(zip(signature.inputs, feeds, strict=True))
        else:
            columns = read_columns(feeds[0].ravel().tolist(), self._signature.requests)
        if self._transform is not None:
            columns = self._transform.run(columns, deadline_s)
        return self._signature.arrange(columns)


class _TransformGraph:
    """The transform graph of a version, from raw features to inputs of the model."""

    def __init__(
        self, model: str, version: int, folder: Path, options: ModelOptions, signature: ModelSignature
    ) -> None:
        from airflow_hops.serving.models.saved_model import SavedModelServable

        plain = replace(options, batcher=None, tags=("serve",))
        self._graph = SavedModelServable(model, version, folder, plain)
        self._wanted = signature.wanted
        try:
            self._inputs = self._graph.signature(DEFAULT_SIGNATURE)
            _check_graph(self._inputs, signature, folder)
        except ServingError:
            self._graph.close()
            raise
        self._types = {name: kind for name, kind in self._inputs.input_types.items() if kind is not None}
        self.computes_here = self._graph.computes_here

    def run(self, given: Mapping[str, np.ndarray], deadline_s: float) -> dict[str, np.ndarray]:
        """Returns the outputs that the model takes; raw features that the graph does not know are ignored."""
        rows = len(next(iter(given.values())))
        inputs = {
            name: given[name] if name in given else self._unused(rows, name, kind) for name, kind in self._types.items()
        }
        result = self._graph._run(self._inputs, feeds_of(self._inputs, inputs), self._wanted, deadline_s)
        return dict(zip(self._wanted, result, strict=True))

    def _unused(self, rows: int, name: str, kind: tensors.TensorType) -> np.ndarray:
        """Returns placeholder values for a raw feature that the request lacks because the model does not use it."""
        return np.full((rows, *self._inputs.input_shapes[name][1:]), b"" if kind is tensors.STRING else 0, kind.numpy)

    def close(self) -> None:
        self._graph.close()


def _check_graph(inputs: Signature, signature: ModelSignature, folder: Path) -> None:
    if signature.requests.width is not None:
        raise invalid_argument(f"{folder}: requests hold a matrix; expected the graph's raw features, as columns")
    for name, tensor_type in signature.requests.columns.items():
        result = inputs.input_types.get(name)
        if result is not tensor_type:
            there = (
                "there is none of that name"
                if name not in inputs.inputs
                else f"the graph's is {result and result.name}"
            )
            raise invalid_argument(f"{folder}: requests hold a column {name!r} of type {tensor_type.name}; {there}")
    for name in signature.wanted:
        if name not in inputs.outputs:
            found_outputs = ", ".join(inputs.outputs)
            raise invalid_argument(f"{folder}: the model takes {name!r}; the graph's outputs are {found_outputs}")


def request_definitions(signature: ModelSignature) -> Any:
    """Returns a ``SignatureDefMap`` whose ``serving_default`` has the inputs but not yet the outputs."""
    definitions = SignatureDefMap()
    definition = definitions.signature_def[DEFAULT_SIGNATURE]
    definition.method_name = PREDICT
    for name, tensor_type, shape in signature.requests.specs():
        fill_info(definition.inputs[name], name, tensor_type, shape)
    return definitions


# NumPy kind of the column to allowed lists: floats may be written as integers, and booleans are 0 or 1.
_LISTS = {
    "f": ("float_list", "int64_list"),
    "i": ("int64_list",),
    "u": ("int64_list",),
    "b": ("int64_list",),
    "O": ("bytes_list",),
}


def read_columns(serialized: Sequence[bytes], inputs: EstimatorInputs) -> dict[str, np.ndarray]:
    """Reads one feature for each input; other features are ignored.

    Args:
        serialized: The examples, ``[rows]``.
        inputs: Inputs of the estimator. A column is a feature with one value, and a vector is a feature with one value
            for each element; floats may be missing, and are then NaN, and texts, then empty. A matrix is the feature
            ``inputs``, with one value for each of its columns.

    Returns:
        Name to array, ``[rows]`` or ``[rows, width]``.

    Raises:
        ValueError: An example cannot be parsed, lacks a feature, or has a feature of the wrong type or length.
    """
    try:
        examples = [Example.FromString(each).features.feature for each in serialized]
    except DecodeError as error:
        raise ValueError(f"could not parse example input: {error}") from None
    columns = {}
    for name, tensor_type in inputs.columns.items():
        width, is_matrix = inputs.width_of(name), inputs.width is not None
        rows = [
            _values(features, name, tensor_type, width or 1, f"example {number}", may_be_missing=not is_matrix)
            for number, features in enumerate(examples)
        ]
        array = _as_array(rows, name, tensor_type)
        columns[name] = array[:, 0] if width is None else array
    return columns


def _values(
    features: Any, name: str, tensor_type: TensorType, width: int, where: str, *, may_be_missing: bool
) -> Sequence[Any]:
    kind = features[name].WhichOneof("kind") if name in features else None
    result = getattr(features[name], kind).value if kind else ()
    if not result and may_be_missing and tensor_type.numpy.kind in "fO":
        return [np.nan if tensor_type.numpy.kind == "f" else b""] * width
    lists = _LISTS.get(tensor_type.numpy.kind, ())
    if result and kind not in lists:
        raise ValueError(f"{where}: feature {name!r} is a {kind}; expected {' or '.join(lists) or tensor_type.name}")
    if len(result) != width:
        raise ValueError(f"{where}: feature {name!r} has {len(result)} values; expected {width}")
    return list(result)


def _as_array(rows: list[Sequence[object]], name: str, tensor_type: TensorType) -> np.ndarray:
    kind = tensor_type.numpy.kind
    if kind == "f":
        floats: np.ndarray = np.array(rows, tensor_type.numpy)
        return floats
    if kind == "O":
        texts: np.ndarray = np.empty((len(rows), len(rows[0])), object)
        texts[:] = rows
        return texts
    numbers: np.ndarray = np.array(rows, np.int64)
    array: np.ndarray = numbers.astype(tensor_type.numpy)
    if not np.array_equal(array, numbers):
        raise ValueError(f"feature {name!r} holds {numbers[array != numbers][0]}, which is not an {tensor_type.name}")
    return array
