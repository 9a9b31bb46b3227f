"""The server's life from start to end, for load balancers and health checks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Lifecycle:
    """Starting, ready, draining.

    Args:
        models: Gives what ``/readyz`` says of the models beside whether the server is ready.
    """

    def __init__(self, models: Callable[[], dict[str, Any]]) -> None:
        self._models = models
        self._lock = threading.Lock()
        self._watchers: set[Callable[[bool | None], None]] = set()
        self._ready = False
        self.draining = False

    @property
    def ready(self) -> bool:
        """Whether requests are welcome: every version was tried once, and the server is not about to stop."""
        return self._ready

    def set_ready(self, ready: bool) -> None:
        """Tells everyone who watches."""
        self._ready = ready
        self._tell(ready)

    def drain(self) -> None:
        """Has new requests refused, and ends the watching, which would keep the server from its end."""
        self.draining = True
        self._tell(None)

    def _tell(self, ready: bool | None) -> None:
        with self._lock:
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher(ready)

    def watch(self, watcher: Callable[[bool | None], None]) -> Callable[[], None]:
        """Calls a function now and at every change, and with None at the end.

        Returns:
            What ends the calls sooner.
        """
        with self._lock:
            self._watchers.add(watcher)
            ready = self._ready
        watcher(ready)
        return lambda: self._watchers.discard(watcher)

    def report(self) -> dict[str, Any]:
        """Returns what ``GET /readyz`` answers."""
        return {"ready": self._ready, **self._models()}
