"""Which kinds of model there are, how a folder is told to hold one, and how it is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from airflow_hops.serving.models.batching_options import BatchingOptions, version_batching
from airflow_hops.serving.models.memory import set_imports_apart
from airflow_hops.serving.models.servable import Servable
from airflow_hops.serving.models.warmup import warm_up


@dataclass(frozen=True)
class ModelOptions:
    """How models are opened, whatever they are.

    Attributes:
        tags: Tags of a SavedModel's meta graph.
        intra_op_threads: Threads of one TensorFlow operation; 0 lets TensorFlow choose.
        inter_op_threads: Threads over the operations of one request; 0 runs them in the request's own thread, which
            spares a small model the hand-over (6 microseconds a call instead of 50) and loses nothing under load.
        tensor_content: Whether Predict answers in ``tensor_content`` and not in typed fields.
        check_method_names: Whether Classify and Regress take only signatures of that method name; TensorFlow 2 writes
            none.
        prefer_tflite: Whether a version with a ``model.tflite`` is served by TensorFlow Lite.
        allow_pickled: Whether pickled models are read: a pickle runs whatever code it holds.
        trusted_skops_types: Types that skops files may hold beyond those that skops trusts by itself.
        batching: How requests are batched; None runs each by itself.
        per_model_batching: Whether a version's own ``batching_params.pbtxt`` says so, and not ``batching`` for all.
        warmup_iterations: How often a version answers each of its warm-up requests before it is available.
    """

    tags: tuple[str, ...] = ("serve",)
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    tensor_content: bool = False
    check_method_names: bool = False
    prefer_tflite: bool = False
    allow_pickled: bool = False
    trusted_skops_types: tuple[str, ...] = ()
    batching: BatchingOptions | None = None
    per_model_batching: bool = False
    warmup_iterations: int = 1


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


def _open_estimator(model: str, version: int, folder: Path, options: ModelOptions) -> Servable:
    from airflow_hops.serving.models.scikit_learn import EstimatorServable

    return EstimatorServable(model, version, folder, options)


SAVED_MODEL = ModelFormat("SavedModel", ("saved_model.pb", "saved_model.pbtxt"), _open_saved_model)
TFLITE = ModelFormat("TensorFlow Lite", ("model.tflite",), _open_tflite)
SCIKIT_LEARN = ModelFormat("scikit-learn", ("model.skops", "model.pkl", "model.joblib"), _open_estimator)

FORMATS = (SAVED_MODEL, TFLITE, SCIKIT_LEARN)


def format_of(folder: Path, formats: tuple[ModelFormat, ...] = FORMATS) -> ModelFormat | None:
    """Returns the format of the model in a version folder, or None where there is none (yet)."""
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
