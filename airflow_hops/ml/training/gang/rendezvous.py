"""The rendezvous server, through which ranks find each other and exchange small values.

It speaks the HTTP of Horovod's Gloo rendezvous: ``PUT``, ``GET`` and ``DELETE`` of ``/scope/key``. A rank deletes its
key of a scope once it is connected. Keys stay until all ranks of the scope have done so, since others may still read
them; then the scope is empty, and the ranks can meet in it again.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from airflow_hops.core.errors import HopsError, InvalidArgument
from airflow_hops.core.stability import experimental
from airflow_hops.ml.training.digests import Digests, check_equal
from airflow_hops.ml.training.gang.crew import Channel, Placement

# The server's port is bound before the ranks are forked, so that they know it; its thread starts after, since a fork
# copies no threads. Scopes: `global` with all ranks, `local_<host>` with those of a host, `cross_<local rank>` with one
# per host; their sizes tell when a scope is empty again. _Server.lock guards values and counts. Other scopes
# (SharedValues) are never emptied: names must be new for each exchange.

LOOPBACK = "lo"
SILENCE_S = 15.0
"""Seconds that exchanges and agents wait for the other side beyond ``stall_timeout_s``."""
_STALL_TIMEOUT = "HOPS_STALL_TIMEOUT_S"
_LONGEST_S = 1e6  # milliseconds must be an int
_BUSY = 10.0
"""How much longer exchanges wait than the supervisor, which counts no seconds in which a host is too busy for ranks."""
_PAUSE_S = 0.05
_ANSWER_S = 10.0
_REQUEST_S = 3.0


def horovod_variables(placement: Placement, address: str, port: int, interface: str) -> dict[str, str]:
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


def stall_variables(stall_timeout_s: float) -> dict[str, str]:
    """Returns variables of all ranks: Horovod logs which ranks it waits for long before the gang is ended.

    Gloo and agents (:func:`patience_s`) wait longer than the supervisor, which finds out what is at fault.

    Raises:
        BadInput: it is not a positive number of seconds.
    """
    if not isinstance(stall_timeout_s, int | float) or not 0 < stall_timeout_s < math.inf:
        raise InvalidArgument("stall_timeout_s", stall_timeout_s, ", expected a number of seconds, more than 0")
    timeout_s = min(float(stall_timeout_s), _LONGEST_S)
    return {
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(max(1, int(timeout_s / 6))),
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(math.ceil(min(_BUSY * timeout_s, _LONGEST_S) + SILENCE_S)),
        _STALL_TIMEOUT: str(timeout_s),
    }


def patience_s(env: Mapping[str, str]) -> float:
    """Returns the seconds that an agent waits for the step, and the step for an agent.

    Args:
        env: Variables with those of :func:`stall_variables`; without them it is ``SILENCE_S``.
    """
    return float(env.get(_STALL_TIMEOUT, 0.0)) + SILENCE_S


@contextlib.contextmanager
def rendezvous(placements: Sequence[Placement], address: str = "127.0.0.1") -> Iterator[tuple[int, Callable[[], None]]]:
    """Yields the port of the rendezvous server, and a function that starts it once ranks are forked."""
    server = _Server(address, placements)
    # The thread starts after the forks; connections wait in the socket's backlog until then.
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    try:
        yield server.server_address[1], thread.start
    finally:
        if thread.is_alive():
            server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    """Holds the ranks' values by scope and key."""

    daemon_threads = True
    request_queue_size = 1024  # all ranks connect at once

    def __init__(self, address: str, placements: Sequence[Placement]) -> None:
        super().__init__((address, 0), _Handler)
        self.lock = threading.Lock()
        self.values: dict[str, dict[str, bytes]] = defaultdict(dict)
        self.members = {"global": len(placements)}
        for placement in placements:
            self.members[f"local_{placement.host}"] = placement.local_size
            self.members[f"cross_{placement.local_rank}"] = placement.cross_size
        self.connected: Counter[str] = Counter()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_S

    def do_PUT(self) -> None:
        value = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            _, scope, key = self.path.split("/", 2)
            self.server.values[scope][key] = value
        self._answer(http.HTTPStatus.OK)

    def do_GET(self) -> None:
        with self.server.lock:
            _, scope, key = self.path.split("/", 2)
            value = self.server.values[scope].get(key)
        self._answer(http.HTTPStatus.OK if value is not None else http.HTTPStatus.NOT_FOUND, value or b"")

    def do_DELETE(self) -> None:
        with self.server.lock:
            _, scope, key = self.path.split("/", 2)
            if scope in self.server.members:
                self.server.connected[scope] += 1
                if self.server.connected[scope] == self.server.members[scope]:
                    self.server.values[scope].clear()
                    self.server.connected[scope] = 0
            else:
                self.server.values[scope].pop(key, None)
        self._answer(http.HTTPStatus.OK)

    def log_message(self, format: str, *args: Any) -> None:
        """Disables the log of requests."""

    def _answer(self, status: http.HTTPStatus, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@experimental
class SharedValues:
    """Values that ranks share without a collective, on the rendezvous server of a rank's environment.

    While the rank waits, it sends signs of life, so that a long wait is not a stall.

    Args:
        scope: Namespace of the values.
        placement: Placement of this rank.
        channel: Channel to the watching process.
    """

    def __init__(self, scope: str, placement: Placement, channel: Channel) -> None:
        self._scope, self._placement, self._channel = scope, placement, channel
        self._address = os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"]
        self._port = int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"])

    @property
    def own_address(self) -> str:
        """IPv4 address by which the other ranks reach this host."""
        return own_address(self._address)

    @property
    def patience_s(self) -> float:
        """Seconds to wait for the other ranks; the supervisor ends a rank that is silent before."""
        return _BUSY * patience_s(os.environ)

    def put(self, name: str, value: str) -> None:
        """Publishes a value; a name can be used once."""
        self._request("PUT", name, value.encode())

    def wait(self, name: str) -> str:
        """Waits for a value; the supervisor ends a rank that waits in vain."""
        while (value := self._request("GET", name, None)) is None:
            self._channel.alive("waiting for the other ranks")
            time.sleep(_PAUSE_S)
        return value

    def exchange(self, name: str, value: str) -> list[str]:
        """Returns every rank's value, by rank; every rank must call it, each time with another name."""
        self.put(f"{name}-{self._placement.rank}", value)
        return [self.wait(f"{name}-{rank}") for rank in range(self._placement.size)]

    def check_equal(self, digests: Digests, advice: str) -> str:
        """Returns the SHA-256 (hex) of the values that must be equal on all ranks; every rank must call it, once.

        Args:
            digests: Names of the values, with the :func:`~airflow_hops.ml.training.digests.digest` of each.
            advice: How to make them equal, for the error.

        Raises:
            BadInput: the ranks differ.
        """
        every = [json.loads(each) for each in self.exchange("digests", json.dumps(digests))]
        return check_equal(every, "at the end of training", advice)

    def _request(self, method: str, name: str, body: bytes | None) -> str | None:
        began = time.monotonic()
        while True:
            connection = http.client.HTTPConnection(self._address, self._port, timeout=_ANSWER_S)
            try:
                connection.request(method, f"/{self._scope}/{name}", body)
                answer = connection.getresponse()
                text = answer.read().decode()
                return text if method == "GET" and answer.status == http.HTTPStatus.OK else None
            except OSError as error:
                # Gives up before the supervisor would.
                if (waited_s := time.monotonic() - began) > patience_s(os.environ) - SILENCE_S - _ANSWER_S:
                    raise HopsError(
                        f"{self._placement} has not reached the rendezvous server at {self._address}:{self._port} for "
                        f"{waited_s:.0f} s: {error}; check the network between this host and that of the step"
                    ) from error
                time.sleep(_PAUSE_S)
            finally:
                connection.close()


def own_address(peer: str) -> str:
    """Returns the IPv4 address of this host on its route to another, given by name or address.

    Raises:
        HopsError: the other host does not exist or cannot be reached.
    """
    try:
        # Horovod 0.28: its rendezvous does not support IPv6.
        family, kind, _, _, target = socket.getaddrinfo(peer, 9, socket.AF_INET, socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # connecting a datagram socket sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise HopsError(f"{peer} cannot be reached from {socket.gethostname()}: {error}") from error
