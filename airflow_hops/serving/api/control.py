"""What may be read and changed while the server runs: config, traffic; who may change it."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format, text_format

from airflow_hops.serving.api.grpc_methods import unary
from airflow_hops.serving.api.routes import HttpRequest, HttpResponse, Routes, json_response
from airflow_hops.serving.errors import ServingError, invalid_argument
from airflow_hops.serving.models.catalog import Catalog, ModelSource, State
from airflow_hops.serving_api import protocol
from airflow_hops.serving_api.config import ConfigError

Percents = Mapping[int, int]


def read_token(path: str) -> str | None:
    """Reads the token that whoever changes something must show; None where no file is given.

    Raises:
        ConfigError: The file cannot be read, or holds no token.
    """
    if not path:
        return None
    try:
        token = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--control_token_file={path}: cannot be read: {error}") from error
    if not token or any(character.isspace() for character in token):
        raise ConfigError(f"--control_token_file={path}: expected one token, on one line")
    return token


class Control:
    """Config and traffic at run time.

    Args:
        catalog: Whose traffic is set.
        loader: Whose config is shown and replaced.
        token: What whoever changes something must show as ``Authorization: Bearer``; None lets everyone.
    """

    def __init__(self, catalog: Catalog, loader: ModelSource, token: str | None) -> None:
        self._catalog = catalog
        self._loader = loader
        self._expected = f"Bearer {token}".encode() if token else None

    def check(self, authorization: str | bytes | None) -> None:
        """Raises ServingError (UNAUTHENTICATED) unless a request may change something.

        Args:
            authorization: The request's header of that name, or None.
        """
        if self._expected is None:
            return
        given = authorization.encode("utf-8", "replace") if isinstance(authorization, str) else authorization
        if not hmac.compare_digest(given or b"", self._expected):
            raise ServingError(
                grpc.StatusCode.UNAUTHENTICATED,
                "This changes what the server does; expected the header 'Authorization: Bearer TOKEN' with the token "
                "of --control_token_file",
            )

    def config(self) -> dict[str, Any]:
        """Returns what ``GET /v1/config`` answers: the ``ModelServerConfig`` in effect, its source, and since when."""
        current = self._loader.current_config()
        return {
            "source": current.source,
            "applied_at": datetime.fromtimestamp(current.applied_at, UTC).isoformat(timespec="milliseconds"),
            "config": json_format.MessageToDict(current.config, preserving_proto_field_name=True),
            "text": text_format.MessageToString(current.config),
        }

    def reload(self, config: Any) -> None:
        """Takes a new config; returns once what it adds is available. Raises ServingError."""
        self._loader.reload(config)

    def traffic(self, model: str) -> dict[str, Any]:
        """Returns the split of a model: as it was set, and as it is in effect among the available versions.

        Raises:
            ServingError: There is no such model.
        """
        self._catalog.statuses(model)
        percents = self._catalog.traffic.percents(model)
        in_effect = self._catalog.traffic_percent(model)
        return {
            "model": model,
            "percents": None if percents is None else {str(version): percents[version] for version in sorted(percents)},
            "in_effect": {str(version): round(in_effect[version], 3) for version in sorted(in_effect)},
            "persisted": self._catalog.traffic.file is not None,
        }

    def set_traffic(self, model: str, percents: Percents | None) -> dict[str, Any]:
        """Sets the split of a model: in ``--traffic_config_file`` where there is one, and in effect on return.

        Args:
            model: Model name.
            percents: Available versions to percent, integers that sum to 100; None lets the latest version answer.

        Raises:
            ServingError: The model or a version is not there, a version with a share is not available, the percents
                do not add up, or the file cannot be written. Nothing changes then.
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
        try:
            self._catalog.set_split(model, percents)
        except ConfigError as error:
            raise invalid_argument(str(error)) from error
        except OSError as error:
            raise ServingError(
                grpc.StatusCode.UNAVAILABLE, f"{self._catalog.traffic.file}: cannot be written: {error.strerror}"
            ) from error
        return self.traffic(model)


def add_routes(routes: Routes, control: Control) -> None:
    """Adds the REST routes of config and traffic."""

    def config(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        return json_response(control.config())

    def traffic(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        return json_response(control.traffic(match["model"]))

    def set_traffic(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        control.check(request.headers.get("Authorization"))
        return json_response(control.set_traffic(match["model"], _percents(request.json())))

    routes.add("GET", r"/v1/config", config)
    routes.add("GET", r"/v1/models/(?P<model>[^/:]+):traffic", traffic)
    routes.add("POST", r"/v1/models/(?P<model>[^/:]+):traffic", set_traffic)


def _percents(document: Any) -> Percents | None:
    expected = 'expected {"percents": {"1": 90, "2": 10}} or {"percents": null}'
    if not isinstance(document, dict) or document.keys() != {"percents"}:
        raise invalid_argument(f"The body of a traffic request is not of its form; {expected}")
    percents = document["percents"]
    if percents is None:
        return None
    if not isinstance(percents, dict):
        raise invalid_argument(f"percents is of type {type(percents).__name__}; {expected}")
    for version in percents:
        if not (version.isascii() and version.isdigit() and len(version) < 19):
            raise invalid_argument(f"percents names version {version!r}; expected a positive integer")
    return {int(version): percent for version, percent in percents.items()}


def traffic_service(control: Control) -> Any:
    """Returns ``hops.serving.TrafficService`` as a gRPC server takes it: ``SetTraffic`` and ``GetTraffic``."""

    def set_traffic(request: Any, context: grpc.ServicerContext) -> Any:
        percents = {share.version: share.percent for share in request.shares}
        if len(percents) != len(request.shares):
            raise invalid_argument("shares names a version twice")
        control.check(bearer(context))
        return _traffic_message(control.set_traffic(request.model, percents or None))

    def get_traffic(request: Any, context: grpc.ServicerContext) -> Any:
        return _traffic_message(control.traffic(request.model))

    methods = {
        "SetTraffic": unary(set_traffic, protocol.SetTrafficRequest),
        "GetTraffic": unary(get_traffic, protocol.GetTrafficRequest),
    }
    return grpc.method_handlers_generic_handler(protocol.TRAFFIC_SERVICE, methods)


def bearer(context: grpc.ServicerContext) -> str | bytes | None:
    """Returns the ``authorization`` of a gRPC call."""
    return next((value for key, value in context.invocation_metadata() if key == "authorization"), None)


def _traffic_message(report: Mapping[str, Any]) -> Any:
    response = protocol.TrafficResponse(model=report["model"], persisted=report["persisted"])
    for version, percent in (report["percents"] or {}).items():
        response.shares.add(version=int(version), percent=percent)
    for version, percent in report["in_effect"].items():
        response.in_effect.add(version=int(version), percent=round(percent))
    return response
