"""Flags of the gateway."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from airflow_hops.core.extensions import UPSTREAMS, extensions
from airflow_hops.serving.flags import flag


def _addresses(text: str) -> tuple[str, ...]:
    """Parses server addresses, separated by commas."""
    addresses = tuple(text.split(","))
    for address in addresses:
        scheme, separator, rest = address.rpartition("://")
        if separator and scheme not in extensions(UPSTREAMS):
            schemes = ", ".join(f"{name}://" for name in extensions(UPSTREAMS)) or "none"
            raise argparse.ArgumentTypeError(f"value is {address!r}; known schemes are {schemes}")
        host, _, port = rest.rpartition(":")
        is_path = rest.startswith("unix:") and len(rest) > len("unix:")
        if not is_path and not (host and port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
            raise argparse.ArgumentTypeError(f"value is {address!r}; expected host:port or unix:path")
    return addresses


@dataclass(frozen=True)
class GatewayFlags:
    """Upstream servers."""

    upstream: tuple[str, ...] = flag(
        (),
        "host:port or unix:path of a tensorflow_model_server's gRPC port, or several separated by commas: requests "
        "are forwarded to them, and this server loads no models; v2://host:port for a server of the Open Inference "
        "Protocol",
        _addresses,
    )
    upstream_ca_file: str = flag("", "PEM file of the CA that signed the upstreams' certificates; enables TLS")
    upstream_cert_file: str = flag("", "PEM file of the client certificate for the upstreams")
    upstream_key_file: str = flag("", "PEM file of the private key of the client certificate")
    upstream_token_file: str = flag("", "file whose first token is sent to the upstreams")
