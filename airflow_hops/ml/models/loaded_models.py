"""Loads models of any format in this process to call them with arrays, for evaluation and batch prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.extensions import MODEL_FORMATS, load_extension
from airflow_hops.core.serving_api import tensors
from airflow_hops.core.serving_api.protocol import SignatureDefMap
from airflow_hops.core.store import ArtifactStore
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.formats import SAVED_MODEL, ModelOptions, format_of, open_model

Array = np.ndarray


@dataclass(frozen=True)
class LoadedTensorSpec:
    """Input or output of a signature.

    Attributes:
        dtype: TensorFlow's name of its dtype.
        shape: None for a variable dimension, or if the rank is unknown.
    """

    dtype: str
    shape: tuple[int | None, ...] | None

    @property
    def numpy(self) -> np.dtype:
        """NumPy's dtype; objects for strings."""
        return np.dtype(object if self.dtype == "string" else self.dtype)

    @property
    def column(self) -> str:
        """Dtype of the column of examples for this input: int64, float32, float64, string, or as ``float32[16]``."""
        width = f"[{self.shape[1]}]" if self.shape and len(self.shape) == 2 and (self.shape[1] or 1) > 1 else ""
        if self.dtype in ("string", "float64"):
            return self.dtype + width
        return ("int64" if self.dtype.startswith(("int", "uint", "bool")) else "float32") + width


class LoadedModel:
    """Signature of a model of any format, in the model server's own code.

    Args:
        path: The model's folder; its files determine the format.
        signature: The signature's name.
        threads: Threads of one operation; 0 for one on each core.

    Raises:
        BadInput: the model does not load, or lacks the signature.
    """

    def __init__(self, path: Path, signature: str, *, threads: int = 0) -> None:
        self.path, self._name = path, signature
        try:
            options = ModelOptions(intra_op_threads=threads, warmup_iterations=0)
            self._servable: Any = open_model("model", 1, path, options)
        except MemoryError:
            raise
        except Exception as error:  # a damaged file can fail in any way
            kind = format_of(path) or SAVED_MODEL
            what = kind.name if kind is SAVED_MODEL else f"{kind.name} model"
            message = str(error) if isinstance(error, ServingError) else f"{type(error).__name__}: {error}"
            raise BadInput(f"{path}: the {what} does not load ({message})") from error
        signatures = SignatureDefMap.FromString(self._servable.signature_defs).signature_def
        if signature not in signatures:
            raise BadInput(f"{path}: there is no signature {signature!r}; there are {', '.join(signatures)}")
        self.inputs = _specs(signatures[signature].inputs)
        self.outputs = _specs(signatures[signature].outputs)

    def run(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Computes outputs by name; numbers of another type are cast.

        Raises:
            BadInput: the model refuses the rows, or a number does not fit its integer type.
            HopsError: the server that has the model does not answer.
        """
        try:
            outputs: dict[str, Array] = self._servable.predict(
                {name: self._cast(name, arrays[name]) for name in self.inputs}, self._name
            )
        except ServingError as error:
            # Only a model elsewhere is unavailable for a time.
            is_transient = error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
            raise (HopsError if is_transient else BadInput)(f"{self.path}: {error}") from None
        return outputs

    def _cast(self, name: str, values: Array) -> Array:
        spec, values = self.inputs[name], np.asarray(values)
        if spec.dtype == "string" or values.dtype == spec.numpy:
            return values
        cast = values.astype(spec.numpy)
        if cast.dtype.kind in "iu" and (cast != values).any():
            wrong = values[cast != values][0]
            raise BadInput(f"{self.path}: input {name!r} is {spec.dtype}, which does not hold {wrong}")
        return cast


def model_folder(store: ArtifactStore, model: Artifact) -> Path:
    """Returns the local folder that holds an artifact's model; raises BadInput if its format is not installed."""
    name = ModelProperties.of(store.manifest(model.uri)).folder
    load_extension(MODEL_FORMATS, name)
    return store.local(model) / name


def _specs(infos: Any) -> dict[str, LoadedTensorSpec]:
    by_name = {}
    for name in sorted(infos):  # protobuf's maps have no order
        info = infos[name]
        kind, shape = tensors.BY_NUMBER[info.dtype], tensors.shape_of(info)
        sizes = None if shape is None else tuple(None if size < 0 else size for size in shape)
        by_name[name] = LoadedTensorSpec("string" if kind is tensors.STRING else kind.numpy.name, sizes)
    return by_name
