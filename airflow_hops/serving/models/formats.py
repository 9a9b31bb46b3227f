"""Formats of models: recognises the format of a folder, and opens it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.extensions import MODEL_FORMATS, load_all
from airflow_hops.serving.errors import StartError
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.models.model_options import ModelOptions, version_batching
from airflow_hops.serving.models.servable import Servable


@dataclass(frozen=True)
class ModelFormat:
    """A format of models; instances are registered as entry points in the group ``airflow_hops.model_formats``.

    Attributes:
        name: Display name.
        files: File names; a version folder that contains one of them holds a model of this format.
        open: Opens a version: model name, version number, folder, options. Raises ``ServingError`` for a damaged model.
            It imports its libraries itself, because processes that never open a model load the format, too.
    """

    name: str
    files: tuple[str, ...]
    open: Callable[[str, int, Path, ModelOptions], Servable]


def _opener(module: str, servable: str) -> Callable[[str, int, Path, ModelOptions], Servable]:
    """Imports a format's module only when a model is opened, so that other processes do not import TensorFlow."""

    def open_version(model: str, version: int, folder: Path, options: ModelOptions) -> Servable:
        opened: Servable = getattr(import_module(f"airflow_hops.{module}"), servable)(model, version, folder, options)
        return opened

    return open_version


SAVED_MODEL = ModelFormat(
    "SavedModel", ("saved_model.pb", "saved_model.pbtxt"), _opener("serving.models.saved_model", "SavedModelServable")
)
TFLITE = ModelFormat(
    "TensorFlow Lite", ("model.tflite",), _opener("extensions.frameworks.serving.tflite", "TfLiteServable")
)
ONNX = ModelFormat("ONNX", ("model.onnx",), _opener("extensions.frameworks.serving.onnx", "OnnxServable"))
SCIKIT_LEARN = ModelFormat(
    "scikit-learn",
    ("model.skops", "model.pkl", "model.joblib"),
    _opener("extensions.frameworks.serving.scikit_learn", "EstimatorServable"),
)


def formats() -> tuple[ModelFormat, ...]:
    """Returns the known formats, in the order in which they are tried."""
    return tuple(load_all(MODEL_FORMATS, ModelFormat).values())


def model_files() -> tuple[str, ...]:
    """Returns the file names that mark a version folder as a model."""
    return tuple(name for known in formats() for name in known.files)


def format_of(folder: Path, *, prefer_tflite: bool = False) -> ModelFormat | None:
    """Returns the format of the model in a version folder, or None if there is none (yet)."""
    preferred = (TFLITE,) if prefer_tflite else ()
    return next(
        (known for known in (*preferred, *formats()) if any((folder / name).is_file() for name in known.files)), None
    )


OpenVersion = Callable[[str, int, Path], Servable]
"""Opens a version: model name, version number, folder; raises ``ServingError``."""


def version_opener(flags: Flags) -> OpenVersion:
    """Returns the function that opens versions in this process.

    Raises:
        StartError: A third-party format is broken, or the batching parameters are not valid.
    """
    try:
        formats()
    except BadInput as error:
        raise StartError(str(error)) from error
    return partial(open_model, options=ModelOptions.of(flags))


def open_model(model: str, version: int, folder: Path, options: ModelOptions) -> Servable:
    """Opens a version in this process and warms it up.

    Raises:
        ServingError: The model does not load, the folder no longer holds one, or a warm-up request fails.
    """
    from airflow_hops.extensions.feature_store.serving.feature_lookup import with_lookups
    from airflow_hops.serving.models.warmup import warm_up

    if options.batching and options.per_model_batching:
        options = replace(options, batching=version_batching(folder, options.batching))
    servable = (format_of(folder, prefer_tflite=options.prefer_tflite) or SAVED_MODEL).open(
        model, version, folder, options
    )
    try:
        warm_up(servable, folder, options.warmup_iterations)
        return with_lookups(servable, folder, options.online_store, options.lookup_limit)
    except BaseException:
        servable.close()
        raise
