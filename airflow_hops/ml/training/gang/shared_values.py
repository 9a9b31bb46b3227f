"""Small values that ranks tell each other before, or without, any collective: over Horovod's rendezvous server."""

from __future__ import annotations

import http.client
import os
import time
from collections.abc import Callable

from airflow_hops.core.contract.artifacts import HopsError

_PAUSE_S = 0.05
_ANSWER_S = 10.0


class SharedValues:
    """Values by name, on the rendezvous server that a rank finds through its environment.

    Args:
        scope: Keeps these names apart from others.
    """

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._address = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
        self._port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])

    def put(self, name: str, value: str) -> None:
        """Tells a value."""
        self._request("PUT", name, value.encode())

    def get(self, name: str) -> str | None:
        """A value, or None as long as nobody has told it."""
        return self._request("GET", name, None)

    def wait(self, name: str, on_alive: Callable[[], None] = lambda: None) -> str:
        """Waits for a value; the gang's watcher ends a rank that waits in vain.

        Args:
            name: Its name.
            on_alive: Called now and then: waiting for what takes long is no stall.
        """
        while (value := self.get(name)) is None:
            on_alive()
            time.sleep(_PAUSE_S)
        return value

    def _request(self, method: str, name: str, body: bytes | None) -> str | None:
        connection = http.client.HTTPConnection(self._address, self._port, timeout=_ANSWER_S)
        try:
            connection.request(method, f"/{self._scope}/{name}", body)
            answer = connection.getresponse()
            text = answer.read().decode()
        except OSError as error:
            raise HopsError(
                f"the rendezvous server at {self._address}:{self._port} does not answer: {error}"
            ) from error
        finally:
            connection.close()
        return text if method == "GET" and answer.status == http.HTTPStatus.OK else None
