"""Asks a pipeline's model server, by HTTP from here: the browser never talks to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import quote

import httpx

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.core.serving_api.server_address import rest_speaks_tls, tls_files
from airflow_hops.core.serving_api.tls import TlsFiles
from airflow_hops.hooks.model_server import ModelServerHook

_TIMEOUT_S = 3.0
"""A page waits for it, and asks again."""


class ServerAway(HopsError):
    """The server cannot be asked, or does not answer; the message says which one, and why."""


@dataclass(frozen=True)
class AskedServer:
    """A model server's REST port.

    Attributes:
        url: Where it is.
        kind: ``bundled``, or ``tensorflow_model_server``, which counts nothing by version.
        token: What it is shown; empty for nothing.
        tls: Files of a connection by TLS; None for one without.
    """

    url: str
    kind: str
    token: str = field(default="", repr=False)
    tls: TlsFiles | None = None

    @classmethod
    def of(cls, conn_id: str) -> AskedServer:
        """The server that a connection leads to, of type ``model_server`` or ``hops``.

        Raises:
            ServerAway: the connection cannot be read, or names no REST port.
        """
        try:
            services = ModelServerHook(conn_id).services
            tls = (tls_files(services) or TlsFiles()) if rest_speaks_tls(services) else None
        except HopsError as error:
            raise ServerAway(str(error)) from error
        port = services.get("serving_rest_port", "")
        host = services.get("serving_host") or "127.0.0.1"
        if not port.isdigit():
            raise ServerAway(
                f"connection {conn_id!r}: field 'serving_rest_port' (of type model_server: 'rest_port') "
                f"is {port!r}; expected the REST port of the model server on {host}"
            )
        token = services.get("serving_token") or services.get("serving_prediction_token") or ""
        url = f"{'https' if tls else 'http'}://{host}:{int(port)}"
        return cls(url, services.get("serving_kind") or "bundled", token, tls)

    @property
    def is_bundled(self) -> bool:
        """Whether it is the server of this package."""
        return self.kind == "bundled"

    def statuses(self, model_name: str) -> list[Mapping[str, Any]]:
        """The states of a model's versions; none where the server does not know it."""
        try:
            found = self.get(f"/v1/models/{quote(model_name, safe='')}")
        except FileNotFoundError:
            return []
        return list(found.get("model_version_status") or [])

    def get(self, path: str, params: Mapping[str, str | int | float] | None = None) -> dict[str, Any]:
        """The JSON object that answers a GET.

        Raises:
            FileNotFoundError: the server has no such thing.
            BadInput: it cannot use a parameter.
            ServerAway: it does not answer, or otherwise than expected.
        """
        try:
            headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
            answer = _client(self.tls).get(f"{self.url}{path}", params=dict(params or {}), headers=headers)
            value = answer.json()
        except (httpx.HTTPError, OSError, ValueError) as error:
            raise ServerAway(
                f"the model server at {self.url} does not respond ({type(error).__name__}: {error})"
            ) from error
        said = value.get("error") if isinstance(value, dict) else None
        if answer.status_code == 404:
            raise FileNotFoundError(said or path)
        if answer.status_code == 400:
            raise BadInput(f"model server: {said}")
        if answer.status_code != 200 or not isinstance(value, dict):
            raise ServerAway(
                f"the model server at {self.url} answered {answer.status_code}: {said or answer.text[:200]}"
            )
        return value


@cache
def _client(tls: TlsFiles | None) -> httpx.Client:
    # Reading certificates takes longer than a request: once, and for TLS alone. No proxy: it is for the world outside.
    return httpx.Client(timeout=_TIMEOUT_S, trust_env=False, verify=tls.context() if tls else False)
