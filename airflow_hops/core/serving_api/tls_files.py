"""Channels of a model server's clients, with TLS files from a connection: ``serving_*`` of a step's services."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_hops.core.errors import ConnectionFieldError

if TYPE_CHECKING:
    import grpc

SILENT_S = 20
"""Seconds without an acknowledgement of sent data after which a gRPC connection is opened again."""


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of a TLS client.

    Attributes:
        ca_file: Certificate of the CA that signed the server's; None for gRPC's default CAs.
        cert_file: The client's certificate, for a server that verifies its clients; None if it does not.
        key_file: Private key of that certificate.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Returns the credentials for a gRPC channel; raises OSError if a file cannot be read."""
        import grpc  # slow import, which pages do not need, as they use HTTP

        ca, cert, key = (
            Path(file).read_bytes() if file else None for file in (self.ca_file, self.cert_file, self.key_file)
        )
        return grpc.ssl_channel_credentials(ca, key, cert)

    def context(self) -> ssl.SSLContext:
        """Returns the TLS context for an HTTP client; raises OSError if a file is unreadable or not a certificate."""
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context


def open_channel(address: str, tls: TlsFiles | None = None) -> grpc.Channel:
    """Returns a gRPC channel for messages of any size; raises OSError if a file for TLS cannot be read."""
    import grpc

    options = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        # grpcio 1.85: waits up to two minutes by default before it tries to reconnect.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        # grpcio 1.85: only with keepalive is a connection given up whose data nobody acknowledges, as of a host that is
        # gone (TCP_USER_TIMEOUT is the timeout). Servers refuse pings within five minutes.
        ("grpc.keepalive_time_ms", 600_000),
        ("grpc.keepalive_timeout_ms", SILENT_S * 1000),
    ]
    if tls is None:
        return grpc.insecure_channel(address, options)
    return grpc.secure_channel(address, tls.credentials(), options)


def tls_files(services: Mapping[str, str]) -> TlsFiles | None:
    """Returns the TLS files that a connection names; None if it does not name any.

    Raises:
        BadInput: A file does not exist, or only one of certificate and key is set.
    """
    files = {name: services.get(f"serving_{name}") or None for name in ("ca_file", "cert_file", "key_file")}
    if bool(files["cert_file"]) != bool(files["key_file"]):
        raise ConnectionFieldError(
            "serving_cert_file",
            f" is {files['cert_file']!r}, 'serving_key_file' {files['key_file']!r}; expected both or neither",
        )
    for name, file in files.items():
        if file and not Path(file).is_file():
            raise ConnectionFieldError(f"serving_{name}", f" is {file!r}; there is no such file")
    return TlsFiles(**files) if any(files.values()) else None


def rest_speaks_tls(services: Mapping[str, str]) -> bool:
    """Returns whether a connection's REST port uses TLS; raises BadInput if the field is neither true nor false."""
    text = services.get("serving_rest_tls") or "false"
    if text.lower() not in ("true", "false"):
        raise ConnectionFieldError("serving_rest_tls", f" is {text!r}; expected true or false")
    return text.lower() == "true"
