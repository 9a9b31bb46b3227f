"""Loads models of any format in this process to call them with arrays, for evaluation and batch prediction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.core.contract.artifacts import Artifact, BadInput
from airflow_hops.core.contract.properties import ModelProperties
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.features.signature_inputs import LoadedSignature
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.formats import SAVED_MODEL, format_of
from airflow_hops.serving.models.model_options import ModelOptions

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TensorSpec:
    """Input or output of a signature.

    Attributes:
        dtype: TensorFlow's name of its dtype.
        shape: None for a variable dimension, or if the rank is unknown.
    """

    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def numpy(self) -> np.dtype[Any]:
        """NumPy's dtype; objects for strings."""
        return np.dtype(object if self.dtype == "string" else self.dtype)

    @property
    def column(self) -> str:
        """Dtype of the column of examples for this input: int64, float32, float64, string, or as ``float32[16]``."""
        width = f"[{self.shape[1]}]" if self.shape and len(self.shape) == 2 and (self.shape[1] or 1) > 1 else ""
        if self.dtype in ("string", "float64"):
            return self.dtype + width
        return ("int64" if self.dtype.startswith(("int", "uint", "bool")) else "float32") + width


class LoadedModel(ABC):
    """Signature of a loaded model."""

    def __init__(self, path: Path, inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec]) -> None:
        self.path, self.inputs, self.outputs = path, inputs, outputs

    def run(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Computes outputs by name; numbers of another type are cast.

        Raises:
            BadInput: the model refuses the rows, or a number does not fit its integer type.
        """
        return self._run({name: self._cast(name, arrays[name]) for name in self.inputs})

    def _cast(self, name: str, values: Array) -> Array:
        spec, values = self.inputs[name], np.asarray(values)
        if spec.dtype == "string" or values.dtype == spec.numpy:
            return values
        cast = values.astype(spec.numpy)
        if cast.dtype.kind in "iu" and (cast != values).any():
            wrong = values[cast != values][0]
            raise BadInput(f"{self.path}: input {name!r} is {spec.dtype}, which does not hold {wrong}")
        return cast

    @abstractmethod
    def _run(self, arrays: dict[str, Array]) -> dict[str, Array]: ...


def load_model(path: Path, signature: str, *, threads: int = 0) -> LoadedModel:
    """Loads a model, whose format follows from the files in its folder.

    Args:
        path: The model's folder.
        signature: The signature's name.
        threads: Threads of one operation, except for a SavedModel, as TensorFlow's threads are set for the process; 0
            for one on each core.

    Raises:
        BadInput: the model does not load, or lacks the signature.
    """
    kind = format_of(path)
    if kind is None or kind is SAVED_MODEL:
        return _SavedModel(path, signature)
    return _Servable(path, signature, kind.name, threads)


def model_folder(store: ArtifactStore, model: Artifact) -> Path:
    """Returns the local folder that holds an artifact's model in its format."""
    return store.local(model) / ModelProperties.of(store.manifest(model.uri)).folder


class _SavedModel(LoadedModel):
    """Model in TensorFlow's own loader, which is not the model server's."""

    def __init__(self, path: Path, signature: str) -> None:
        import tensorflow as tf

        self._tf = tf
        try:
            self._loaded = tf.saved_model.load(str(path))  # kept: its variables live as long as it does
        except Exception as error:  # a damaged file can fail in any way
            raise BadInput(f"{path}: the SavedModel does not load ({type(error).__name__}: {error})") from error
        _check_signature(path, signature, self._loaded.signatures)
        self._signature = LoadedSignature(path, self._loaded, signature)
        super().__init__(path, _specs(self._signature.inputs), _specs(self._signature.outputs))

    def _run(self, arrays: dict[str, Array]) -> dict[str, Array]:
        tf = self._tf
        try:
            tensors = {name: tf.constant(values, self.inputs[name].dtype) for name, values in arrays.items()}
            return {name: values.numpy() for name, values in self._signature(tensors).items()}
        except (tf.errors.OpError, TypeError, ValueError) as error:
            raise BadInput(f"{self.path}: {error}") from None


class _Servable(LoadedModel):
    """Model in the model server's own code."""

    def __init__(self, path: Path, signature: str, kind: str, threads: int) -> None:
        from airflow_hops.core.serving_api import tensors
        from airflow_hops.core.serving_api.protocol import SignatureDefMap
        from airflow_hops.serving.models.formats import open_model

        try:
            options = ModelOptions(intra_op_threads=threads, warmup_iterations=0)
            self._servable: Any = open_model("model", 1, path, options)
        except MemoryError:
            raise
        except Exception as error:  # a damaged file can fail in any way
            said = str(error) if isinstance(error, ServingError) else f"{type(error).__name__}: {error}"
            raise BadInput(f"{path}: the {kind} model does not load ({said})") from error
        definitions = SignatureDefMap.FromString(self._servable.signature_defs).signature_def
        _check_signature(path, signature, definitions)
        self._name = signature

        def specs(infos: Any) -> dict[str, TensorSpec]:
            by_name = {}
            for name, info in infos.items():
                kind = tensors.BY_NUMBER[info.dtype]
                dtype = "string" if kind is tensors.STRING else kind.numpy.name
                by_name[name] = TensorSpec(dtype, _shape(info.tensor_shape))
            return by_name

        super().__init__(path, specs(definitions[signature].inputs), specs(definitions[signature].outputs))

    def _run(self, arrays: dict[str, Array]) -> dict[str, Array]:
        try:
            outputs: dict[str, Array] = self._servable.predict(arrays, self._name)
        except ServingError as error:
            raise BadInput(f"{self.path}: {error}") from None
        return outputs


def _check_signature(path: Path, signature: str, signatures: Any) -> None:
    if signature not in signatures:
        raise BadInput(f"{path}: there is no signature {signature!r}; there are {', '.join(signatures)}")


def _specs(of_tensorflow: Mapping[str, Any]) -> dict[str, TensorSpec]:
    return {
        name: TensorSpec(spec.dtype.name, None if spec.shape.rank is None else tuple(spec.shape))
        for name, spec in of_tensorflow.items()
    }


def _shape(shape: Any) -> tuple[int | None, ...] | None:
    return None if shape.unknown_rank else tuple(None if dim.size < 0 else dim.size for dim in shape.dim)
