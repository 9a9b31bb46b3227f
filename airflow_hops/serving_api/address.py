"""Where a model server is, as a connection says: the ``serving_*`` entries of a step's services."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from airflow_hops.artifacts import BadInput
from airflow_hops.serving_api.client import ModelServerClient
from airflow_hops.serving_api.rest_client import RestClient
from airflow_hops.serving_api.tls import TlsFiles

BUNDLED = "bundled"
TENSORFLOW_MODEL_SERVER = "tensorflow_model_server"
KINDS = (BUNDLED, TENSORFLOW_MODEL_SERVER)


@dataclass(frozen=True)
class ServerAddress:
    """A model server's ports, and how to speak to them.

    Attributes:
        kind: ``bundled``, the server of this package, by itself or in front of others; or
            ``tensorflow_model_server``, which has no traffic split.
        host: Its host.
        grpc_port: Its gRPC port.
        rest_port: Its REST port, or None where it has none.
        tls: Files of the gRPC connection, or None.
        timeout_s: Deadline of a call, seconds.
        token: What the server's ``--control_token_file`` asks of whoever reloads configs or sets traffic.
    """

    kind: str = BUNDLED
    host: str = "127.0.0.1"
    grpc_port: int = 8500
    rest_port: int | None = None
    tls: TlsFiles | None = None
    timeout_s: float = 10.0
    token: str | None = field(default=None, repr=False)

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
            tls=_tls(services),
            timeout_s=_seconds(services, "serving_timeout") or 10.0,
            token=services.get("serving_token") or None,
        )

    def __str__(self) -> str:
        return f"{self.host}:{self.grpc_port}"

    def client(self) -> ModelServerClient:
        """A client of the gRPC port."""
        return ModelServerClient(str(self), timeout_s=self.timeout_s, tls=self.tls, token=self.token)

    def rest_client(self) -> RestClient:
        """A client of the REST port.

        Raises:
            BadInput: the connection names none.
        """
        if self.rest_port is None:
            raise BadInput(
                f"model server {self}: this goes through its REST port, which the connection does not name; set the "
                "field 'serving_rest_port' (of a connection of type model_server, 'rest_port')"
            )
        return RestClient(self.host, self.rest_port, timeout_s=self.timeout_s, token=self.token)


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


def _tls(services: Mapping[str, str]) -> TlsFiles | None:
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
