"""Reads and changes the config and traffic of a running server."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import grpc
from google.protobuf import json_format, text_format

from airflow_hops.core.serving_api import protocol
from airflow_hops.serving.api.grpc_methods import service, unary
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.catalog import Catalog, ModelSource, State
from airflow_hops.serving.routes import Routes, json_response, read_percents

Percents = Mapping[int, int]


class Control:
    """Config and traffic at run time.

    Args:
        catalog: The models.
        loader: Loads them.
        persists: Whether the traffic is in a file that a restarted server reads.
    """

    def __init__(self, catalog: Catalog, loader: ModelSource, persists: bool) -> None:
        self._catalog = catalog
        self._loader = loader
        self._persists = persists

    def config(self) -> dict[str, Any]:
        """Returns the body of ``GET /v1/config``: the ``ModelServerConfig``, its source, and when it was applied."""
        current = self._loader.current_config()
        return {
            "source": current.source,
            "applied_at": datetime.fromtimestamp(current.applied_at, UTC).isoformat(timespec="milliseconds"),
            "config": json_format.MessageToDict(current.config, preserving_proto_field_name=True),
            "text": text_format.MessageToString(current.config),
        }

    def reload(self, config: object) -> None:
        """Applies a new config and waits until the versions that it adds are available; raises ServingError."""
        self._loader.reload(config)

    def traffic(self, model: str) -> dict[str, Any]:
        """Returns the configured split of a model, and the split in effect among its available versions.

        Raises:
            ServingError: The model does not exist.
        """
        self._catalog.statuses(model)
        percents = self._catalog.traffic.percents(model)
        in_effect = self._catalog.traffic_percent(model)
        return {
            "model": model,
            "percents": None if percents is None else {str(version): percents[version] for version in sorted(percents)},
            "in_effect": {str(version): round(in_effect[version], 3) for version in sorted(in_effect)},
            "persisted": self._persists,
        }

    def set_traffic(self, model: str, percents: Percents | None) -> dict[str, Any]:
        """Sets the split of a model, and writes it to ``--traffic_config_file``, if any.

        ``percents`` are integers that sum to 100, by available version; None routes all requests to the latest version.

        Raises:
            ServingError: The model or a version does not exist, a version with a share is not available, the percents
                do not sum to 100, or the file cannot be written. Nothing changes then.
        """
        self._catalog.statuses(model)
        for version, percent in (percents or {}).items():
            state = self._catalog.statuses(model, version)[0].state
            if percent and state is not State.AVAILABLE:
                raise ServingError(
                    grpc.StatusCode.FAILED_PRECONDITION,
                    f"Request to send {percent}% to version {version} of model {model}, which is not currently "
                    f"available for inference (it is {state.name})",
                )
        self._catalog.set_split(model, percents)
        return self.traffic(model)


def add_routes(routes: Routes, control: Control) -> None:
    """Adds the REST routes of config and traffic."""
    path = "/v1/models/MODEL:traffic"
    routes.add("GET /v1/config", lambda request, match: json_response(control.config()))
    routes.add(f"GET {path}", lambda request, match: json_response(control.traffic(match["model"])))
    routes.add(
        f"POST {path}",
        lambda request, match: json_response(control.set_traffic(match["model"], _percents(request.json()))),
    )


def _percents(document: object) -> Percents | None:
    percents = read_percents(document, "traffic", '{"percents": {"1": 90, "2": 10}}')
    for version in percents or ():
        if not isinstance(version, int):
            raise invalid_argument(f"percents names version {version!r}; expected a positive integer")
    return percents


def traffic_service(control: Control) -> Any:
    """Returns the gRPC handler of ``hops.serving.TrafficService``: ``SetTraffic`` and ``GetTraffic``."""

    def set_traffic(request: Any, context: grpc.ServicerContext) -> object:
        percents = {share.version: share.percent for share in request.shares}
        if len(percents) != len(request.shares):
            raise invalid_argument("shares names a version twice")
        return _traffic_message(control.set_traffic(request.model, percents or None))

    def get_traffic(request: Any, context: grpc.ServicerContext) -> object:
        return _traffic_message(control.traffic(request.model))

    methods = {
        "SetTraffic": unary(set_traffic, protocol.SetTrafficRequest),
        "GetTraffic": unary(get_traffic, protocol.GetTrafficRequest),
    }
    return service(protocol.TRAFFIC_SERVICE, methods)


def _traffic_message(report: Mapping[str, Any]) -> object:
    response = protocol.TrafficResponse(model=report["model"], persisted=report["persisted"])
    for version, percent in (report["percents"] or {}).items():
        response.shares.add(version=int(version), percent=percent)
    for version, percent in report["in_effect"].items():
        response.in_effect.add(version=int(version), percent=round(percent))
    return response
