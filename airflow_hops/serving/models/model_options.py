"""Options for opening models of all formats, among them TensorFlow Serving's ``BatchingParameters``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from airflow_hops.core.serving_api.protocol import BatchingParameters
from airflow_hops.serving.errors import ServingError, StartError, invalid_argument
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.models.lookups import OpenLookup, lookups

PARAMETERS_FILE = "batching_params.pbtxt"
"""File with a version's own parameters, used with ``--enable_per_model_batching_parameters``."""


@dataclass(frozen=True)
class BatchingOptions:
    """TensorFlow Serving's ``BatchingParameters``, with its defaults.

    Attributes:
        max_batch_size: Maximum rows of a request, and of a batch if ``max_execution_batch_size`` is 0.
        batch_timeout_micros: Maximum time that a batch waits for more rows.
        max_enqueued_batches: Maximum number of waiting batches in a queue.
        num_batch_threads: Maximum number of batches that run at once, over all models of the process.
        thread_pool_name: Label of the metrics.
        allowed_batch_sizes: Sizes to which batches are padded, ascending; empty for no padding.
        pad_variable_length_inputs: Whether inputs of different shapes are padded to one shape.
        enable_large_batch_splitting: Whether a request may run in parts of ``max_execution_batch_size`` rows.
        max_execution_batch_size: Maximum rows of a batch; 0 for ``max_batch_size``.
    """

    max_batch_size: int = 1000
    batch_timeout_micros: int = 0
    max_enqueued_batches: int = 10
    num_batch_threads: int = len(os.sched_getaffinity(0))
    thread_pool_name: str = ""
    allowed_batch_sizes: tuple[int, ...] = ()
    pad_variable_length_inputs: bool = False
    enable_large_batch_splitting: bool = False
    max_execution_batch_size: int = 0

    @property
    def batch_rows(self) -> int:
        """Maximum rows of a batch."""
        return (self.enable_large_batch_splitting and self.max_execution_batch_size) or self.max_batch_size

    def padded_rows(self, rows: int) -> int:
        """Returns the smallest allowed batch size that is at least ``rows``."""
        sizes = self.allowed_batch_sizes
        return next((size for size in sizes if size >= rows), rows) if sizes else rows


def batching_options(flags: Flags) -> BatchingOptions | None:
    """Returns the options for all models, or None without ``--enable_batching``.

    Raises:
        StartError: The parameter file is not valid.
    """
    if not flags.enable_batching:
        return None
    if not flags.batching_parameters_file:
        return BatchingOptions(thread_pool_name="model_server_batch_threads")
    try:
        return read_batching_parameters(flags.batching_parameters_file)
    except ServingError as error:
        raise StartError(f"--batching_parameters_file: {error.message}") from error


def read_batching_parameters(path: str | os.PathLike[str]) -> BatchingOptions:
    """Reads ``BatchingParameters`` in protobuf text format.

    Raises:
        ServingError: The file cannot be read or parsed, or its values are invalid.
    """
    message = BatchingParameters()
    try:
        text_format.Parse(Path(path).read_text(encoding="utf-8"), message)
    except (OSError, UnicodeDecodeError, text_format.ParseError) as error:
        raise invalid_argument(f"Invalid protobuf file: '{path}': {error}") from error
    values: dict[str, Any] = {}
    for descriptor, value in message.ListFields():
        values[descriptor.name] = value if isinstance(value, bool) else getattr(value, "value", None)
    if message.allowed_batch_sizes:
        values["allowed_batch_sizes"] = tuple(message.allowed_batch_sizes)
    options = BatchingOptions(**values)
    for name in ("max_batch_size", "max_enqueued_batches", "num_batch_threads"):
        if getattr(options, name) < 1:
            raise invalid_argument(f"{path}: {name} must be positive; was {getattr(options, name)}")
    for name in ("batch_timeout_micros", "max_execution_batch_size"):
        if getattr(options, name) < 0:
            raise invalid_argument(f"{path}: {name} must be non-negative; was {getattr(options, name)}")
    sizes = options.allowed_batch_sizes
    if any(size < 1 for size in sizes) or any(smaller >= larger for smaller, larger in pairwise(sizes)):
        raise invalid_argument(f"{path}: allowed_batch_sizes entries must be monotonically increasing; got {sizes}")
    if sizes and sizes[-1] != options.batch_rows:
        limit = "max_batch_size" if options.batch_rows == options.max_batch_size else "max_execution_batch_size"
        raise invalid_argument(
            f"{path}: Last entry in allowed_batch_sizes must match {limit}; last entry was {sizes[-1]}; "
            f"expected {options.batch_rows}"
        )
    if options.batch_rows > options.max_batch_size:
        raise invalid_argument(
            f"{path}: max_execution_batch_size is {options.batch_rows}; expected at most the max_batch_size, "
            f"{options.max_batch_size}"
        )
    return options


def version_batching(folder: Path, common: BatchingOptions) -> BatchingOptions | None:
    """Returns a version's own options, or None if its folder does not contain ``batching_params.pbtxt``.

    The thread count and the name of the thread pool stay those of ``common``, the options of the server.

    Raises:
        ServingError: The file is not valid.
    """
    path = folder / PARAMETERS_FILE
    if not path.is_file():
        return None
    own = read_batching_parameters(path)
    return replace(own, num_batch_threads=common.num_batch_threads, thread_pool_name=common.thread_pool_name)


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
        batching: Batching of requests; None to run each request alone.
        per_model_batching: Whether a version's ``batching_params.pbtxt`` overrides ``batching``.
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
    batching: BatchingOptions | None = None
    per_model_batching: bool = False
    warmup_iterations: int = 1
    lookups: Mapping[str, OpenLookup] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, flags: Flags) -> ModelOptions:
        """Returns the options of the flags.

        Raises:
            StartError: The file with the batching parameters is not valid.
        """
        return cls(
            tags=tuple(flags.saved_model_tags.split(",")),
            intra_op_threads=flags.tensorflow_intra_op_parallelism,
            inter_op_threads=flags.tensorflow_inter_op_parallelism,
            tensor_content=flags.enable_serialization_as_tensor_content,
            check_method_names=flags.enable_signature_method_name_check,
            allow_pickled=flags.allow_pickled_models,
            trusted_skops_types=tuple(name for name in flags.trusted_skops_types.split(",") if name),
            batching=batching_options(flags),
            per_model_batching=flags.enable_per_model_batching_parameters,
            lookups={name: lookup.opener(flags) for name, lookup in lookups().items()},
            warmup_iterations=(flags.num_request_iterations_for_warmup or 1) if flags.enable_model_warmup else 0,
        )
