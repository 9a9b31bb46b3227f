"""Joins standard input and output to a TCP port, as an SSH client's ``ProxyCommand``.

``ssh_proxy.py <host> <port>``
"""

from __future__ import annotations

import os
import socket
import sys
import threading


def relay() -> None:
    """Relays until either side has ended."""
    server = socket.create_connection((sys.argv[1], int(sys.argv[2])))

    def back() -> None:
        while data := server.recv(1 << 16):
            os.write(1, data)
        os._exit(0)

    threading.Thread(target=back, daemon=True).start()
    while data := os.read(0, 1 << 16):
        server.sendall(data)


if __name__ == "__main__":
    relay()
