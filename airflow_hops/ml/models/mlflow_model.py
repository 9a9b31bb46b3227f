"""A model artifact as a model of MLflow: its description, which refers to the files in the store, and its loader.

The description is a few kilobytes (``MLmodel``, signature, input example, environment). MLflow loads it with this
module, which reads the artifact from the store and answers with the model server's own code.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from airflow_hops import __version__
from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.artifacts.target import CLASS, MULTICLASS, OUTPUTS
from airflow_hops.core.errors import BadInput, HopsError, MissingColumn
from airflow_hops.core.extensions import MODEL_FORMATS, load_extension
from airflow_hops.core.serving_api import tensors
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.features.transform_graph import SIGNATURE
from airflow_hops.ml.models.loaded_models import LoadedModel, LoadedTensorSpec, model_folder
from airflow_hops.ml.statistics import STATISTICS_FILE, load_statistics

Array = np.ndarray
Inputs = Mapping[str, tuple[str, tuple[int, ...] | None]]
"""TensorFlow's name of the dtype, and the shape with -1 for any size, by name of the input."""

STORE_OPTIONS_VARIABLE = "HOPS_STORE_OPTIONS"
"""Environment variable with fsspec's options of the store as JSON, for processes that are not steps."""

_REFERENCE = "hops.json"


def write_mlflow_model(folder: Path, store: ArtifactStore, model: Artifact, inputs: Inputs) -> None:
    """Writes the description of a model artifact to a new folder.

    Args:
        folder: The folder.
        store: The store.
        model: The model artifact.
        inputs: Inputs of requests; empty if they are unknown.
    """
    import mlflow.pyfunc
    from mlflow.models import ModelSignature

    reference = folder.with_name(_REFERENCE)
    reference.write_text(json.dumps({"store": store.root, "model": model.to_dict()}))
    facts = ModelProperties.of(store.manifest(model.uri))
    log = logging.getLogger("mlflow")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of libraries that only other environments lack
    try:
        mlflow.pyfunc.save_model(
            folder,
            loader_module=__name__,
            data_path=reference,
            signature=ModelSignature(_input_schema(inputs), _output_schema(facts)) if inputs else None,
            input_example=_example(store, facts, inputs) if inputs else None,
            pip_requirements=_requirements(facts),
        )
    finally:
        log.setLevel(level)
        reference.unlink()


def _requirements(facts: ModelProperties) -> list[str]:
    """Returns the libraries that load and answer, with the versions of this environment."""
    wanted = dict.fromkeys(
        [*(facts.library_versions or ()), *load_extension(MODEL_FORMATS, facts.folder).distributions]
    )
    installed = {dist.name.lower(): dist.version for dist in importlib.metadata.distributions() if dist.name}
    return [f"airflow-hops=={__version__}", *(f"{name}=={installed[name]}" for name in wanted if name in installed)]


def described_model(folder: Path, store: ArtifactStore) -> Path | None:
    """Returns the folder with the model that a description in a folder refers to; None if it is none of ours.

    Raises:
        BadInput: it refers to another store.
    """
    path = folder / "data" / _REFERENCE
    if not path.is_file():
        return None
    reference = json.loads(path.read_text())
    if reference["store"] != store.root:
        raise BadInput(
            f"the version's model is {reference['model']['uri']}, in another store than {store.root}; name it"
        )
    return model_folder(store, Artifact.from_dict(reference["model"]))


def _load_pyfunc(path: str) -> object:
    """Loads a model for ``mlflow.pyfunc.load_model``, which calls the method ``predict``."""
    reference = json.loads(Path(path).read_text())
    options = json.loads(os.environ.get(STORE_OPTIONS_VARIABLE, "{}"))
    store = ArtifactStore(reference["store"], storage_options=options)
    model = LoadedModel(model_folder(store, Artifact.from_dict(reference["model"])), SIGNATURE)

    def predict(model_input: Any, params: Mapping[str, object] | None = None) -> pd.DataFrame:
        """Returns the server's outputs for rows, a column each; several values of a row are a list.

        Args:
            model_input: A data frame, or arrays by name: a column for each input.
            params: Ignored.

        Raises:
            BadInput: a column is missing, or the model refuses the rows.
        """
        if missing := [name for name in model.inputs if name not in model_input]:
            raise MissingColumn("model_input", missing[0]).with_text(
                f"model_input lacks the column {missing[0]!r}; the model takes {', '.join(model.inputs)}"
            )
        outputs = model.run({name: _array(model_input[name], spec) for name, spec in model.inputs.items()})
        return pd.DataFrame({name: _column(values) for name, values in outputs.items()})

    return SimpleNamespace(predict=predict)


def _array(values: Any, spec: LoadedTensorSpec) -> Array:
    """Returns a column as the model takes it; a missing text is empty, as in training."""
    kind = spec.numpy if spec.dtype == "string" else None
    array: Array = np.asarray(values, kind)
    if not len(array):
        array = np.empty((0, *(size or 1 for size in (spec.shape or ())[1:])), spec.numpy)
    elif array.dtype == object and np.ndim(array[0]):  # lists or arrays
        array = np.stack([np.asarray(value, kind) for value in values])
    if spec.dtype == "string":
        array = np.vectorize(_encoded, otypes=[object])(array)
    if spec.shape is not None and array.ndim + 1 == len(spec.shape):
        array = array[..., np.newaxis]
    return array


def _encoded(text: object) -> bytes:
    if not isinstance(text, bytes) and pd.isna(text):
        return b""
    return text if isinstance(text, bytes) else str(text).encode()


def _column(values: Array) -> list[Any]:
    """Returns one entry for each row."""
    if values.dtype.kind == "O":
        values = np.vectorize(lambda text: text.decode("utf-8", "replace"), otypes=[object])(values)
    return list(values.tolist())


def _input_schema(inputs: Inputs) -> object:
    from mlflow.types import ColSpec, Schema

    return Schema([ColSpec(_mlflow_type(kind, len(_sizes(shape))), name) for name, (kind, shape) in inputs.items()])


def _sizes(shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """Returns the shape of a row's value; one value for ``[batch, 1]``, and if the shape is unknown."""
    sizes = (shape or (-1,))[1:]
    return () if sizes == (1,) else sizes


def _output_schema(facts: ModelProperties) -> object:
    from mlflow.types import ColSpec, Schema

    if facts.label is None or facts.problem is None:
        return None
    columns = []
    for each in facts.target.all:
        prefix, several = facts.target.output_prefix(each.label), each.problem == MULTICLASS
        columns.append(ColSpec(_mlflow_type("double", int(several)), prefix + OUTPUTS[each.problem]))
        if several:
            columns.append(ColSpec("string", prefix + CLASS))
    return Schema(columns)


def _mlflow_type(kind: str, depth: int) -> object:
    """Returns MLflow's type of a column with values of a dtype, in lists of a depth.

    Numbers have MLflow's widest type, since it casts only to wider ones; the model casts them as the server does.
    """
    from mlflow.types import DataType
    from mlflow.types.schema import Array as ArrayType

    numpy = tensors.BY_NAME[kind].numpy.kind
    plain = {"O": DataType.string, "b": DataType.boolean, "i": DataType.long, "u": DataType.long}
    column_type: object = plain.get(numpy, DataType.double)
    for _ in range(depth):
        column_type = ArrayType(column_type)
    return column_type


def _example(store: ArtifactStore, facts: ModelProperties, inputs: Inputs) -> pd.DataFrame:
    """Returns one row: the most frequent text and the median of each feature in training, or else empty or 0."""
    usual: dict[str, Any] = {}
    try:
        statistics = store.manifest(facts.statistics or "").reference(facts.statistics or "")
        protos = store.local(statistics).rglob(STATISTICS_FILE)
        (proto, *_) = sorted(protos, key=lambda path: (path.parent.name != "train", path))
        for feature in load_statistics(proto).datasets[0].features:
            if feature.HasField("num_stats"):
                median = feature.num_stats.median
                usual[feature.path.step[0]] = median if math.isfinite(median) else 0
            elif feature.string_stats.top_values:
                usual[feature.path.step[0]] = feature.string_stats.top_values[0].value
    except (HopsError, OSError, ValueError):
        pass  # an imported model, or removed statistics
    row = {}
    for name, (kind, shape) in inputs.items():
        dtype = tensors.BY_NAME[kind].numpy
        value = str(usual.get(name, "")) if dtype.kind == "O" else dtype.type(usual.get(name, 0)).item()
        sizes = tuple(max(1, size) for size in _sizes(shape))
        row[name] = np.full(sizes, value, None if dtype.kind != "O" else object).tolist() if sizes else value
    return pd.DataFrame([row])
