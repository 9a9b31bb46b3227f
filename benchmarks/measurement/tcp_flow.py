"""A TCP transfer for as long as it is asked for: ``send ADDRESS`` on one host, ``receive ADDRESS SECONDS`` on another.

The receiver prints bytes per second, without the first three seconds.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time

PORT = 9000


def send(address: str) -> None:
    with socket.create_server((address, PORT)) as server:
        while True:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                while True:
                    connection.sendall(bytes(1 << 16))


def receive(address: str, seconds: float) -> float:
    with socket.create_connection((address, PORT), timeout=10) as connection:
        began, first, received = time.monotonic(), None, 0
        while (now := time.monotonic()) - began < seconds:
            size = len(connection.recv(1 << 16))
            if now - began > 3.0:
                first = first or now
                received += size
        assert first is not None
        return received / (time.monotonic() - first)


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(sys.argv[2])
    else:
        print(receive(sys.argv[2], float(sys.argv[3])))
