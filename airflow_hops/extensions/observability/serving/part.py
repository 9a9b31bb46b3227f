"""A part of the model server: metrics for Prometheus, the last hour of requests, and the log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_hops.serving.flags import Flags, flag
from airflow_hops.serving.parts import Counted, ServerPart

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from airflow_hops.serving.models.catalog import Catalog
    from airflow_hops.serving.routes import Routes


@dataclass(frozen=True)
class ObservabilityFlags:
    """Metrics."""

    monitoring_config_file: str = flag("", "MonitoringConfig in text format: metrics for Prometheus")
    request_series: bool = flag(
        False, "count the last hour's requests in steps of ten seconds, for charts: enables GET /v1/stats/series"
    )


class Observability(ServerPart):
    """Metrics by ``--monitoring_config_file``, the last hour by ``--request_series``, and the log by ``--log_file``."""

    flags = ObservabilityFlags

    def reports(
        self, flags: Flags, routes: Routes, catalog: Catalog, counted: Counted, registry: CollectorRegistry
    ) -> None:
        """Adds the routes that the flags ask for."""
        own = flags.of(ObservabilityFlags)
        if own.monitoring_config_file:
            from airflow_hops.extensions.observability.serving import metrics

            if path := metrics.prometheus_path(own.monitoring_config_file):
                metrics.add_route(routes, path, registry)
                registry.register(
                    metrics.ServerMetrics(
                        counted, lambda: {model: catalog.traffic_percent(model) for model in catalog.views}
                    )
                )
        if own.request_series:
            from airflow_hops.extensions.observability.serving import series

            steps = series.RequestSeries(counted.stats, counted.batches)
            series.add_routes(routes, steps)
            steps.start()
        if flags.log_file:
            from airflow_hops.extensions.observability.serving import logs

            logs.add_routes(routes, Path(flags.log_file))
