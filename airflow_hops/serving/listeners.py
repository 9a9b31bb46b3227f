"""Takes ports and sockets; an error names the flag of the one that is not available."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import tempfile
from typing import Any

import grpc

from airflow_hops.core.serving_api.config import ConfigError, read_message
from airflow_hops.core.serving_api.protocol import SSLConfig
from airflow_hops.serving.errors import StartError


def hold_port(flag: str, host: str, port: int, shared: bool = False) -> socket.socket:
    """Returns a socket bound to a port, which refuses connections until it listens; raises StartError.

    Args:
        flag: Flag of the port, for errors.
        host: Address.
        port: Port; 0 takes a free one.
        shared: Whether other processes of this user may share the port; a shared port counts as free.
    """
    holder = socket.socket(_family(host))
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if holder.family == socket.AF_INET6:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if shared:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((host, port))
    except OSError as error:
        holder.close()
        raise port_error(flag, host, port, error) from error
    return holder


def bind_grpc(server: grpc.Server, host: str, port: int, credentials: grpc.ServerCredentials | None = None) -> int:
    """Binds a gRPC server that has not been started, and returns its port; port 0 takes a free one.

    Raises:
        StartError: The port is taken or not allowed, or the certificate is invalid.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError:
        bound = 0
    if bound:
        return int(bound)
    # grpcio 1.85: does not report the reason, but a plain socket does.
    try:
        socket.create_server((host, port), family=_family(host)).close()
    except OSError as error:
        raise port_error("port", host, port, error) from error
    if credentials:
        raise StartError(
            "--ssl_config_file: server_key and server_cert are not a key and certificate in PEM that match"
        )
    raise StartError(f"--port={port}: gRPC cannot listen at {host}:{port}")


def bind_grpc_socket(server: grpc.Server, path: str) -> None:
    """Binds a gRPC server that has not been started to a UNIX socket, too, in place of one that a killed server left.

    Raises:
        StartError: The folder cannot be written, another file has the path, or the path is too long.
    """
    try:
        bound = server.add_insecure_port(f"unix:{path}")
    except RuntimeError:
        bound = 0
    if not bound:
        raise StartError(
            f"--grpc_socket_path={path}: gRPC cannot listen there; expected a path of up to 107 bytes in a folder that "
            "this user can write, where no other file is"
        )


def read_ssl_config(ssl_config_file: str) -> object:
    """Reads TensorFlow Serving's ``SSLConfig``, which holds keys and certificates in PEM; None if no file is named.

    Raises:
        ConfigError: The file does not parse, or lacks key or certificate.
    """
    if not ssl_config_file:
        return None
    config = read_message(ssl_config_file, SSLConfig())
    for field in ("server_key", "server_cert"):
        if not getattr(config, field).lstrip().startswith("-----BEGIN"):
            raise ConfigError(f"{ssl_config_file}: field {field!r} is not in PEM; expected text from -----BEGIN on")
    if config.client_verify and not config.custom_ca:
        raise ConfigError(f"{ssl_config_file}: client_verify is set and custom_ca is empty; expected certificates")
    return config


def grpc_credentials(config: Any) -> grpc.ServerCredentials:
    """Returns the credentials of a gRPC port from an ``SSLConfig``."""
    return grpc.ssl_server_credentials(
        [(config.server_key.encode(), config.server_cert.encode())],
        config.custom_ca.encode() or None,
        config.client_verify,
    )


def rest_context(config: Any) -> ssl.SSLContext:
    """Returns the TLS context of the REST port from an ``SSLConfig``; raises StartError if its PEM is invalid."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Python reads keys only from files; this one is private to the user and deleted after reading.
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as pem:
        pem.write(f"{config.server_key}\n{config.server_cert}\n")
        pem.flush()
        try:
            context.load_cert_chain(pem.name)
            if config.custom_ca:
                context.load_verify_locations(cadata=config.custom_ca)
        except ssl.SSLError as error:
            raise StartError(
                f"--ssl_config_file: key and certificates in PEM that match are expected: {error}"
            ) from error
    if config.client_verify:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def port_error(flag: str, host: str, port: int, error: OSError) -> StartError:
    """Returns the error for a port that the server cannot listen on."""
    if error.errno == errno.EADDRINUSE:
        free = "0" if flag == "port" else "auto"
        return StartError(
            f"--{flag}={port}: port {port} of {host} is taken by another program; stop that or choose another port "
            f"(--{flag}={free} takes a free one)"
        )
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
    return StartError(f"--{flag}={port}: cannot listen at {host}:{port}: {reason}")
