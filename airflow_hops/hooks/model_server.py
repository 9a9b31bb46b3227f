"""Connection type ``model_server``: the bundled server, or any ``tensorflow_model_server``, over gRPC and REST."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

from airflow.sdk import BaseHook
from asgiref.sync import sync_to_async

from airflow_hops.connections import field_names, find_connection, name_and_team, read_extra, similar_connections
from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.core.serving_api.answers import ModelVersion, PredictResult, TrafficSplit
from airflow_hops.core.serving_api.server_address import ServerAddress
from airflow_hops.core.serving_api.server_kinds import BUNDLED, kind_name, model_server_kinds

Api = Literal["grpc", "rest"]

log = logging.getLogger(__name__)


class ModelServerHook(BaseHook):
    """Client of a model server.

    Methods raise :class:`~airflow_hops.core.contract.artifacts.BadInput` for errors that a retry cannot fix, and
    :class:`~airflow_hops.core.contract.artifacts.HopsError` for others.

    Example::

        hook = ModelServerHook("model_server_default")
        hook.predict("flights", {"carrier": ["AA"], "distance": [733.0]}).outputs["probability"]
        hook.set_traffic("flights", {1: 90, 2: 10})

    Args:
        model_server_conn_id: A connection of type ``model_server``, or of type ``hops``, which names a server too.
    """

    conn_name_attr = "model_server_conn_id"
    default_conn_name = "model_server_default"
    conn_type = "model_server"
    hook_name = "Model server"

    def __init__(self, model_server_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.model_server_conn_id = model_server_conn_id

    @cached_property
    def services(self) -> dict[str, str]:
        """Returns the services for a step: a ``serving_*`` entry for each field, empty if the field is.

        Raises:
            BadInput: the connection does not exist or has another type, or its extra is not a JSON object.
        """
        if self.is_hops:
            from airflow_hops.hooks.runtime import RuntimeHook

            result = RuntimeHook(self.model_server_conn_id).settings.services
            return {name: value for name, value in result.items() if name.startswith("serving_")}
        connection = self._connection
        extra = read_extra(self.model_server_conn_id, connection)
        fields = {name: extra.get(name) or "" for name in field_names(self.conn_type)}
        return {
            **{f"serving_{name}": json.dumps(v) if isinstance(v, Mapping) else str(v) for name, v in fields.items()},
            "serving_host": connection.host or "127.0.0.1",
            "serving_port": str(connection.port or 8500),
            "serving_token": connection.password or "",
        }

    @property
    def is_hops(self) -> bool:
        """Returns whether the connection has type ``hops``; ``hops_default`` need not exist."""
        from airflow_hops.hooks.runtime import RuntimeHook

        is_default = name_and_team(self.model_server_conn_id)[0] == RuntimeHook.default_conn_name
        return is_default or bool(self._connection.conn_type == "hops")

    @property
    def address(self) -> ServerAddress:
        """Returns the address of the server. Raises BadInput if a field of the connection is invalid."""
        return ServerAddress.of(self.services)

    def predict(
        self,
        model_name: str,
        inputs: Mapping[str, Any],
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str | None = None,
        request_id: str | None = None,
        api: Api = "grpc",
    ) -> PredictResult:
        """Requests a prediction.

        Args:
            model_name: Model name.
            inputs: Array-likes of shape ``[batch, ...]`` by input.
            version: Version to use; None leaves the choice to the label, the traffic split or the latest.
            label: Label to use if ``version`` is None.
            signature: Signature name; None for the default.
            request_id: Sent as ``x-request-id``.
            api: ``grpc`` or ``rest``.

        Returns:
            The outputs as arrays, and the version that computed them.
        """
        asked = {"version": version, "label": label, "signature": signature, "request_id": request_id}
        with self._client(api) as client:
            result: PredictResult = client.predict(model_name, inputs, **asked)
            return result

    def status(self, model_name: str, version: int | None = None, *, api: Api = "grpc") -> list[ModelVersion]:
        """Returns the states of a model's versions, or of one version; empty if the server has none."""
        with self._client(api) as client:
            versions: list[ModelVersion] = client.status(model_name, version)
            return versions

    def metadata(
        self, model_name: str, *, version: int | None = None, label: str | None = None, api: Api = "grpc"
    ) -> Any:
        """Returns a version's signatures (``core.serving_api.answers.ModelMetadata``), or over REST the JSON."""
        with self._client(api) as client:
            return client.metadata(model_name, version=version, label=label)

    def reload_config(self, config: Any, *, timeout_s: float | None = None) -> None:
        """Replaces the server's config; models and versions that it does not name are unloaded.

        Args:
            config: ``ModelServerConfig`` in protobuf text format, or the message itself.
            timeout_s: Seconds for the server to load new versions; None for the connection's.
        """
        from airflow_hops.core.serving_api.config import parse_config

        with self._client() as client:
            message = parse_config(config, "config") if isinstance(config, str) else config
            client.reload_config(message, timeout_s=timeout_s)

    def get_traffic(self, model_name: str, *, api: Api = "grpc") -> TrafficSplit:
        """Returns the bundled server's traffic split of a model, both as set and as in effect."""
        with self._client(api) as client:
            split: TrafficSplit = client.traffic(model_name)
            return split

    def set_traffic(self, model_name: str, percents: Mapping[int, int] | None, *, api: Api = "grpc") -> TrafficSplit:
        """Sets the bundled server's traffic split of a model; None removes it.

        The shares of a model that :class:`~airflow_hops.operators.deploy.DeployModelOperator` deployed are in its
        record: set those with :class:`~airflow_hops.operators.serving.SetTrafficOperator`.
        """
        from airflow_hops.core.serving_api.traffic_config import check_split

        if not self.address.is_bundled:
            raise BadInput(
                f"connection {self.model_server_conn_id!r}: {self.address} is a {self.address.kind}, which does "
                "not split traffic; put the bundled server in front of it (airflow hops serve -- "
                f"--upstream={self.address}), and name that one"
            )
        with self._client(api) as client:
            if percents is not None:
                check_split(percents, "percents")
            split: TrafficSplit = client.set_traffic(model_name, percents)
            return split

    def stats(self) -> dict[str, Any]:
        """Returns the server's counts by model and version since it started (``GET /v1/stats``)."""
        with self._client("rest") as client:
            stats: dict[str, Any] = client.stats()
            return stats

    def wait_until_available(self, model_name: str, version: int, timeout_s: float) -> None:
        """Waits up to ``timeout_s`` seconds until a version answers requests."""
        with self._client() as client:
            client.wait_until_available(model_name, version, timeout_s)

    def test_connection(self) -> tuple[bool, str]:
        """Returns whether the server answers, and the known models and versions, or the error."""
        try:
            with self._client() as client:
                models = {name: client.status(name) for name in self._model_names()}
                if not models:
                    client.status("any")
        except HopsError as error:
            return False, str(error)
        states = (
            f"{name} ({', '.join(f'version {v.version} {v.state}' for v in versions) or 'no version'})"
            for name, versions in models.items()
        )
        what = "Model server" if self.address.kind == BUNDLED else self.address.kind
        return True, f"{what} {self.address} answers; models: {', '.join(states) or 'none known'}"

    def _model_names(self) -> list[str]:
        """Returns the models in the bundled server's counts and in the config file; servers do not list models."""
        from airflow_hops.core.serving_api.config import read_config

        names: list[str] = []
        if self.address.is_bundled and self.address.rest_port is not None:
            names += self.stats().get("models", {})
        path = Path(self.services.get("serving_config_file") or "/")
        if path.is_file():
            names += [model.name for model in read_config(path).model_config_list.config]
        return sorted(set(names))

    @contextlib.contextmanager
    def _client(self, api: Api = "grpc") -> Iterator[Any]:
        """Opens a client; values that it cannot send raise BadInput."""
        if api not in ("grpc", "rest"):
            raise BadInput(f"api is {api!r}; expected 'grpc' or 'rest'")
        opened = self.address.client() if api == "grpc" else contextlib.nullcontext(self.address.rest_client())
        try:
            with opened as client:
                yield client
        except (TypeError, ValueError) as error:  # an input that does not fit the signature's dtype, or is not JSON
            raise BadInput(str(error)) from error

    @cached_property
    def _connection(self) -> Any:
        connection = find_connection(self.model_server_conn_id, self.conn_type, "hops")
        if connection is None:
            raise BadInput(
                f"there is no connection {self.model_server_conn_id!r}; add one of type model_server, or set "
                f"AIRFLOW_CONN_{name_and_team(self.model_server_conn_id)[0].upper()} to a URI or a JSON object"
                + similar_connections(self.model_server_conn_id)
            )
        return connection[0]


def model_server_services(model_server_conn_id: str | None) -> dict[str, str]:
    """Returns the services of a connection for a step, with those that its kind adds; empty for None.

    None means those of the ``hops`` connection.
    """
    if not model_server_conn_id:
        return {}
    services = ModelServerHook(model_server_conn_id).services
    further = model_server_kinds()[kind_name(services)].services
    return services | (resolve_name(further)(services) if further else {})


async def trigger_services(conn_id: str) -> dict[str, str]:
    """Returns the services for a trigger, which is stored without tokens; empty if the connection cannot be read."""
    try:
        services: dict[str, str] = await sync_to_async(lambda: ModelServerHook(conn_id).services)()
        return services
    except HopsError as error:
        log.warning("%s; the model server is called without a token", error)
        return {}
