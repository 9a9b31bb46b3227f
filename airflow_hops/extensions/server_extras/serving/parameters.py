"""TensorFlow Serving's ``BatchingParameters``: of the server, and of a version."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from airflow_hops.core.serving_api.protocol import BatchingParameters
from airflow_hops.serving.errors import invalid_argument

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
