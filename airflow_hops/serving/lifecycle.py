"""The server's state from start to end, for load balancers and health checks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Lifecycle:
    """State of the server: starting, ready or draining.

    Args:
        models: Returns the part of ``/readyz`` about models.
    """

    def __init__(self, models: Callable[[], dict[str, Any]]) -> None:
        self._models = models
        self._lock = threading.Lock()
        self._watchers: set[Callable[[bool | None], None]] = set()
        self._ready = False
        self.draining = False

    @property
    def ready(self) -> bool:
        """Whether the server accepts requests: all versions were tried once, and it is not stopping."""
        return self._ready

    def set_ready(self, ready: bool) -> None:
        """Changes the state and notifies all watchers."""
        self._ready = ready
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
            ready = self._ready
        watcher(ready)
        return lambda: self._watchers.discard(watcher)

    def report(self) -> dict[str, Any]:
        """Returns the body of ``GET /readyz``."""
        return {"ready": self._ready, **self._models()}
