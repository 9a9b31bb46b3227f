"""How a Spark task and the driver prove to each other that they know the job's secret."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_hops.core.errors import HopsError
from airflow_hops.extensions.ranks.ml.handshake import answer_task, call_driver
from airflow_hops.extensions.ranks.ml.links import broken_exchange, describe_links, unanswered


def _driver_hears(call: Callable[[tuple[str, int]], None]) -> Any:
    """Returns the driver's view of a caller."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as threads:
        calling = threads.submit(call, listener.getsockname())
        connection, _ = listener.accept()
        try:
            with connection:
                return answer_task(connection, b"secret")
        finally:
            calling.result()


def test_peer_with_the_secret_is_accepted() -> None:
    assert _driver_hears(lambda address: call_driver(address, b"secret", {"partition": 3}).close()) == {"partition": 3}


def test_peer_without_the_secret_is_refused_by_both_sides() -> None:
    def call(address: tuple[str, int]) -> None:
        with pytest.raises(ConnectionError):
            call_driver(address, b"another", {"partition": 3})

    with pytest.raises(HopsError, match="a connection came from something that is not a task of this job"):
        _driver_hears(call)


def test_another_protocol_is_named() -> None:
    def call(address: tuple[str, int]) -> None:
        with contextlib.suppress(ConnectionError), socket.create_connection(address) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: driver\r\n\r\n")
            while connection.recv(100):
                pass

    with pytest.raises(HopsError, match="a connection speaks another protocol"):
        _driver_hears(call)


def test_broken_links_are_described_once() -> None:
    line = "[/horovod/third_party/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.3]:4012. Advice"
    assert broken_exchange(line) == ("Connection closed by peer", "10.0.0.3")
    assert broken_exchange("[/gloo/transport/tcp/pair.cc:6] Timed out") == ("Timed out", "")
    assert broken_exchange("the user's own mistake") is None
    links = {("south", "north"): " broke", ("north", "south"): " broke", ("west", "north"): ""}
    assert describe_links(links) == "between north and south broke and between north and west"
    assert describe_links({(f"{n:02}", "z"): "" for n in range(10)}).endswith("between 07 and z and 2 more links")
    assert unanswered(os.getpid()) == []
