"""The files of a client that speaks TLS, for gRPC and for HTTP."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of a client that speaks TLS.

    Attributes:
        ca_file: Certificate of whoever signed the server's; None for the authorities that gRPC knows.
        cert_file: The client's certificate, for a server that verifies its clients; None if it does not.
        key_file: The private key of that certificate.
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Returns the credentials for a gRPC channel.

        Raises:
            OSError: A file cannot be read.
        """
        import grpc  # the pages ask over HTTP alone, and need not wait for it

        ca, cert, key = (
            Path(file).read_bytes() if file else None for file in (self.ca_file, self.cert_file, self.key_file)
        )
        return grpc.ssl_channel_credentials(ca, key, cert)

    def context(self) -> ssl.SSLContext:
        """Returns the TLS context for an HTTP client.

        Raises:
            OSError: A file cannot be read, or holds no certificate.
        """
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context
