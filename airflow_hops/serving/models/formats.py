"""Formats of models: how a folder is recognised as one, and how it is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_hops.serving.models.batching_options import version_batching
from airflow_hops.serving.models.memory import set_imports_apart
from airflow_hops.serving.models.model_options import ModelOptions
from airflow_hops.serving.models.servable import Servable


@dataclass(frozen=True)
class ModelFormat:
    """A kind of model.

    Attributes:
        name: What people call it.
        files: A version folder holds such a model when one of these files is in it.
        open: Opens a version: model name, version number, folder, options.
    """

    name: str
    files: tuple[str, ...]
    open: Callable[[str, int, Path, ModelOptions], Servable]


# The modules are imported in functions: a process that only hands requests on never imports TensorFlow.


def _open_saved_model(model: str, version: int, folder: Path, options: ModelOptions) -> Servable:
    from airflow_hops.serving.models.saved_model import SavedModelServable

    set_imports_apart()
    return SavedModelServable(model, version, folder, options)


def _open_tflite(model: str, version: int, folder: Path, options: ModelOptions) -> Servable:
    from airflow_hops.serving.models.tflite import TfLiteServable

    return TfLiteServable(model, version, folder, options)


def _open_onnx(model: str, version: int, folder: Path, options: ModelOptions) -> Servable:
    from airflow_hops.serving.models.onnx import OnnxServable

    return OnnxServable(model, version, folder, options)


def _open_estimator(model: str, version: int, folder: Path, options: ModelOptions) -> Servable:
    from airflow_hops.serving.models.scikit_learn import EstimatorServable

    return EstimatorServable(model, version, folder, options)


SAVED_MODEL = ModelFormat("SavedModel", ("saved_model.pb", "saved_model.pbtxt"), _open_saved_model)
TFLITE = ModelFormat("TensorFlow Lite", ("model.tflite",), _open_tflite)
ONNX = ModelFormat("ONNX", ("model.onnx",), _open_onnx)
SCIKIT_LEARN = ModelFormat("scikit-learn", ("model.skops", "model.pkl", "model.joblib"), _open_estimator)

FORMATS = (SAVED_MODEL, TFLITE, ONNX, SCIKIT_LEARN)

MODEL_FILES = tuple(name for known in FORMATS for name in known.files)
"""A version folder with one of these files holds a model."""


def format_of(folder: Path, formats: tuple[ModelFormat, ...] = FORMATS) -> ModelFormat | None:
    """Returns the format of the model in a version folder, or None if there is none (yet)."""
    return next((known for known in formats if any((folder / name).is_file() for name in known.files)), None)


def open_model(model: str, version: int, folder: Path, options: ModelOptions) -> Servable:
    """Opens a version in this process and warms it up.

    Args:
        model: Model name.
        version: Version number.
        folder: Its folder.
        options: How.

    Raises:
        ServingError: It does not load, the folder holds no model any more, or a warm-up request fails.
    """
    from airflow_hops.serving.models.warmup import warm_up

    if options.batching and options.per_model_batching:
        options = replace(options, batching=version_batching(folder, options.batching))
    preferred = (TFLITE, *FORMATS) if options.prefer_tflite else FORMATS
    servable = (format_of(folder, preferred) or SAVED_MODEL).open(model, version, folder, options)
    try:
        warm_up(servable, folder, options.warmup_iterations)
    except BaseException:
        servable.close()
        raise
    return servable
