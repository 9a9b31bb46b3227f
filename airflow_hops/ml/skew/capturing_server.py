"""Checks that the connection's model server captures requests, and where."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.serving_api.answers import ModelServerError
from airflow_hops.core.serving_api.server_address import ServerAddress
from airflow_hops.core.skew import SkewOptions
from airflow_hops.core.times import seconds_since

_AWAY = ("UNAVAILABLE", "DEADLINE_EXCEEDED")


def check_not_silent(
    services: Mapping[str, str],
    model_name: str,
    last_at: str,
    never: bool,
    options: SkewOptions,
    details: str = "",
    *,
    is_ingested: bool = False,
    until: str | None = None,
) -> tuple[str, ...]:
    """Checks, if too few requests were captured for a verdict, that the server runs and captures them.

    Args:
        services: Services of a step.
        model_name: The served model.
        last_at: Time of the last captured request, or since when the champion serves; ISO 8601 UTC.
        never: Whether ``last_at`` is the latter.
        options: Limits: ``silent_after_s``, and ``down_after_s`` if the server is at fault.
        details: Further details for the message.
        is_ingested: Whether the requests come from a log or topic, not from the connection's folder.
        until: Time up to which requests were looked for, ISO 8601; None for now.

    Returns:
        Descriptions of the server's faults, while these are tolerated.

    Raises:
        BadInput: the server captures nothing, or the limit of silence has passed.
        HopsError: the server has not answered, served the model or been able to capture for longer than allowed.
    """
    faults = _server_faults(services, model_name)
    silent_s = seconds_since(last_at) - (0 if until is None else max(0, seconds_since(until)))
    since = f"in all the time that its champion serves, since {last_at}" if never else f"since {last_at}"
    if faults and options.down_after_s is not None and silent_s > options.down_after_s:
        raise HopsError(
            f"{'; '.join(faults)}; no request of model {model_name!r} was captured {since}, longer than down_after "
            f"({timedelta(seconds=options.down_after_s)}), so nothing is watched{details}. Start the server, or "
            "correct the connection's fields 'serving_host', 'serving_port' and 'serving_rest_port'"
        )
    if options.silent_after_s is None or silent_s <= options.silent_after_s:
        return faults
    details = "".join(f"; {fault}" for fault in faults) + details
    scores = not ServerAddress.of(services).has_process
    captures = (
        "the DAG that scores tables runs"
        if scores
        else "they reach the log or topic that is ingested"
        if is_ingested
        else "the server captures them (--capture_mode, --capture_sampling_percent) into the connection's "
        "'serving_capture_path'"
    )
    raise BadInput(
        f"no request of model {model_name!r} was captured {since}, longer than silent_after "
        f"({timedelta(seconds=options.silent_after_s)}){details}; check that clients send requests, and that "
        f"{captures}; or set a longer silent_after"
    )


def _server_faults(services: Mapping[str, str], model_name: str) -> tuple[str, ...]:
    """Returns in words why the connection's server cannot capture requests of a model."""
    if not any(services.get(f"serving_{field}") for field in ("host", "port", "rest_port")):
        return ()
    server = ServerAddress.of(services)
    if not server.has_process:
        return ()
    try:
        if server.rest_port is None:
            with server.client() as client:
                states = client.status(model_name)
        else:
            if fault := _capture_fault(server, model_name):
                return (fault,)
            states = server.rest_client().status(model_name)
    except ModelServerError as error:
        if error.code.name in _AWAY:
            return (f"the model server {server} does not answer: {error}",)
        return ()  # it answers, but not this client
    if not any(state.state == "AVAILABLE" for state in states):
        return (f"the model server {server} serves no version of model {model_name!r}",)
    return ()


def _capture_fault(server: ServerAddress, model_name: str) -> str | None:
    status = _status(server)
    if status.get("enabled") is False:
        raise BadInput(
            f"the model server {server} captures nothing: there are no requests of model {model_name!r} to compare; "
            "start it with --capture_base_path"
        )
    return f"the model server's capture failed: {status['error']}" if status.get("error") else None


def _status(server: ServerAddress) -> Mapping[str, Any]:
    """Returns the server's options of capture; empty if it is of another kind, or does not answer this client."""
    try:
        status: Mapping[str, Any] = server.rest_client().call("GET", "/v1/capture")
        return status
    except ModelServerError as error:
        if error.code.name in _AWAY:
            raise
        return {}
