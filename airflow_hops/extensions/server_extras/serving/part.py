"""The part of the model server: several processes, batches, reports on requests, base paths in stores."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_hops.extensions.server_extras.serving.flags import ExtraFlags
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.parts import Counted, OnLook, ServerPart, VersionStores

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from airflow_hops.extensions.server_extras.serving.parameters import BatchingOptions
    from airflow_hops.serving.models.catalog import Catalog
    from airflow_hops.serving.models.servable import MakeBatcher, OpenBatching, Run
    from airflow_hops.serving.routes import Routes


class ServerExtras(ServerPart):
    """Runs ``--workers``, batches with ``--enable_batching``, reports on requests, and lists versions in stores."""

    flags = ExtraFlags

    def check(self, flags: Flags) -> str:
        """Returns why the flags cannot go together."""
        own = flags.of(ExtraFlags)
        if own.workers > 1 and flags.models_flag:
            return f"--workers={own.workers} and --{flags.models_flag} are both given; start several servers"
        if own.workers > 1 and flags.grpc_socket_path:
            return f"--workers={own.workers} and --grpc_socket_path are both given; workers cannot share a UNIX socket"
        if own.batching_parameters_file and not own.enable_batching:
            return (
                "server_options.batching_parameters_file is set without setting server_options.enable_batching to true."
            )
        return ""

    def run(self, flags: Flags) -> int | None:
        """Runs the supervisor, if there are several workers."""
        if flags.of(ExtraFlags).workers == 1:
            return None
        from airflow_hops.extensions.server_extras.serving.supervisor import Supervisor

        return Supervisor(flags).run()

    def batching(self, flags: Flags) -> OpenBatching | None:
        """Returns the batching of versions, if the flags ask for it."""
        own = flags.of(ExtraFlags)
        if not own.enable_batching:
            return None
        return partial(_open, batching_options(own), is_per_model=own.enable_per_model_batching_parameters)

    def stores(self, flags: Flags, changed: threading.Condition, on_look: OnLook) -> VersionStores:
        """Returns the stores of this process."""
        from airflow_hops.extensions.server_extras.serving.model_cache import ModelCache
        from airflow_hops.extensions.server_extras.serving.remote_storage import RemoteLooks

        root = flags.of(ExtraFlags).model_cache_path
        return RemoteLooks(changed, ModelCache(Path(root).absolute() if root else None), on_look)

    def reports(
        self, flags: Flags, routes: Routes, catalog: Catalog, counted: Counted, registry: CollectorRegistry
    ) -> None:
        """Adds metrics by ``--monitoring_config_file``, the last hour, and the log by ``--log_file``."""
        own = flags.of(ExtraFlags)
        if own.monitoring_config_file:
            from airflow_hops.extensions.server_extras.serving import metrics

            if path := metrics.prometheus_path(own.monitoring_config_file):
                metrics.add_route(routes, path, registry)
                registry.register(
                    metrics.ServerMetrics(
                        counted, lambda: {model: catalog.traffic_percent(model) for model in catalog.views}
                    )
                )
        if own.request_series:
            from airflow_hops.extensions.server_extras.serving import series

            steps = series.RequestSeries(counted.stats, counted.batches)
            series.add_routes(routes, steps)
            steps.start()
        if flags.log_file:
            from airflow_hops.extensions.server_extras.serving import logs

            logs.add_routes(routes, Path(flags.log_file))


def batching_options(flags: ExtraFlags) -> BatchingOptions:
    """Returns the options for all models.

    Raises:
        StartError: The parameter file is not valid.
    """
    from airflow_hops.extensions.server_extras.serving.parameters import BatchingOptions, read_batching_parameters
    from airflow_hops.serving.errors import ServingError, StartError

    if not flags.batching_parameters_file:
        return BatchingOptions(thread_pool_name="model_server_batch_threads")
    try:
        return read_batching_parameters(flags.batching_parameters_file)
    except ServingError as error:
        raise StartError(f"--batching_parameters_file: {error.message}") from error


def _open(common: BatchingOptions, folder: Path, *, is_per_model: bool) -> MakeBatcher | None:
    from airflow_hops.extensions.server_extras.serving.batcher import Batcher
    from airflow_hops.extensions.server_extras.serving.parameters import version_batching

    options = version_batching(folder, common) if is_per_model else common
    if options is None:
        return None

    def make(run: Run) -> tuple[Run, int]:
        return Batcher(run, options).run, options.max_batch_size

    return make
