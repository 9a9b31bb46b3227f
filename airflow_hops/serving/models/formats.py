"""Formats of models: recognises the format of a folder, and opens it with the server's options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path

from airflow_hops.core.errors import BadInput
from airflow_hops.core.extensions import MODEL_FORMATS, load_all
from airflow_hops.serving.errors import StartError
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.models.lookups import OpenLookup, lookups, with_lookup
from airflow_hops.serving.models.servable import MakeBatcher, OpenBatching, Servable
from airflow_hops.serving.parts import server_parts


@dataclass(frozen=True)
class ModelOptions:
    """Options that come from the server's flags.

    Attributes:
        tags: Tags of a SavedModel's meta graph.
        intra_op_threads: Threads of one TensorFlow operation; 0 lets TensorFlow choose.
        inter_op_threads: Threads that run the operations of one request; 0 runs them in the request's own thread, which
            avoids a hand-over (6 instead of 50 microseconds a call for a small model) and is no slower under load.
        tensor_content: Whether Predict responses use ``tensor_content`` instead of typed fields.
        check_method_names: Whether Classify and Regress accept only signatures with that method name; TensorFlow 2
            does not write it.
        allow_pickled: Whether pickled models are loaded; a pickle can run arbitrary code.
        trusted_skops_types: Types that skops files may hold in addition to those that skops trusts.
        batching: Batching of all versions; None to run each request alone.
        batcher: Batching of one version.
        warmup_iterations: How often each warm-up request is run before a version becomes available.
        lookups: Functions that open versions whose inputs are looked up, by name of the look-up.
    """

    tags: tuple[str, ...] = ("serve",)
    intra_op_threads: int = 0
    inter_op_threads: int = 0
    tensor_content: bool = False
    check_method_names: bool = False
    allow_pickled: bool = False
    trusted_skops_types: tuple[str, ...] = ()
    batching: OpenBatching | None = None
    batcher: MakeBatcher | None = None
    warmup_iterations: int = 1
    lookups: Mapping[str, OpenLookup] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, flags: Flags) -> ModelOptions:
        """Returns the options of the flags.

        Raises:
            StartError: A file that a part's flags name is not valid.
        """
        return cls(
            tags=tuple(flags.saved_model_tags.split(",")),
            intra_op_threads=flags.tensorflow_intra_op_parallelism,
            inter_op_threads=flags.tensorflow_inter_op_parallelism,
            tensor_content=flags.enable_serialization_as_tensor_content,
            check_method_names=flags.enable_signature_method_name_check,
            allow_pickled=flags.allow_pickled_models,
            trusted_skops_types=tuple(name for name in flags.trusted_skops_types.split(",") if name),
            batching=next(filter(None, (part.batching(flags) for part in server_parts().values())), None),
            lookups={name: lookup.opener(flags) for name, lookup in lookups().items()},
            warmup_iterations=(flags.num_request_iterations_for_warmup or 1) if flags.enable_model_warmup else 0,
        )


@dataclass(frozen=True)
class ModelFormat:
    """A format of models; instances are registered as entry points in the group ``airflow_hops.model_formats``.

    Attributes:
        name: Display name.
        files: File names; a version folder that contains one of them holds a model of this format.
        open: Opens a version: model name, version number, folder, options. Raises ``ServingError`` for a damaged model.
            It imports its libraries itself, because processes that never open a model load the format, too: see
            :func:`lazy_opener`.
        distributions: Distributions that open it; the record of an exported model has their versions.
    """

    name: str
    files: tuple[str, ...]
    open: Callable[[str, int, Path, ModelOptions], Servable]
    distributions: tuple[str, ...] = ()


def lazy_opener(module: str, servable: str) -> Callable[[str, int, Path, ModelOptions], Servable]:
    """Imports a format's module only when a model is opened, so that other processes do not import its libraries."""

    def open_version(model: str, version: int, folder: Path, options: ModelOptions) -> Servable:
        opened: Servable = getattr(import_module(module), servable)(model, version, folder, options)
        return opened

    return open_version


SAVED_MODEL = ModelFormat(
    "SavedModel",
    ("saved_model.pb", "saved_model.pbtxt"),
    lazy_opener("airflow_hops.serving.models.saved_model", "SavedModelServable"),
)


def formats() -> Mapping[str, ModelFormat]:
    """Returns the known formats by their registered names, in the order in which they are tried."""
    return load_all(MODEL_FORMATS, ModelFormat)


def model_files() -> tuple[str, ...]:
    """Returns the file names that mark a version folder as a model."""
    return tuple(name for known in formats().values() for name in known.files)


def format_of(folder: Path) -> ModelFormat | None:
    """Returns the format of the model in a version folder, or None if there is none (yet).

    If it has files of several formats, the result is the first of :func:`formats`.
    """
    known = formats().values()
    return next((each for each in known if any((folder / name).is_file() for name in each.files)), None)


OpenVersion = Callable[[str, int, Path], Servable]
"""Opens a version: model name, version number, folder; raises ``ServingError``."""


def version_opener(flags: Flags) -> OpenVersion:
    """Returns the function that opens versions in this process.

    Raises:
        StartError: A format is broken, or a file that a part's flags name is not valid.
    """
    options = ModelOptions.of(flags)
    try:
        formats()
    except BadInput as error:
        raise StartError(str(error)) from error
    return partial(open_model, options=options)


def open_model(model: str, version: int, folder: Path, options: ModelOptions) -> Servable:
    """Opens a version in this process and warms it up.

    Raises:
        ServingError: The model does not load, the folder no longer holds one, or a warm-up request fails.
    """
    from airflow_hops.serving.models.warmup import warm_up

    if options.batching is not None:
        options = replace(options, batcher=options.batching(folder))
    kind = format_of(folder) or SAVED_MODEL
    servable = kind.open(model, version, folder, options)
    try:
        warm_up(servable, folder, options.warmup_iterations)
        opened = with_lookup(servable, folder, options.lookups)
    except BaseException:
        servable.close()
        raise
    opened.format = kind.name
    return opened
