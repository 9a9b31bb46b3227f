"""Formats of models: how a folder is recognised as one, and how it is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_hops.core.extensions import MODEL_FORMATS, load_all
from airflow_hops.serving.models.batching_options import version_batching
from airflow_hops.serving.models.memory import set_imports_apart
from airflow_hops.serving.models.model_options import ModelOptions
from airflow_hops.serving.models.servable import Servable


@dataclass(frozen=True)
class ModelFormat:
    """A format of models; an instance is registered as an entry point of the group ``airflow_hops.model_formats``.

    Attributes:
        name: Name for people.
        files: A version folder holds such a model when one of these files is in it.
        open: Opens a version: model name, version number, folder, options. It imports its libraries itself, since the
            format is known to processes that never open a model; it raises ``ServingError`` for a damaged model.
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


def formats() -> tuple[ModelFormat, ...]:
    """Returns the known formats, in the order in which a folder is tried."""
    return tuple(load_all(MODEL_FORMATS, ModelFormat).values())


def model_files() -> tuple[str, ...]:
    """Returns the names of files; a version folder with one of them holds a model."""
    return tuple(name for known in formats() for name in known.files)


def format_of(folder: Path, *, prefer_tflite: bool = False) -> ModelFormat | None:
    """Returns the format of the model in a version folder, or None if there is none (yet)."""
    preferred = (TFLITE,) if prefer_tflite else ()
    return next(
        (known for known in (*preferred, *formats()) if any((folder / name).is_file() for name in known.files)), None
    )


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
    servable = (format_of(folder, prefer_tflite=options.prefer_tflite) or SAVED_MODEL).open(
        model, version, folder, options
    )
    try:
        warm_up(servable, folder, options.warmup_iterations)
    except BaseException:
        servable.close()
        raise
    return servable
