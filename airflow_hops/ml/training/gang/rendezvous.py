"""Horovod's rendezvous server, by which ranks find each other and exchange small values."""

from __future__ import annotations

import contextlib
import http.client
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.ml.training.gang.crew import Channel, Placement

LOOPBACK = "lo"
_PAUSE_S = 0.05
_ANSWER_S = 10.0


def horovod_environment(placement: Placement, address: str, port: int, interface: str) -> dict[str, str]:
    """Returns the variables of Horovod's Gloo controller for a rank.

    Args:
        placement: Placement of the rank.
        address: Address of the rendezvous server, as the rank's host reaches it.
        port: Port of the rendezvous server.
        interface: Network interface of the rank's host, by which the other ranks reach it.
    """
    return {
        "HOROVOD_HOSTNAME": placement.host,
        "HOROVOD_RANK": str(placement.rank),
        "HOROVOD_SIZE": str(placement.size),
        "HOROVOD_LOCAL_RANK": str(placement.local_rank),
        "HOROVOD_LOCAL_SIZE": str(placement.local_size),
        "HOROVOD_CROSS_RANK": str(placement.cross_rank),
        "HOROVOD_CROSS_SIZE": str(placement.cross_size),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_GLOO_IFACE": interface,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }


def stall_environment(stall_timeout_s: float) -> dict[str, str]:
    """Returns variables that make Horovod log which ranks it waits for, long before the gang is ended.

    Raises:
        BadInput: it is not a positive number of seconds.
    """
    if isinstance(stall_timeout_s, bool) or not isinstance(stall_timeout_s, int | float):
        raise BadInput(f"stall_timeout_s is {stall_timeout_s!r}, expected a number of seconds")
    if not 0 < stall_timeout_s < math.inf:
        raise BadInput(f"stall_timeout_s is {stall_timeout_s}, expected a number of seconds, more than 0")
    return {"HOROVOD_STALL_CHECK_TIME_SECONDS": str(max(1, int(stall_timeout_s / 6)))}


@contextlib.contextmanager
def rendezvous(placements: Sequence[Placement], address: str = "127.0.0.1") -> Iterator[tuple[int, Callable[[], None]]]:
    """Yields the port of Horovod's rendezvous server, and a function that starts it once ranks are forked."""
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

    server = RendezvousHTTPServer((address, 0), RendezvousHandler, 0)
    server.daemon_threads = True
    server.init(
        [SlotInfo(p.host, p.rank, p.local_rank, p.cross_rank, p.size, p.local_size, p.cross_size) for p in placements]
    )
    # The thread starts after the forks; connections wait in the socket's backlog until then.
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    try:
        yield server.server_address[1], thread.start
    finally:
        if thread.is_alive():
            server.shutdown()
        server.server_close()


class SharedValues:
    """Values that ranks share without a collective, on the rendezvous server of a rank's environment.

    ``scope`` is their namespace. While the rank waits, it sends signs of life, so that a long wait is not a stall.
    """

    def __init__(self, scope: str, placement: Placement, channel: Channel) -> None:
        self._scope, self._placement, self._channel = scope, placement, channel
        self._address = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
        self._port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])

    def put(self, name: str, value: str) -> None:
        """Publishes a value."""
        self._request("PUT", name, value.encode())

    def wait(self, name: str) -> str:
        """Waits for a value; the supervisor ends a rank that waits in vain."""
        while (value := self._request("GET", name, None)) is None:
            self._channel.alive("waiting for the other ranks")
            time.sleep(_PAUSE_S)
        return value

    def exchange(self, name: str, value: str) -> list[str]:
        """Returns every rank's value, by rank; every rank must call it."""
        self.put(f"{name}-{self._placement.rank}", value)
        return [self.wait(f"{name}-{rank}") for rank in range(self._placement.size)]

    def check_equal(self, checksum: str, what: str, advice: str) -> str:
        """Returns a SHA-256 (hex) that must be equal on all ranks; every rank must call it.

        Raises:
            BadInput: the ranks differ in ``what``.
        """
        every = self.exchange("weights", checksum)
        if len(set(every)) > 1:
            listed = ", ".join(f"rank {rank}: {value[:12]}" for rank, value in enumerate(every))
            raise BadInput(f"the ranks' {what} differ at the end of training (SHA-256 by rank: {listed}); {advice}")
        return checksum

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
