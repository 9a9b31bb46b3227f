"""Taking ports, with an error that says which flag asked for the one that is taken."""

from __future__ import annotations

import errno
import os
import socket

import grpc


class PortError(Exception):
    """A port that cannot be listened at."""


def bind_rest(host: str, port: int) -> socket.socket:
    """Returns a socket bound to the REST port; port 0 takes a free one.

    Raises:
        PortError: The port is taken or not allowed.
    """
    try:
        return socket.create_server((host, port), family=_family(host), backlog=1024)
    except OSError as error:
        raise _port_error("rest_api_port", host, port, error) from error


def bind_grpc(server: grpc.Server, host: str, port: int) -> int:
    """Binds a gRPC server and returns its port; port 0 takes a free one.

    Raises:
        PortError: The port is taken or not allowed.
    """
    try:
        bound = int(server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))
    except RuntimeError:
        bound = 0
    if bound:
        return bound
    # gRPC does not say why; the same attempt on a plain socket does.
    try:
        socket.create_server((host, port), family=_family(host)).close()
    except OSError as error:
        raise _port_error("port", host, port, error) from error
    raise PortError(f"--port={port}: gRPC cannot listen at {host}:{port}")


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _port_error(flag: str, host: str, port: int, error: OSError) -> PortError:
    if error.errno == errno.EADDRINUSE:
        free = "0" if flag == "port" else "auto"
        return PortError(
            f"--{flag}={port}: port {port} of {host} is taken by another program; stop that or choose another port "
            f"(--{flag}={free} takes a free one)"
        )
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return PortError(f"--{flag}={port}: cannot listen at {host}:{port}: {reason}")
