"""The server's state from start to end, for load balancers and health checks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from airflow_hops.serving.models.catalog import Catalog


class Lifecycle:
    """State of the server: starting, ready or draining.

    Args:
        catalog: The available models.
        unavailable: Returns the names of the models that are configured, but not available.

    Attributes:
        ready: Whether the server accepts requests: all versions were tried once, and it is not stopping.
        draining: Whether the server refuses new requests.
    """

    def __init__(self, catalog: Catalog, unavailable: Callable[[], Collection[str]]) -> None:
        self._catalog, self._unavailable = catalog, unavailable
        self.ready = False
        self.draining = False

    def report(self) -> dict[str, Any]:
        """Returns the body of ``GET /readyz``."""
        models = {name: sorted(view.servables) for name, view in sorted(self._catalog.views.items())}
        return {"ready": self.ready, "models": models, "unavailable": sorted(self._unavailable())}
