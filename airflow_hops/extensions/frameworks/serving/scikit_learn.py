"""Serves scikit-learn estimators: their inputs are columns or one matrix."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from sklearn.base import is_regressor

from airflow_hops.core.serving_api import tensors
from airflow_hops.extensions.frameworks.serving.mlflow_signature import read_estimator_signature
from airflow_hops.extensions.frameworks.serving.skops_files import load_estimator, untrusted_types
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.described import DescribedServable, request_definitions
from airflow_hops.serving.models.formats import ModelOptions
from airflow_hops.serving.models.inference import CLASSIFY, REGRESS
from airflow_hops.serving.models.model_signature import ModelSignature, SignatureFileError
from airflow_hops.serving.models.servable import DEFAULT_SIGNATURE, Signature
from airflow_hops.serving.models.signature_defs import (
    LABELS,
    REGRESSION,
    SCORES,
    VALUES,
    add_example_signature,
    fill_info,
)

PREDICTIONS = "predictions"
PROBABILITIES = "probabilities"
CLASSES = "classes"
# scikit-learn 1.9: reading an estimator imports its modules, which import each other: two threads that begin
# at different ones may see a module that is only half there.
_importing = threading.Lock()


class EstimatorServable(DescribedServable):
    """The estimator of a version folder.

    The folder contains the estimator (``model.skops``; if pickles are allowed, also ``model.pkl`` or ``model.joblib``)
    and a signature file (``signature.json``, or MLflow's ``MLmodel``). If the signature file names the problem, the
    outputs are :class:`~airflow_hops.serving.models.signature_defs.ProblemOutputs`. Otherwise ``serving_default``
    returns ``predictions``; classifiers with ``predict_proba`` also return ``probabilities`` and ``classes``, both
    ``[batch, classes]``. Classifiers have a further signature ``classify`` and regressors ``regress``, which take
    ``tf.Example`` messages and serve Classify and Regress.

    Raises:
        ServingError: A file is missing or invalid; or FAILED_PRECONDITION if the estimator is pickled and pickles are
            not allowed, or if a skops file holds untrusted types, which the message lists.
    """

    def __init__(self, model: str, version: int, folder: Path, options: ModelOptions) -> None:
        try:
            signature = read_estimator_signature(folder)
        except SignatureFileError as error:
            raise invalid_argument(str(error)) from error
        self._estimator = _load(folder, options)
        self._labels = _class_labels(self._estimator)
        definitions = _signature_defs(signature, self._estimator, self._labels)
        super().__init__(model, version, folder, options, signature, definitions)
        self._output_types = {
            info.name: tensors.BY_NUMBER[info.dtype]
            for definition in definitions.signature_def.values()
            for info in definition.outputs.values()
        }

    def _free(self) -> None:
        super()._free()
        self._estimator = None

    def _run(
        self, signature: Signature, feeds: Sequence[np.ndarray], aliases: tuple[str, ...], deadline_s: float
    ) -> Sequence[np.ndarray]:
        try:
            values = self._signature.model.arrange(self._arranged(signature, feeds, deadline_s))
            names = [signature.outputs[alias] for alias in aliases]
            if (outputs := self._signature.outputs) is None:
                return [self._output(name, values) for name in names]
            if outputs.problem == REGRESSION:
                result = self._estimator.predict(values)
            else:
                result = self._estimator.predict_proba(values)
            scores = outputs.scores(np.asarray(result), len(values))
            return [outputs.array(name, scores) for name in names]
        except (ValueError, TypeError, KeyError) as error:
            raise invalid_argument(f"{type(self._estimator).__name__}: {error}") from error

    def _output(self, tensor: str, arguments: Any) -> np.ndarray:
        if tensor in (PREDICTIONS, VALUES):
            values = self._estimator.predict(arguments)
        elif tensor in (PROBABILITIES, SCORES):
            values = self._estimator.predict_proba(arguments)
        elif tensor == LABELS and SCORES not in self._output_types:
            values = np.asarray(self._estimator.predict(arguments))[:, np.newaxis]
        else:
            assert self._labels is not None
            values = np.tile(self._labels, (len(arguments), 1))
        wanted, array = self._output_types[tensor], np.asarray(values)
        return tensors.encoded(array) if wanted is tensors.STRING else array.astype(wanted.numpy)


def estimator_labels(folder: Path) -> tuple[str, ...] | None:
    """Returns the labels of the estimator in a version folder, in the order of its probabilities; None if it has none.

    Integral numbers and booleans are written as integers.
    """
    try:
        labels = _class_labels(_load(folder, ModelOptions()))
    except ServingError:
        return None  # opening the model reports the error
    if labels is None:
        return None
    numbers = labels.dtype.kind in "bf" and bool(np.all(labels == labels.astype(np.int64)))
    return tuple(str(label) for label in (labels.astype(np.int64) if numbers else labels).tolist())


def chosen_classes(folder: Path, columns: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Returns the number of the class that ``predict`` of an estimator chooses for each row, ``[batch]``.

    None for a version folder without an estimator, or with one of several targets.
    """
    if not (folder / "model.skops").is_file():
        return None
    signature, estimator = read_estimator_signature(folder), _load(folder, ModelOptions())
    if (labels := _class_labels(estimator)) is None:
        return None
    chosen = np.asarray(estimator.predict(signature.model.arrange(signature.arrange(columns))))
    numbers: np.ndarray = (chosen[:, np.newaxis] == labels).argmax(axis=1)
    return numbers


def _load(folder: Path, options: ModelOptions) -> Any:
    names = ("model.skops", "model.pkl", "model.joblib")
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise ServingError(grpc.StatusCode.NOT_FOUND, f"{folder}: neither model.skops nor model.pkl nor model.joblib")
    is_pickled, trusted = path.name != "model.skops", options.trusted_skops_types
    if is_pickled and not options.allow_pickled:
        raise ServingError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"{path} is a pickle, which runs whatever code it holds when it is loaded; save the estimator with skops, "
            "or start the server with --allow_pickled_models if every model that it can reach is trusted",
        )
    import joblib

    unknown: list[str] = []
    try:
        with _importing, warnings.catch_warnings():
            # scikit-learn 1.9: warns about estimators of another version; the load either succeeds or raises.
            warnings.simplefilter("ignore")
            if is_pickled:
                estimator = joblib.load(path)
            else:
                unknown = untrusted_types(path, trusted)
                estimator = None if unknown else load_estimator(path, trusted)
    except Exception as error:
        raise invalid_argument(f"Could not load the estimator at {path}: {type(error).__name__}: {error}") from error
    if unknown:
        raise ServingError(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"{path} holds types that skops does not trust: {', '.join(unknown)}; name those that are trusted in "
            "--trusted_skops_types, or convert the estimator to ONNX",
        )
    if not hasattr(estimator, "predict"):
        raise invalid_argument(f"{path}: {type(estimator).__name__} has no method predict")
    return estimator


def _class_labels(estimator: object) -> np.ndarray | None:
    """Returns the labels of a classifier with one target; None for other estimators."""
    labels = getattr(estimator, "classes_", None)
    return labels if isinstance(labels, np.ndarray) and labels.ndim == 1 else None


def _signature_defs(signature: ModelSignature, estimator: object, labels: np.ndarray | None) -> Any:
    definitions = request_definitions(signature)
    if signature.outputs is not None:
        if signature.outputs.problem != REGRESSION and not hasattr(estimator, "predict_proba"):
            raise invalid_argument(
                f"{type(estimator).__name__} has no method predict_proba, but the problem in its signature is "
                f"{signature.outputs.problem}"
            )
        if signature.heads or signature.passed:
            raise invalid_argument(
                f"the signature names outputs beside the prediction, and {type(estimator).__name__} has none; only "
                "ONNX graphs serve several outputs"
            )
        signature.outputs.fill(definitions)
        return definitions
    definition = definitions.signature_def[DEFAULT_SIGNATURE]
    if labels is not None:
        predictions = _type_of_labels(labels)
    elif isinstance(classes := getattr(estimator, "classes_", None), list):
        # A classifier of several targets; NumPy converts labels of different kinds to strings.
        predictions = _type_of_labels(np.concatenate([np.asarray(of_target) for of_target in classes]))
    else:
        predictions = tensors.BY_NAME["double" if is_regressor(estimator) else "int64"]
    fill_info(definition.outputs[PREDICTIONS], PREDICTIONS, predictions, None if labels is None else (-1,))
    if labels is not None:
        classify = add_example_signature(definitions, CLASSIFY)
        shape = (-1, len(labels)) if hasattr(estimator, "predict_proba") else (-1, 1)
        fill_info(classify.outputs["classes"], LABELS, tensors.STRING, shape)
        if hasattr(estimator, "predict_proba"):
            fill_info(classify.outputs["scores"], SCORES, tensors.BY_NAME["float"], shape)
            fill_info(definition.outputs[PROBABILITIES], PROBABILITIES, tensors.BY_NAME["double"], shape)
            fill_info(definition.outputs[CLASSES], CLASSES, predictions, shape)
    elif is_regressor(estimator):
        regress = add_example_signature(definitions, REGRESS)
        fill_info(regress.outputs["outputs"], VALUES, tensors.BY_NAME["float"], None)
    return definitions


def _type_of_labels(labels: np.ndarray) -> tensors.TensorType:
    by_kind = {"b": "bool", "i": "int64", "u": "int64", "f": "double"}
    return tensors.BY_NAME[by_kind.get(labels.dtype.kind, "string")]
