"""The files of a client that speaks TLS."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of a client that speaks TLS.

    Attributes:
        ca_file: Certificate of whoever signed the server's; None for the authorities that gRPC knows.
        cert_file: The client's certificate, for a server that verifies its clients; None where it does not.
        key_file: The private key of that certificate.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """What a gRPC channel takes.

        Raises:
            OSError: A file cannot be read.
        """
        ca, cert, key = (
            Path(file).read_bytes() if file else None for file in (self.ca_file, self.cert_file, self.key_file)
        )
        return grpc.ssl_channel_credentials(ca, key, cert)
