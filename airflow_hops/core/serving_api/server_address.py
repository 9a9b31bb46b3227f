"""Reads a model server's address from a connection: the ``serving_*`` entries of a step's services."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_hops.core.errors import BadInput, ConnectionFieldError
from airflow_hops.core.serving_api.server_kinds import BUNDLED, kind_name, model_server_kinds
from airflow_hops.core.serving_api.tls_files import TlsFiles, rest_speaks_tls, tls_files

if TYPE_CHECKING:
    from airflow_hops.core.serving_api.client import ModelServerClient
    from airflow_hops.core.serving_api.rest_client import RestClient


@dataclass(frozen=True)
class ServerAddress:
    """Ports of a model server, and the settings of connections to them.

    Attributes:
        kind: Name of a :class:`~airflow_hops.core.serving_api.server_kinds.ModelServerKind`.
        host: Host of the server.
        grpc_port: gRPC port.
        rest_port: REST port, or None if it is off.
        tls: Files for TLS, or None.
        rest_tls: Whether the REST port uses TLS; the gRPC port does if ``tls`` is set.
        timeout_s: Deadline of a call, in seconds.
        token: Token of the server's ``--control_token_file``, for all calls except predictions.
        prediction_token: Token of its ``--prediction_token_file``; None sends ``token``.
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
        """Reads the fields of a connection; raises BadInput if one is invalid."""
        return cls(
            kind=kind_name(services),
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
        return f"{self.host}:{self.grpc_port}" if self.has_process else f"of the kind {self.kind}"

    @property
    def is_bundled(self) -> bool:
        """Whether it is the server of this package, alone or as a gateway."""
        return model_server_kinds()[self.kind].is_bundled

    @property
    def has_process(self) -> bool:
        """Whether a server runs for models of this kind."""
        return model_server_kinds()[self.kind].has_process

    def _check_process(self) -> None:
        if not self.has_process:
            raise BadInput(f"the connection's kind is {self.kind}, whose models score tables: no server runs to ask")

    def client(self) -> ModelServerClient:
        """Returns a client of the gRPC port. Raises BadInput if no server runs for the kind."""
        self._check_process()
        from airflow_hops.core.serving_api.client import ModelServerClient  # importing gRPC takes 0.1 s

        tokens = {"token": self.token, "prediction_token": self.prediction_token}
        return ModelServerClient(str(self), timeout_s=self.timeout_s, tls=self.tls, **tokens)

    def rest_client(self) -> RestClient:
        """Returns a client of the REST port; raises BadInput if there is none, or no server runs for the kind."""
        self._check_process()
        from airflow_hops.core.serving_api.rest_client import RestClient

        if self.rest_port is None:
            raise ConnectionFieldError("serving_rest_port").with_text(
                f"model server {self}: this requires its REST port, which the connection does not give; set its field "
                "'serving_rest_port'"
            )
        tls = (self.tls or TlsFiles()) if self.rest_tls else None
        own, prediction = self.token, self.prediction_token
        return RestClient(
            self.host, self.rest_port, timeout_s=self.timeout_s, tls=tls, token=own, prediction_token=prediction
        )


def _port(services: Mapping[str, str], name: str) -> int | None:
    text = services.get(name)
    if not text:
        return None
    if not str(text).isdigit() or not 0 < int(text) < 65536:
        raise ConnectionFieldError(name, f" is {text!r}; expected a port from 1 to 65535")
    return int(text)


def _seconds(services: Mapping[str, str], name: str) -> float | None:
    text = services.get(name)
    try:
        value = float(text) if text else None
    except ValueError:
        value = 0.0
    if value is not None and not 0 < value < float("inf"):
        raise ConnectionFieldError(name, f" is {text!r}; expected a number of seconds, more than 0")
    return value
