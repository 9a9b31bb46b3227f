"""The files of a client that speaks TLS, for gRPC and for HTTP."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from airflow_hops.contract.artifacts import BadInput

if TYPE_CHECKING:
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

    @classmethod
    def of(cls, services: Mapping[str, str]) -> Self | None:
        """Reads the fields of a connection; None where it names no file.

        Raises:
            BadInput: a file is not there, or one of certificate and key is missing.
        """
        files = {name: services.get(f"serving_{name}") or None for name in ("ca_file", "cert_file", "key_file")}
        if bool(files["cert_file"]) != bool(files["key_file"]):
            raise BadInput(
                f"connection field 'serving_cert_file' is {files['cert_file']!r}, 'serving_key_file' "
                f"{files['key_file']!r}; expected both or neither"
            )
        for name, file in files.items():
            if file and not Path(file).is_file():
                raise BadInput(f"connection field 'serving_{name}' is {file!r}; there is no such file")
        return cls(**files) if any(files.values()) else None

    def credentials(self) -> grpc.ChannelCredentials:
        """What a gRPC channel takes.

        Raises:
            OSError: A file cannot be read.
        """
        import grpc  # the pages ask over HTTP alone, and need not wait for it

        ca, cert, key = (
            Path(file).read_bytes() if file else None for file in (self.ca_file, self.cert_file, self.key_file)
        )
        return grpc.ssl_channel_credentials(ca, key, cert)

    def context(self) -> ssl.SSLContext:
        """What an HTTP client takes.

        Raises:
            OSError: A file cannot be read, or holds no certificate.
        """
        context = ssl.create_default_context(cafile=self.ca_file)
        if self.cert_file:
            context.load_cert_chain(self.cert_file, self.key_file)
        return context


def rest_speaks_tls(services: Mapping[str, str]) -> bool:
    """Whether a connection says that the REST port speaks TLS.

    Raises:
        BadInput: its field is neither true nor false.
    """
    text = services.get("serving_rest_tls") or "false"
    if text.lower() not in ("true", "false"):
        raise BadInput(f"connection field 'serving_rest_tls' is {text!r}; expected true or false")
    return text.lower() == "true"
