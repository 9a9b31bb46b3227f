"""The server's state from start to end, for load balancers and health checks."""

from __future__ import annotations

import threading
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
        self._lock = threading.Lock()
        self._watchers: set[Callable[[bool | None], None]] = set()
        self.ready = False
        self.draining = False

    def set_ready(self, ready: bool) -> None:
        """Changes the state and notifies all watchers."""
        self.ready = ready
        self._tell(ready)

    def drain(self) -> None:
        """Refuses new requests, and ends all watches, which would otherwise keep the server running."""
        self.draining = True
        self._tell(None)

    def _tell(self, ready: bool | None) -> None:
        with self._lock:
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher(ready)

    def watch(self, watcher: Callable[[bool | None], None]) -> Callable[[], None]:
        """Calls a function now and at every change, and with None at the end; returns a function that ends this."""
        with self._lock:
            self._watchers.add(watcher)
            ready = self.ready
        watcher(ready)
        return lambda: self._watchers.discard(watcher)

    def report(self) -> dict[str, Any]:
        """Returns the body of ``GET /readyz``."""
        models = {name: sorted(view.servables) for name, view in sorted(self._catalog.views.items())}
        return {"ready": self.ready, "models": models, "unavailable": sorted(self._unavailable())}
