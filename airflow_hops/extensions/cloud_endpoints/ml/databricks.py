"""Databricks' model serving as a model server: an endpoint for each model, whose served entities are its versions.

Databricks serves models of MLflow's format that are registered in Unity Catalog, and does not load the files that a
deployment publishes. A step of the user registers the model there, and names its version by an alias with the model
artifact's fingerprint, by which a deployment finds it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.serving_api.answers import ModelServerError
from airflow_hops.core.serving_api.rest_client import RestClient
from airflow_hops.core.serving_api.tls_files import TlsFiles
from airflow_hops.core.steps.protocol import json_object
from airflow_hops.core.steps.shared_places import SharedPlaces
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.cloud_endpoints.ml.endpoints import CloudEndpoints, Endpoint, EndpointState, by_version
from airflow_hops.extensions.cloud_endpoints.ml.server import EndpointServer
from airflow_hops.ml.model_server.version_folders import MARKER, VersionFolders

_ENDPOINTS, _MODELS = "/api/2.0/serving-endpoints", "/api/2.1/unity-catalog/models"
_FIELDS = {"entity_name", "served_entity", "endpoint"}
_OWN = {"name", "entity_name", "entity_version", "external_model"}
"""Fields of a served entity that the settings may not have."""
_KEPT = {
    "burst_scaling_enabled", "environment_vars", "instance_profile_arn", "max_provisioned_concurrency",
    "max_provisioned_throughput", "min_provisioned_concurrency", "min_provisioned_throughput",
    "provisioned_model_units", "scale_to_zero_enabled", "workload_size", "workload_type",
}  # fmt: skip
"""Fields of a served entity that stay in a change, whoever has set them."""
_FAILED = ("UPDATE_FAILED", "UPDATE_CANCELED")


class DatabricksEndpoints(CloudEndpoints):
    """The endpoints of a workspace; the served entity ``v3`` serves version 3.

    A state's ``config`` lists the entities, such as ``v3=main.models.churn/7``.
    """

    kind = "databricks"
    service = "Databricks"
    part = "served entity"
    names = ("[a-zA-Z0-9_-]{1,63}", "at most 63 letters, digits, hyphens and underscores")

    def __init__(
        self, services: Mapping[str, str], places: SharedPlaces, folders: VersionFolders, store: ArtifactStore
    ) -> None:
        super().__init__(services, places, folders, store)
        where = "connection field 'serving_databricks'"
        settings = json_object(services.get("serving_databricks"), where)
        entity_name = settings.get("entity_name")
        self._common, self._endpoint = settings.get("served_entity", {}), settings.get("endpoint", {})
        if (
            not settings.keys() <= _FIELDS
            or not (isinstance(entity_name, str) and entity_name.count(".") == 2)
            or not (isinstance(self._common, Mapping) and self._common and not self._common.keys() & _OWN)
            or not (isinstance(self._endpoint, Mapping) and not self._endpoint.keys() & {"name", "config"})
        ):
            raise BadInput(
                f"{where} is {dict(settings)!r}; expected entity_name such as 'main.models.{{model}}', served_entity "
                'such as {"workload_size": "Small", "scale_to_zero_enabled": false}, and optionally endpoint'
            )
        self._entity_name = entity_name
        url = urlsplit(services.get("serving_databricks_url", ""))
        tls = TlsFiles() if url.scheme == "https" else None
        token = services.get("serving_databricks_token")
        port = url.port or (443 if tls else 80)
        self._client = RestClient(url.hostname or "", port, timeout_s=60.0, tls=tls, token=token, by_proxy=True)

    def _describe(self, name: str) -> Endpoint:
        answer = self._call("GET", f"{_ENDPOINTS}/{name}")
        if answer is None:
            return Endpoint()
        config, pending = answer.get("config") or {}, answer.get("pending_config") or {}
        update, ready = (answer.get("state", {}).get(field, "") for field in ("config_update", "ready"))
        is_ready, has_failed = ready == "READY", update in _FAILED
        states = [(each.get("name"), each.get("state") or {}) for each in pending.get("served_entities") or ()]
        reasons = [f"{part}: {s.get('deployment_state_message')}" for part, s in states if s]
        percents = {
            route.get("served_entity_name") or route["served_model_name"]: float(route["traffic_percentage"])
            for route in (config.get("traffic_config") or {}).get("routes") or ()
        }
        entities = _entities(config)
        return Endpoint(
            f"{ready} {update}",
            in_transit=update == "IN_PROGRESS" or not (is_ready or has_failed),
            serves=is_ready and bool(entities),
            failure=("; ".join(reasons) or update) if has_failed else "",
            state=EndpointState(_text(entities), by_version({**dict.fromkeys(entities, 0.0), **percents}))
            if entities
            else None,
            pending=_text(_entities(pending)),
        )

    def _intend(self, name: str, present: EndpointState | None, weights: Mapping[str, float]) -> EndpointState:
        known = {} if present is None else dict(each.split("=", 1) for each in present.config.split())
        parts = {f"v{version}": version for version in weights}
        entities = {part: known.get(part) or self._entity(name, version) for part, version in parts.items()}
        return EndpointState(_text(entities), weights)

    def _entity(self, name: str, version: str) -> str:
        """Returns name and version of the registered model of a version, by the alias with its fingerprint.

        Raises:
            BadInput: There is none.
            HopsError: It is not ready, or Databricks does not answer.
        """
        fingerprint = json.loads(self._folders.read(name, int(version), MARKER) or b"{}").get("fingerprint", "")
        entity, alias = self._entity_name.replace("{model}", name), f"hops-{fingerprint[:16]}"
        registered = self._call("GET", f"{_MODELS}/{quote(entity)}/aliases/{quote(alias)}")
        if registered is None:
            raise BadInput(
                f"model {name!r}: Unity Catalog has no version of {entity!r} with the alias {alias!r}; register the "
                f"model of version {version} there and give it this alias before it is deployed"
            )
        if registered.get("status", "READY") != "READY":
            raise HopsError(
                f"model {name!r}: {entity!r} version {registered['version']} is {registered['status']}; try again"
            )
        return f"{entity}/{registered['version']}"

    def _apply(self, name: str, present: EndpointState | None, intended: EndpointState) -> None:
        answer = self._call("GET", f"{_ENDPOINTS}/{name}") if present is not None else None
        served = {each["name"]: each for each in (answer or {}).get("config", {}).get("served_entities", ())}
        entities = []
        for part, entity in (each.split("=", 1) for each in intended.config.split()):
            common = dict(self._common)
            if part in served:
                common = {key: value for key, value in served[part].items() if key in _KEPT}
                if "workload_size" in common:  # instead of the concurrency, of which an answer has both
                    common.pop("min_provisioned_concurrency", None)
                    common.pop("max_provisioned_concurrency", None)
            entity_name, _, entity_version = entity.rpartition("/")
            entities.append({**common, "name": part, "entity_name": entity_name, "entity_version": entity_version})
        routes = [
            {"served_model_name": f"v{version}", "traffic_percentage": round(weight)}
            for version, weight in intended.weights.items()
        ]
        config = {"served_entities": entities, "traffic_config": {"routes": routes}}
        if present is None:
            self._call("POST", _ENDPOINTS, {**self._endpoint, "name": name, "config": config})
        else:
            self._call("PUT", f"{_ENDPOINTS}/{name}/config", config)

    def _delete_endpoint(self, name: str) -> None:
        self._call("DELETE", f"{_ENDPOINTS}/{name}")

    def _remove_unused(self, name: str, former: EndpointState | None, state: EndpointState | None) -> None:
        """No-op: registered models are the user's."""

    def _call(self, method: str, path: str, body: object = None) -> dict[str, Any] | None:
        """Calls Databricks, again while it is busy; returns None if what a path names does not exist."""
        waits_s = [self.poll_s * 2**number for number in range(4)]
        while True:
            try:
                return self._client.call(method, path, body, {"Content-Type": "application/json"})
            except ModelServerError as error:
                code = error.code.name
                if code == "NOT_FOUND" and method in ("GET", "DELETE"):
                    return None
                is_busy = code == "RESOURCE_EXHAUSTED" or (code == "UNAVAILABLE" and method == "GET")
                if not (is_busy and waits_s):
                    raise error.with_text(f"Databricks: {method} {path}: {error}") from error
            time.sleep(waits_s.pop(0))


def _entities(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns name and version of a config's entities, by name of the served entity."""
    return {
        each["name"]: f"{each.get('entity_name')}/{each.get('entity_version')}"
        for each in config.get("served_entities") or ()
    }


def _text(entities: Mapping[str, str]) -> str:
    return " ".join(f"{part}={entity}" for part, entity in sorted(entities.items()))


@dataclass(frozen=True)
class DatabricksServer(EndpointServer):
    """Endpoints of a workspace of Databricks."""

    endpoints: ClassVar[type[CloudEndpoints]] = DatabricksEndpoints
