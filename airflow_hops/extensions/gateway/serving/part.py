"""The gateway as a part of the model server: models of upstream servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_hops.extensions.gateway.serving.flags import GatewayFlags
from airflow_hops.serving.flags import Flags
from airflow_hops.serving.parts import ServerPart

if TYPE_CHECKING:
    from airflow_hops.serving.models.catalog import Catalog, ModelSource


class Gateway(ServerPart):
    """Forwards requests to upstream servers."""

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
