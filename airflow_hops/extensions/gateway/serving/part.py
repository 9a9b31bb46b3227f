"""The gateway as a part of the model server: copies of requests, and models of upstream servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_hops.extensions.gateway.serving.flags import GatewayFlags
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.parts import ModelSource, ServerPart

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from airflow_hops.extensions.gateway.serving.shadow import Shadow, ShadowTotals
    from airflow_hops.serving.capture.capture import Capture
    from airflow_hops.serving.models.catalog import Catalog
    from airflow_hops.serving.routes import Routes


class Gateway(ServerPart):
    """Copies requests to other versions, and forwards them to upstream servers."""

    flags = GatewayFlags
    models_flag = "upstream"

    def check(self, flags: Flags) -> str:
        """Returns why the flags cannot go together."""
        own = flags.of(GatewayFlags)
        if bool(own.upstream_cert_file) != bool(own.upstream_key_file):
            return "--upstream_cert_file and --upstream_key_file go together; expected both or neither"
        return ""

    def models(self, flags: Flags, catalog: Catalog, config: Any) -> ModelSource:
        """Returns the models of the upstream servers."""
        from airflow_hops.extensions.gateway.serving.upstream_watcher import UpstreamWatcher

        return UpstreamWatcher(catalog, flags, config)

    def observer(self, flags: Flags, catalog: Catalog, capture: Capture) -> Shadow:
        """Returns the observer that copies requests."""
        from airflow_hops.extensions.gateway.serving.shadow import Shadow

        return Shadow(catalog, flags.of(GatewayFlags), flags.request_threads, capture)

    def reports(self, flags: Flags, routes: Routes, catalog: Catalog, counts: Callable[[], Any]) -> Collector:
        """Adds the routes of shadow traffic, and returns its metrics."""
        from airflow_hops.extensions.gateway.serving.report import ShadowCollector, add_routes
        from airflow_hops.extensions.gateway.serving.shadow import ShadowTotals

        def read() -> ShadowTotals:
            return counts() or ShadowTotals()

        add_routes(routes, catalog, read)
        return ShadowCollector(read)
