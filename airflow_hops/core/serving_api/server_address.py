"""The address of a model server from a connection (the ``serving_*`` entries of a step's services), and TLS files."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_hops.core.contract.artifacts import BadInput

if TYPE_CHECKING:
    import grpc

    from airflow_hops.core.serving_api.client import ModelServerClient
    from airflow_hops.core.serving_api.rest_client import RestClient

BUNDLED = "bundled"
TENSORFLOW_MODEL_SERVER = "tensorflow_model_server"
KINDS = (BUNDLED, TENSORFLOW_MODEL_SERVER)


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


@dataclass(frozen=True)
class ServerAddress:
    """A model server's ports, and how to speak to them.

    Attributes:
        kind: ``bundled``, the server of this package, by itself or in front of others; or
            ``tensorflow_model_server``, which has no traffic split.
        host: Its host.
        grpc_port: Its gRPC port.
        rest_port: Its REST port, or None where it has none.
        tls: Files of connections by TLS, or None.
        rest_tls: Whether the REST port speaks TLS; the gRPC port does where there are files for it.
        timeout_s: Deadline of a call, seconds.
        token: A token of the server's ``--control_token_file``, for all calls but predictions.
        prediction_token: A token of its ``--prediction_token_file``; None shows ``token``.
    """

    kind: str = BUNDLED
    host: str = "127.0.0.1"
    grpc_port: int = 8500
    rest_port: int | None = None
    tls: TlsFiles | None = None
    timeout_s: float = 10.0
    token: str | None = field(default=None, repr=False)
    prediction_token: str | None = field(default=None, repr=False)
    rest_tls: bool = False

    @classmethod
    def of(cls, services: Mapping[str, str]) -> ServerAddress:
        """Reads the fields of a connection.

        Raises:
            BadInput: a field is not what it should be.
        """
        kind = services.get("serving_kind") or BUNDLED
        if kind not in KINDS:
            raise BadInput(f"connection field 'serving_kind' is {kind!r}; expected {' or '.join(KINDS)}")
        return cls(
            kind=kind,
            host=services.get("serving_host") or "127.0.0.1",
            grpc_port=_port(services, "serving_port") or 8500,
            rest_port=_port(services, "serving_rest_port"),
            tls=tls_files(services),
            timeout_s=_seconds(services, "serving_timeout") or 10.0,
            token=services.get("serving_token") or None,
            prediction_token=services.get("serving_prediction_token") or None,
            rest_tls=rest_speaks_tls(services),
        )

    def __str__(self) -> str:
        return f"{self.host}:{self.grpc_port}"

    def client(self) -> ModelServerClient:
        """A client of the gRPC port."""
        from airflow_hops.core.serving_api.client import ModelServerClient  # gRPC takes a tenth of a second to import

        tokens = {"token": self.token, "prediction_token": self.prediction_token}
        return ModelServerClient(str(self), timeout_s=self.timeout_s, tls=self.tls, **tokens)

    def rest_client(self) -> RestClient:
        """A client of the REST port.

        Raises:
            BadInput: the connection names none.
        """
        from airflow_hops.core.serving_api.rest_client import RestClient

        if self.rest_port is None:
            raise BadInput(
                f"model server {self}: this requires its REST port, which the connection does not give; set the "
                "field 'serving_rest_port' (of a connection of type model_server, 'rest_port')"
            )
        tls = (self.tls or TlsFiles()) if self.rest_tls else None
        tokens = {"token": self.token, "prediction_token": self.prediction_token}
        return RestClient(self.host, self.rest_port, timeout_s=self.timeout_s, tls=tls, **tokens)


def tls_files(services: Mapping[str, str]) -> TlsFiles | None:
    """The files that a connection names for TLS; None where it names none.

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
    return TlsFiles(**files) if any(files.values()) else None


def rest_speaks_tls(services: Mapping[str, str]) -> bool:
    """Whether a connection says that the REST port speaks TLS.

    Raises:
        BadInput: its field is neither true nor false.
    """
    text = services.get("serving_rest_tls") or "false"
    if text.lower() not in ("true", "false"):
        raise BadInput(f"connection field 'serving_rest_tls' is {text!r}; expected true or false")
    return text.lower() == "true"


def _port(services: Mapping[str, str], name: str) -> int | None:
    text = services.get(name)
    if not text:
        return None
    if not str(text).isdigit() or not 0 < int(text) < 65536:
        raise BadInput(f"connection field {name!r} is {text!r}; expected a port from 1 to 65535")
    return int(text)


def _seconds(services: Mapping[str, str], name: str) -> float | None:
    text = services.get(name)
    try:
        value = float(text) if text else None
    except ValueError:
        value = 0.0
    if value is not None and not 0 < value < float("inf"):
        raise BadInput(f"connection field {name!r} is {text!r}; expected a number of seconds, more than 0")
    return value
