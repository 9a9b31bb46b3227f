"""Channels to a host that vanishes without a word, in a network namespace of the test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import pytest
from waiting import wait_for

from airflow_hops.core.serving_api.tls_files import SILENT_S, open_channel

PORT = 8500
SERVER = f"""
from concurrent.futures import ThreadPoolExecutor
import grpc

class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(lambda request, context: request)

server = grpc.server(ThreadPoolExecutor(), handlers=[Echo()])
server.add_insecure_port("0.0.0.0:{PORT}")
server.start()
server.wait_for_termination()
"""


def ip(*arguments: str) -> bool:
    """Runs ``ip``; returns whether it succeeded."""
    return shutil.which("ip") is not None and subprocess.run(["ip", *arguments], capture_output=True).returncode == 0


@dataclass(frozen=True)
class Host:
    """A host with a server that answers with the request."""

    name: str
    address: str

    def cut(self, off: bool) -> None:
        """Has the network drop all packets of the host, or carry them again."""
        assert ip("-netns", self.name, "link", "set", "eth0", "down" if off else "up")


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host(f"hops{os.getpid()}", "198.18.77.2")
    if not ip("netns", "add", made.name):
        pytest.skip("this test makes a network namespace: root, and iproute2 (Debian: apt-get install iproute2)")
    inside = ("-netns", made.name)
    link = f"h{os.getpid()}"
    try:
        assert ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", made.name)
        assert ip("addr", "add", "198.18.77.1/30", "dev", link) and ip("link", "set", link, "up")
        assert ip(*inside, "addr", "add", f"{made.address}/30", "dev", "eth0")
        assert ip(*inside, "link", "set", "eth0", "up")
        with subprocess.Popen(["ip", "netns", "exec", made.name, sys.executable, "-c", SERVER]) as server:
            yield made
            server.kill()
    finally:
        ip("link", "del", link)
        ip("netns", "del", made.name)


@pytest.mark.slow
def test_connection_to_a_vanished_host_is_opened_again(host: Host) -> None:
    with open_channel(f"{host.address}:{PORT}") as channel:
        ask = channel.unary_unary("/echo/Echo")

        def outcome() -> object:
            try:
                return ask(b"?", timeout=1)
            except grpc.RpcError as error:
                return error.code()

        wait_for(lambda: outcome() == b"?", "the server answers")
        host.cut(True)
        assert outcome() == grpc.StatusCode.DEADLINE_EXCEEDED
        # Without a limit, the kernel tries for some 15 minutes, more and more rarely.
        wait_for(lambda: outcome() == grpc.StatusCode.UNAVAILABLE, "the connection is given up", SILENT_S * 3)
        host.cut(False)
        assert ask(b"!", timeout=60, wait_for_ready=True) == b"!"
