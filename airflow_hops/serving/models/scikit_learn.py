"""A scikit-learn estimator, behind the same API: its inputs as columns or one matrix, its answers as tensors."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import numpy as np

from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.estimator_examples import read_columns
from airflow_hops.serving.models.estimator_signature import EstimatorInputs, SignatureFileError, read_inputs
from airflow_hops.serving.models.inference import CLASSIFY, REGRESS
from airflow_hops.serving.models.local import LocalServable
from airflow_hops.serving.models.model_options import ModelOptions
from airflow_hops.serving.models.servable import DEFAULT_SIGNATURE, Signature
from airflow_hops.serving_api import tensors
from airflow_hops.serving_api.protocol import SignatureDefMap

PREDICTIONS = "predictions"
PROBABILITIES = "probabilities"
CLASSES = "classes"

CLASSIFY_SIGNATURE = "classify"
REGRESS_SIGNATURE = "regress"

# Names of tensors; those of serving_default are its aliases.
_EXAMPLES = "tf_example"
_LABELS = "classify/classes"
_SCORES = "classify/scores"
_VALUES = "regress/outputs"


class EstimatorServable(LocalServable):
    """The estimator of a version folder.

    The folder holds the estimator (``model.skops``; where pickles are allowed, also ``model.pkl`` or ``model.joblib``)
    and what it takes (``signature.json``, or MLflow's ``MLmodel``). Its signature ``serving_default`` gives
    ``predictions``; of a classifier also ``probabilities`` and ``classes``, both ``[batch, classes]``, as far as it has
    ``predict_proba``. A classifier has a signature ``classify`` and a regressor ``regress``, too, which take
    ``tf.Example`` messages: those of Classify and Regress.

    Args:
        model: Model name.
        version: Version number.
        folder: The version folder.
        options: How to open it.

    Raises:
        ServingError: A file is missing or wrong, the estimator is pickled and pickles are not allowed
            (``FAILED_PRECONDITION``), or a skops file holds types that nobody trusts (``FAILED_PRECONDITION``, with
            their names).
    """

    signature_by_method = MappingProxyType({CLASSIFY: CLASSIFY_SIGNATURE, REGRESS: REGRESS_SIGNATURE})

    def __init__(self, model: str, version: int, folder: Path, options: ModelOptions) -> None:
        started_s = time.monotonic()
        try:
            self._inputs = read_inputs(folder)
        except SignatureFileError as error:
            raise invalid_argument(str(error)) from error
        self._estimator = _load(folder, options)
        self._labels = _class_labels(self._estimator)
        definitions = _signature_defs(self._inputs, self._estimator, self._labels)
        super().__init__(model, version, os.fspath(folder), definitions.SerializeToString(), options)
        self._output_types = {
            info.name: tensors.BY_NUMBER[info.dtype]
            for definition in definitions.signature_def.values()
            for info in definition.outputs.values()
        }
        self.load_s = time.monotonic() - started_s

    def _free(self) -> None:
        self._estimator = None

    def _run(
        self, signature: Signature, feeds: Sequence[np.ndarray], aliases: tuple[str, ...], deadline_s: float
    ) -> Sequence[np.ndarray]:
        try:
            if signature.name == DEFAULT_SIGNATURE:
                columns = dict(zip(signature.inputs, feeds, strict=True))
            else:
                columns = read_columns(feeds[0].ravel().tolist(), self._inputs)
            given = self._inputs.arrange(columns)
            return [self._output(signature.outputs[alias], given) for alias in aliases]
        except (ValueError, TypeError, KeyError) as error:
            raise invalid_argument(f"{type(self._estimator).__name__}: {error}") from error

    def _output(self, tensor: str, given: Any) -> np.ndarray:
        if tensor in (PREDICTIONS, _VALUES):
            values = self._estimator.predict(given)
        elif tensor in (PROBABILITIES, _SCORES):
            values = self._estimator.predict_proba(given)
        elif tensor == _LABELS and _SCORES not in self._output_types:
            values = np.asarray(self._estimator.predict(given))[:, np.newaxis]
        else:
            assert self._labels is not None
            values = np.tile(self._labels, (len(given), 1))
        return _as_type(np.asarray(values), self._output_types[tensor])


def _load(folder: Path, options: ModelOptions) -> Any:
    if (folder / "model.skops").is_file():
        return _load_skops(folder / "model.skops", options.trusted_skops_types)
    path = next((folder / name for name in ("model.pkl", "model.joblib") if (folder / name).is_file()), None)
    if path is None:
        raise ServingError(grpc.StatusCode.NOT_FOUND, f"{folder}: neither model.skops nor model.pkl nor model.joblib")
    if not options.allow_pickled:
        raise ServingError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"{path} is a pickle, which runs whatever code it holds when it is loaded; save the estimator with skops, "
            "or start the server with --allow_pickled_models if every model that it can reach is trusted",
        )
    import joblib

    return _checked(path, joblib.load)


def _load_skops(path: Path, trusted: tuple[str, ...]) -> Any:
    import skops.io

    def load(file: Path) -> Any:
        unknown = sorted(set(skops.io.get_untrusted_types(file=file)) - set(trusted))
        if unknown:
            raise ServingError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"{path} holds types that skops does not trust: {', '.join(unknown)}; name those that are trusted in "
                "--trusted_skops_types",
            )
        return skops.io.load(file, trusted=list(trusted))

    return _checked(path, load)


def _checked(path: Path, load: Any) -> Any:
    try:
        with warnings.catch_warnings():
            # Of another version of scikit-learn: it loads or does not.
            warnings.simplefilter("ignore")
            estimator = load(path)
    except ServingError:
        raise
    except Exception as error:
        raise ServingError(
            grpc.StatusCode.INVALID_ARGUMENT, f"Could not load the estimator at {path}: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(estimator, "predict"):
        raise invalid_argument(f"{path}: {type(estimator).__name__} has no method predict")
    return estimator


def _class_labels(estimator: Any) -> np.ndarray | None:
    """The labels of a classifier; None for others, and where there are several targets."""
    labels = getattr(estimator, "classes_", None)
    return labels if isinstance(labels, np.ndarray) and labels.ndim == 1 else None


def _signature_defs(inputs: EstimatorInputs, estimator: Any, labels: np.ndarray | None) -> Any:
    from sklearn.base import is_regressor

    definitions = SignatureDefMap()
    definition = definitions.signature_def[DEFAULT_SIGNATURE]
    definition.method_name = "tensorflow/serving/predict"
    for name, tensor_type, shape in inputs.specs():
        _fill_info(definition.inputs[name], name, tensor_type, shape)
    if labels is not None:
        predictions = _type_of_labels(labels)
    elif isinstance(classes := getattr(estimator, "classes_", None), list):
        # A classifier of several targets; labels of unequal kinds are strings in NumPy's one array as well.
        predictions = _type_of_labels(np.concatenate([np.asarray(of_target) for of_target in classes]))
    else:
        predictions = tensors.BY_NAME["double" if is_regressor(estimator) else "int64"]
    _fill_info(definition.outputs[PREDICTIONS], PREDICTIONS, predictions, None if labels is None else (-1,))
    if labels is not None:
        classify = _example_signature(definitions, CLASSIFY_SIGNATURE, CLASSIFY)
        shape = (-1, len(labels)) if hasattr(estimator, "predict_proba") else (-1, 1)
        _fill_info(classify.outputs["classes"], _LABELS, tensors.STRING, shape)
        if hasattr(estimator, "predict_proba"):
            _fill_info(classify.outputs["scores"], _SCORES, tensors.BY_NAME["float"], shape)
            _fill_info(definition.outputs[PROBABILITIES], PROBABILITIES, tensors.BY_NAME["double"], shape)
            _fill_info(definition.outputs[CLASSES], CLASSES, predictions, shape)
    elif is_regressor(estimator):
        regress = _example_signature(definitions, REGRESS_SIGNATURE, REGRESS)
        _fill_info(regress.outputs["outputs"], _VALUES, tensors.BY_NAME["float"], None)
    return definitions


def _example_signature(definitions: Any, name: str, method_name: str) -> Any:
    definition = definitions.signature_def[name]
    definition.method_name = method_name
    _fill_info(definition.inputs["inputs"], _EXAMPLES, tensors.STRING, (-1,))
    return definition


def _fill_info(info: Any, name: str, tensor_type: tensors.TensorType, shape: tuple[int, ...] | None) -> None:
    info.name = name
    info.dtype = tensor_type.number
    info.tensor_shape.SetInParent()
    info.tensor_shape.unknown_rank = shape is None
    for size in shape or ():
        info.tensor_shape.dim.add(size=size)


def _type_of_labels(labels: np.ndarray) -> tensors.TensorType:
    by_kind = {"b": "bool", "i": "int64", "u": "int64", "f": "double"}
    return tensors.BY_NAME[by_kind.get(labels.dtype.kind, "string")]


def _as_type(values: np.ndarray, tensor_type: tensors.TensorType) -> np.ndarray:
    if tensor_type is not tensors.STRING:
        return values.astype(tensor_type.numpy)
    texts: np.ndarray = np.empty(values.shape, object)
    texts.ravel()[:] = [str(value).encode() for value in values.ravel().tolist()]
    return texts
