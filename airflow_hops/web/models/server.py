"""Asks a pipeline's model server, by HTTP from here: the browser never talks to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.core.serving_api.server_address import BUNDLED, ServerAddress
from airflow_hops.hooks.model_server import ModelServerHook

if TYPE_CHECKING:
    from airflow_hops.core.serving_api.rest_client import RestClient

_TIMEOUT_S = 3.0
"""A page waits for it, and asks again."""


class ServerAway(HopsError):
    """The server cannot be asked, or does not answer; the message says which one, and why."""


@dataclass(frozen=True)
class AskedServer:
    """A model server's REST port.

    Attributes:
        client: A client of it.
        kind: ``bundled``, or ``tensorflow_model_server``, which counts nothing by version.
    """

    client: RestClient
    kind: str

    @classmethod
    def of(cls, conn_id: str) -> AskedServer:
        """Returns the server of a connection, of type ``model_server`` or ``hops``.

        Raises:
            ServerAway: the connection cannot be read, or names no REST port.
        """
        from airflow_hops.core.serving_api.answers import ModelServerError

        try:
            address = ModelServerHook(conn_id).address
            return cls(_client(address), address.kind)
        except (HopsError, ModelServerError) as error:
            raise ServerAway(f"connection {conn_id!r}: {error}") from error

    @property
    def url(self) -> str:
        """Its address."""
        return self.client.address

    @property
    def is_bundled(self) -> bool:
        """Whether it is the server of this package."""
        return self.kind == BUNDLED

    def statuses(self, model_name: str) -> list[Mapping[str, Any]]:
        """The states of a model's versions; none where the server does not know it."""
        try:
            answer = self.get(f"/v1/models/{quote(model_name, safe='')}")
        except FileNotFoundError:
            return []
        return list(answer.get("model_version_status") or [])

    def get(self, path: str, params: Mapping[str, str | int | float] | None = None) -> dict[str, Any]:
        """The JSON object that answers a GET.

        Raises:
            FileNotFoundError: the server has no such thing.
            BadInput: it cannot use a parameter.
            ServerAway: it does not answer, or otherwise than expected.
        """
        from airflow_hops.core.serving_api.answers import ModelServerError

        try:
            return self.client.call("GET", f"{path}?{urlencode(params)}" if params else path)
        except ModelServerError as error:
            if error.code.name == "NOT_FOUND":
                raise FileNotFoundError(str(error)) from error
            if error.code.name == "INVALID_ARGUMENT":
                raise BadInput(f"model server: {error}") from error
            raise ServerAway(f"the model server at {self.url} does not respond ({error})") from error


@cache  # reading certificates takes longer than a request
def _client(address: ServerAddress) -> RestClient:
    return replace(address, timeout_s=_TIMEOUT_S, token=address.token or address.prediction_token).rest_client()
