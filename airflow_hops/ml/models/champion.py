"""The live model that a training continues from, and what a training keeps for those that continue from it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from airflow_hops.core.artifacts.artifact import name_in, segment
from airflow_hops.core.artifacts.properties import Window
from airflow_hops.core.errors import BadInput
from airflow_hops.ml.models.frameworks import frameworks

TRAINED = "trained"
"""Folder in the artifact of a training with ``continue_from``: the model as its framework stores it."""
_WEIGHTS, _ARCHITECTURE, _LABELS = "weights.npz", "architecture.json", "labels"
_NOT_OF_PREDICTIONS = re.compile(
    r"name|trainable|seed|.*(initializer|regularizer|constraint)|build_config|compile_config"
)
"""Settings of Keras's layers that do not change predictions."""


@dataclass
class Champion:
    """The model that served when the DAG run first asked for it: ``context.champion``.

    Attributes:
        model_name: Name of the served model.
        version: Its version.
        fingerprint: Fingerprint of its artifact.
        window: Start and end (exclusive) of its data, ISO 8601 UTC; a side is None if it is open. None without a time.
        framework: Framework that it was trained with, such as ``keras`` or ``lightgbm``.
        inputs: Inputs of requests to it; None without examples.
        problem: Reason why this training cannot continue from it; empty if it can.
        is_continued: Whether the training has read its files.
    """

    model_name: str
    version: int
    fingerprint: str
    window: Window | None = None
    framework: str | None = None
    inputs: list[str] | None = None
    problem: str = ""
    path: Path | None = None
    is_continued: bool = False

    @property
    def folder(self) -> Path:
        """Folder with all files that the champion's training left in ``$HOPS_OUTPUT/trained`` of rank 0.

        Raises:
            BadInput: the champion has other features, classes, keys or constants than this training, or no such folder.
        """
        if self.path is None or self.problem:
            raise self._refusal(self.problem)
        self.is_continued = True
        return self.path

    def load(self, model: Any = None) -> Any:
        """Returns the trained model. Every rank may call it.

        Args:
            model: For Keras and PyTorch, a model of the same architecture, built, and neither wrapped nor sharded,
                which gets the champion's weights, but not the state of its optimizer. None for other frameworks.

        Returns:
            ``model``; or the estimator of scikit-learn, the ``Booster`` of LightGBM or XGBoost; or a dict of these by
            label.

        Raises:
            BadInput: as :attr:`folder`; or the champion is of another framework or architecture.
        """
        folder = self.folder
        try:
            if (folder / _WEIGHTS).exists():
                return _load_keras(folder / _WEIGHTS, model)
            framework = frameworks().get(self.framework or "")
            if framework is None:
                raise BadInput(f"it was trained with {self.framework or 'an unknown framework'}")
            if not (folder / _LABELS).exists():
                return framework.load(folder, model)
            parts = {name_in(part.name): part for part in sorted((folder / _LABELS).iterdir())}
            return {label: framework.load(part, (model or {}).get(label)) for label, part in parts.items()}
        except BadInput as error:
            self.is_continued = False
            raise self._refusal(str(error)) from error

    def _refusal(self, problem: str) -> BadInput:
        return BadInput(
            f"the training cannot continue from {self}: {problem}. Let the function catch this BadInput and train from "
            "scratch, and deploy that model: later trainings can continue from it"
        )

    def __str__(self) -> str:
        return f"version {self.version} of model {self.model_name!r}"


def keep_trained(model: Any, framework: str | None, output: Path) -> None:
    """Writes a trained model, or models by label, to the folder :data:`TRAINED` of an artifact; None is Keras.

    Raises:
        BadInput: its framework cannot store it.
    """
    folder = output / TRAINED
    folder.mkdir(exist_ok=True)
    if framework is None:
        np.savez(folder / _WEIGHTS, *model.get_weights())
        (folder / _ARCHITECTURE).write_text(json.dumps(_architecture(model), indent=1))
    elif not isinstance(model, Mapping):
        frameworks()[framework].save(model, folder)
    else:
        for label, each in model.items():
            part = folder / _LABELS / segment(str(label))
            part.mkdir(parents=True)
            frameworks()[framework].save(each, part)


def _load_keras(file: Path, model: Any) -> object:
    if not hasattr(model, "get_weights"):
        raise BadInput(f"it is a Keras model, and load() got {type(model).__name__}; expected a built Keras model")
    own = model.get_weights()
    with np.load(file, allow_pickle=False) as stored:
        weights = list(stored.values())
    shapes, expected = ([each.shape for each in values] for values in (weights, own))
    if shapes != expected:
        raise BadInput(f"its weights have the shapes {shapes}, and those of the built model {expected}")
    if (architecture := file.with_name(_ARCHITECTURE)).exists():  # of versions since 0.1.0
        check_architecture(json.loads(architecture.read_text()), _architecture(model))
    # NumPy 1.26 (jax-ml/ml_dtypes#41): does not store the names of types such as bfloat16.
    model.set_weights([v.view(o.dtype) if v.dtype.kind == "V" else v for v, o in zip(weights, own, strict=True)])
    return model


def check_architecture(stored: Sequence[str], own: Sequence[str]) -> None:
    """Compares descriptions of the layers of two models, whose weights may have the same shapes nevertheless.

    Raises:
        BadInput: they differ; the message has the first difference.
    """
    for number, (old, new) in enumerate(zip_longest(stored, own, fillvalue="none"), 1):
        if old != new:
            raise BadInput(f"its layer {number} is {old[:400]}, and that of the built model {new[:400]}")


def _architecture(model: Any) -> list[str]:
    """Returns the settings of a Keras model's layers that change predictions, and how layers are connected."""
    layers = [each for each in model._flatten_layers(include_self=False) if each is not model]
    numbers = {each.name: f"layer {number}" for number, each in enumerate(layers, 1)}
    inputs = [tensor._keras_history.operation.name for tensor in getattr(model, "inputs", None) or ()]
    numbers |= {name: f"input {number}" for number, name in enumerate(inputs, 1)}  # of a dict, by their names

    def cleaned(value: Any) -> Any:
        if isinstance(value, Mapping):
            names = [name for name in value if not _NOT_OF_PREDICTIONS.fullmatch(str(name))]
            return {str(name): cleaned(value[name]) for name in names}
        if isinstance(value, list | tuple):
            return [cleaned(each) for each in value]
        return numbers.get(value, value) if isinstance(value, str) else value

    described = [(type(each).__name__, _config(each)) for each in layers]
    connections = [each.get("inbound_nodes") for each in _config(model).get("layers", ())]
    described += [("connections", {"of": connections})] if any(connections) else []
    return [f"{kind} {json.dumps(cleaned(config), sort_keys=True, default=str)}" for kind, config in described]


def _config(layer: Any) -> Mapping[str, Any]:
    """Returns the settings of a layer or model; empty if its class does not give them."""
    try:
        return dict(layer.get_config())
    except NotImplementedError:
        return {}
