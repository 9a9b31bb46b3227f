"""A part of the model server that runs waiting requests together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_hops.serving.flags import Flags, flag
from airflow_hops.serving.parts import ServerPart

if TYPE_CHECKING:
    from airflow_hops.extensions.batching.serving.parameters import BatchingOptions
    from airflow_hops.serving.models.servable import MakeBatcher, OpenBatching, Run


@dataclass(frozen=True)
class BatchingFlags:
    """Batching (TensorFlow Serving's flags)."""

    enable_batching: bool = flag(False, "run waiting requests for one model as one batch")
    batching_parameters_file: str = flag("", "BatchingParameters in text format")
    enable_per_model_batching_parameters: bool = flag(
        False, "batch only models with batching_params.pbtxt in the version's folder, with those parameters"
    )


class Batching(ServerPart):
    """Batches requests with ``--enable_batching``."""

    flags = BatchingFlags

    def check(self, flags: Flags) -> str:
        """Returns why the flags cannot go together."""
        own = flags.of(BatchingFlags)
        if own.batching_parameters_file and not own.enable_batching:
            return (
                "server_options.batching_parameters_file is set without setting server_options.enable_batching to true."
            )
        return ""

    def batching(self, flags: Flags) -> OpenBatching | None:
        """Returns the batching of versions, if the flags ask for it."""
        own = flags.of(BatchingFlags)
        if not own.enable_batching:
            return None
        return partial(_open, batching_options(own), is_per_model=own.enable_per_model_batching_parameters)


def batching_options(flags: BatchingFlags) -> BatchingOptions:
    """Returns the options for all models.

    Raises:
        StartError: The parameter file is not valid.
    """
    from airflow_hops.extensions.batching.serving.parameters import BatchingOptions, read_batching_parameters
    from airflow_hops.serving.errors import ServingError, StartError

    if not flags.batching_parameters_file:
        return BatchingOptions(thread_pool_name="model_server_batch_threads")
    try:
        return read_batching_parameters(flags.batching_parameters_file)
    except ServingError as error:
        raise StartError(f"--batching_parameters_file: {error.message}") from error


def _open(common: BatchingOptions, folder: Path, *, is_per_model: bool) -> MakeBatcher | None:
    from airflow_hops.extensions.batching.serving.batcher import Batcher
    from airflow_hops.extensions.batching.serving.parameters import version_batching

    options = version_batching(folder, common) if is_per_model else common
    if options is None:
        return None

    def make(run: Run) -> tuple[Run, int]:
        return Batcher(run, options).run, options.max_batch_size

    return make
