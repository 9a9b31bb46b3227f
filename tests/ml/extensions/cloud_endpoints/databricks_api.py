"""Databricks' APIs of serving endpoints and registered models, as its reference describes them, on a port.

An update takes some looks; a request meanwhile is a conflict. Percentages must sum to 100, and name served entities;
models must be registered and ready. Fields that the reference does not have are refused. An update with a broken
version fails, and the former config stays.
"""

from __future__ import annotations

import json
import re
import threading
from base64 import b64encode
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import unquote, urlsplit

from http_answers import HttpRequest, answering

POLLS = 2
TOKEN = "dapi-0123"
PRINCIPAL = ("principal", "principal-secret")
ENTITY_FIELDS = {
    "burst_scaling_enabled", "entity_name", "entity_version", "environment_vars", "external_model",
    "instance_profile_arn", "max_provisioned_concurrency", "max_provisioned_throughput",
    "min_provisioned_concurrency", "min_provisioned_throughput", "name", "provisioned_model_units",
    "scale_to_zero_enabled", "workload_size", "workload_type",
}  # fmt: skip
ENDPOINT_FIELDS = {"name", "config", "ai_gateway", "budget_policy_id", "description", "route_optimized", "tags"}
CONFIG_FIELDS = {"name", "served_entities", "traffic_config"}


class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def invalid(message: str) -> Refusal:
    return Refusal(400, "INVALID_PARAMETER_VALUE", message)


class DatabricksApi:
    """A workspace.

    Attributes:
        endpoints: Endpoints by name, as an answer has them.
        aliases: Version by full name of a model and alias.
        states: Status of a model's version, if it is not ready.
        broken: Full names and versions of models that do not start.
        requests: Method, path and body of each request.
    """

    def __init__(self) -> None:
        self.endpoints: dict[str, Any] = {}
        self.aliases: dict[tuple[str, str], int] = {}
        self.states: dict[tuple[str, int], str] = {}
        self.broken: set[tuple[str, str]] = set()
        self.requests: list[tuple[str, str, Any]] = []
        self.polls: dict[str, int] = {}
        self.lock = threading.Lock()

    def answer(self, method: str, path: str, body: Any, authorization: str) -> Any:
        basic = "Basic " + b64encode(":".join(PRINCIPAL).encode()).decode()
        if (method, path) == ("POST", "/oidc/v1/token"):
            if authorization != basic or body != "grant_type=client_credentials&scope=all-apis":
                raise Refusal(401, "invalid_client", "Client authentication failed")
            return {"access_token": TOKEN, "token_type": "Bearer", "expires_in": 3600}
        if not path.startswith("/api/"):
            raise Refusal(404, "NOT_FOUND", path)
        if authorization != f"Bearer {TOKEN}":
            raise Refusal(403, "PERMISSION_DENIED", "Invalid access token.")
        if method == "GET" and (match := re.fullmatch(r"/api/2.1/unity-catalog/models/([^/]+)/aliases/([^/]+)", path)):
            return self.model(*map(unquote, match.groups()))
        if (method, path) == ("POST", "/api/2.0/serving-endpoints"):
            return self.create(body)
        match = re.fullmatch(r"/api/2.0/serving-endpoints/([a-zA-Z0-9_-]+)(/config)?", path)
        if match is None:
            raise Refusal(404, "ENDPOINT_NOT_FOUND", f"No API found for '{method} {path}'")
        endpoint = self.endpoints.get(match[1])
        if endpoint is None:
            raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"Endpoint with name '{match[1]}' does not exist.")
        if (method, match[2]) == ("GET", None):
            return self.look(endpoint)
        if (method, match[2]) == ("DELETE", None):
            return {} if self.endpoints.pop(match[1]) else None
        if (method, match[2]) == ("PUT", "/config"):
            if endpoint["state"]["config_update"] == "IN_PROGRESS":
                raise Refusal(409, "RESOURCE_CONFLICT", f"Endpoint {match[1]} is currently updating.")
            present = endpoint.get("config", {})
            self.begin(endpoint, {**{name: present[name] for name in present if name in CONFIG_FIELDS}, **body}, body)
            return endpoint
        raise Refusal(404, "ENDPOINT_NOT_FOUND", f"No API found for '{method} {path}'")

    def model(self, name: str, alias: str) -> Any:
        if (name, alias) not in self.aliases:
            raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"Alias {alias} of {name} does not exist.")
        version = self.aliases[name, alias]
        return {"model_name": name, "version": version, "status": self.states.get((name, version), "READY")}

    def create(self, body: Any) -> Any:
        if not body.keys() <= ENDPOINT_FIELDS or not re.fullmatch("[a-zA-Z0-9_-]{1,63}", body["name"]):
            raise invalid(f"Endpoint {body['name']} or a field of {sorted(body)} is invalid.")
        if body["name"] in self.endpoints:
            raise Refusal(400, "RESOURCE_ALREADY_EXISTS", f"Endpoint with name '{body['name']}' already exists.")
        endpoint = {**body, "id": "e1", "creator": "me", "state": {"ready": "NOT_READY"}}
        self.begin(endpoint, endpoint.pop("config"), body["config"])
        self.endpoints[body["name"]] = endpoint
        return endpoint

    def begin(self, endpoint: Any, config: Any, sent: Any) -> None:
        """Checks a config, and begins the update."""
        entities, routes = sent.get("served_entities", []), config.get("traffic_config", {}).get("routes", [])
        for each in entities:
            if unknown := each.keys() - ENTITY_FIELDS:
                raise invalid(f"Unknown field {min(unknown)}.")
            if "workload_size" in each and "min_provisioned_concurrency" in each:
                raise invalid("Only one of workload_size and provisioned concurrency may be set.")
            if not isinstance(each.get("scale_to_zero_enabled"), bool):
                raise invalid("scaleToZeroEnabled is undefined. Please set it to either true or false.")
            known = {f"{name}/{version}" for (name, _), version in self.aliases.items()}
            if f"{each['entity_name']}/{each['entity_version']}" not in known:
                raise Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"RegisteredModel {each['entity_name']} does not exist.")
        names = [each["name"] for each in config.get("served_entities", [])]
        routed = [route.get("served_entity_name") or route["served_model_name"] for route in routes]
        percents = [route["traffic_percentage"] for route in routes]
        if not sent.keys() <= CONFIG_FIELDS or len({*names}) != len(names) or not 1 <= len(names) <= 10:
            raise invalid("Served entities must have different names, and be at most 10.")
        if {*routed} - {*names} or len({*routed}) != len(routed):
            raise invalid(f"Routes {routed} name other entities than {names}.")
        if sum(percents) != 100 or not all(type(each) is int and 0 <= each <= 100 for each in percents):
            raise invalid(f"Traffic percentages {percents} do not sum to 100.")
        outputs = [
            {**each, "min_provisioned_concurrency": 0, "max_provisioned_concurrency": 4, "creator": "me",
             "state": {"deployment": "DEPLOYMENT_CREATING", "deployment_state_message": "Creating resources"}}
            for each in config["served_entities"]
        ]  # fmt: skip
        routes = [{"served_entity_name": name, "served_model_name": name, "traffic_percentage": percent}
                  for name, percent in zip(routed, percents, strict=True)]  # fmt: skip
        endpoint["pending_config"] = {"served_entities": outputs, "traffic_config": {"routes": routes}, "start_time": 1}
        endpoint["state"] = {**endpoint["state"], "config_update": "IN_PROGRESS"}
        self.polls[endpoint["name"]] = POLLS

    def look(self, endpoint: Any) -> Any:
        if endpoint["state"]["config_update"] == "IN_PROGRESS":
            self.polls[endpoint["name"]] -= 1
            if self.polls[endpoint["name"]] < 0:
                self.end(endpoint)
        return endpoint

    def end(self, endpoint: Any) -> None:
        pending = endpoint["pending_config"]
        broken = [
            each
            for each in pending["served_entities"]
            if (each["entity_name"], str(each["entity_version"])) in self.broken
        ]
        for each in broken:
            each["state"] = {
                "deployment": "DEPLOYMENT_FAILED",
                "deployment_state_message": "the container did not answer",
            }
        if broken:
            endpoint["state"]["config_update"] = "UPDATE_FAILED"
            return
        for each in pending["served_entities"]:
            each["state"] = {"deployment": "DEPLOYMENT_READY", "deployment_state_message": ""}
        version = endpoint.get("config", {}).get("config_version", 0) + 1
        endpoint["config"] = {**endpoint.pop("pending_config"), "config_version": version}
        endpoint["state"] = {"ready": "READY", "config_update": "NOT_UPDATING"}


def serving(api: DatabricksApi) -> AbstractContextManager[str]:
    """Answers on a port for as long as the context lasts; yields the address."""

    def answer(request: HttpRequest) -> tuple[Any, ...]:
        is_form = "form" in request.headers.get("Content-Type", "")
        body = request.content.decode() if is_form else request.json()
        path = urlsplit(request.path).path  # of the whole address, if this is a proxy
        with api.lock:
            api.requests.append((request.method, path, body))
            try:
                result = api.answer(request.method, path, body, request.headers.get("Authorization", ""))
                return 200, json.dumps(result).encode()
            except Refusal as error:
                location = {"Location": str(error)} if error.status in range(300, 400) else {}
                return error.status, {"error_code": error.code, "message": str(error)}, location

    return answering(answer)
