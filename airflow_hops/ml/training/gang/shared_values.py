"""Small values that ranks tell each other before, or without, any collective: over Horovod's rendezvous server."""

from __future__ import annotations

import http.client
import os
import time

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.ml.training.gang.placement import Placement
from airflow_hops.ml.training.gang.rank import Channel

_PAUSE_S = 0.05
_ANSWER_S = 10.0


class SharedValues:
    """Values by name, on the rendezvous server that a rank finds through its environment.

    Args:
        scope: Keeps these names apart from others.
        placement: The rank's.
        channel: To the process that watches: waiting for what takes long is no stall.
    """

    def __init__(self, scope: str, placement: Placement, channel: Channel) -> None:
        self._scope, self._placement, self._channel = scope, placement, channel
        self._address = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
        self._port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])

    def put(self, name: str, value: str) -> None:
        """Tells a value."""
        self._request("PUT", name, value.encode())

    def wait(self, name: str) -> str:
        """Waits for a value; the gang's watcher ends a rank that waits in vain."""
        while (value := self._request("GET", name, None)) is None:
            self._channel.alive("waiting for the other ranks")
            time.sleep(_PAUSE_S)
        return value

    def exchange(self, name: str, value: str) -> list[str]:
        """Returns every rank's value, by rank; every rank must call it."""
        self.put(f"{name}-{self._placement.rank}", value)
        return [self.wait(f"{name}-{rank}") for rank in range(self._placement.size)]

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
