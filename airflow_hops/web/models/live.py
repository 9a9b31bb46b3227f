"""Live state of a served model: versions on the server, shares, rates, latencies, batches, log."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, HTTPException, Query

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.serving_api.answers import ModelServerError, ModelVersion
from airflow_hops.core.serving_api.server_address import ServerAddress
from airflow_hops.hooks.model_server import ModelServerHook
from airflow_hops.web.access import READS_ARTIFACTS, READS_LOGS
from airflow_hops.web.models.records import AskedCounts, Served, ServedModelOf, external_endpoint, read_model_record
from airflow_hops.web.types import Model, Number, Time

if TYPE_CHECKING:
    from airflow_hops.core.serving_api.rest_client import RestClient

_TIMEOUT_S = 3.0
"""Short, since a page waits for the answer and asks again."""
_NO_ROUTE = ("NOT_FOUND", "INVALID_ARGUMENT")
"""Answers of servers to paths that they lack; TensorFlow Serving calls such a request malformed."""


class NoProcess(HopsError):
    """The models of a connection score tables, and no server runs."""


def server_of(conn_id: str) -> tuple[RestClient, ServerAddress]:
    """Returns client and address of the server of a connection of type ``hops``.

    Raises:
        NoProcess: no server runs for models of this kind.
        HopsError: the connection cannot be read, or has no REST port.
    """
    try:
        address = ModelServerHook(conn_id).address
        if address.has_process:
            return _client(address), address
    except HopsError as error:
        raise HopsError(f"connection {conn_id!r}: {error}") from error
    raise NoProcess(f"connection {conn_id!r}: its kind is {address.kind}, whose models score tables: no server runs")


@cache  # reading certificates takes longer than a request
def _client(address: ServerAddress) -> RestClient:
    return replace(address, timeout_s=_TIMEOUT_S, token=address.token or address.prediction_token).rest_client()


router = APIRouter(prefix="/api/dags/{dag_id}/models/{model}", tags=["models"])


class LiveVersion(AskedCounts):
    """A version on the server. Counts begin with the server's start."""

    version: int
    state: str = ""
    """TensorFlow Serving's state: ``START``, ``LOADING``, ``AVAILABLE``, ``UNLOADING``, ``END``; empty if unknown."""
    error: str = ""
    traffic_percent: Number = None
    """Current share of requests that name no version; null if the server does not report it."""
    rows: int = 0


class VersionSeries(Model):
    """Requests of a version, one element per step."""

    version: int
    requests: list[int]
    errors: list[int]
    client_errors: list[int] = []
    """Requests refused as the client's mistake; empty if the server counts them as errors."""
    rows: list[int]
    latency_ms_p50: list[Number]
    latency_ms_p99: list[Number]


class Batching(Model):
    """Batches of the server process over all its models; lists have one element per step."""

    batches: list[int]
    rows: list[int]
    requests: list[int]
    wait_s: list[Number]
    """Total seconds that these requests waited."""
    sizes: list[list[int | None]]
    """Since the server's start: a number of rows (null above all bounds), and batches with more than half as many."""


class Series(Model):
    """Counts of the last minutes by step, oldest first."""

    at: list[float]
    """Ends of the steps, in seconds since 1970."""
    seconds: list[float]
    versions: list[VersionSeries]
    batching: Batching | None
    """Null if requests are not batched, or there was none yet."""


class LiveModel(Model):
    """A served model as reported by its server."""

    address: str | None = None
    """Address of the server, or of the external endpoint."""
    kind: str | None = None
    external: bool = False
    """Whether the model is an adopted one that only its endpoint serves; nothing asks that for the other fields."""
    scores_tables: bool = False
    """Whether no server runs: tasks score tables by the versions."""
    problem: str | None = None
    """Reason why the other fields are unknown: the server does not answer."""
    since: Time | None = None
    """Start of the server."""
    versions: list[LiveVersion] = []
    series: Series | None = None
    """Null if the server keeps none."""


class LogLine(Model):
    """A line of the server's log."""

    at: Time
    level: str
    logger: str
    version: int | None
    message: str


@router.get("/live", dependencies=[READS_ARTIFACTS])
def get_live_model(
    served: Served,
    minutes: Annotated[float, Query(gt=0, le=60, description="Part of the last hour that the series covers")] = 60,
) -> LiveModel:
    """Returns the model server's view of a model; if the server does not answer, ``problem`` says so."""
    try:
        client, server = server_of(served.hops_conn_id)
    except NoProcess:
        if (external := _served_elsewhere(served)) is not None:
            return external
        shares = read_model_record(served.hook.store, served.name).traffic
        versions = [LiveVersion(version=v, state="AVAILABLE", traffic_percent=share) for v, share in shares.items()]
        return LiveModel(scores_tables=True, versions=sorted(versions, key=lambda each: -each.version))
    except HopsError as error:
        return _served_elsewhere(served) or LiveModel(problem=str(error))
    try:
        states = {each.version: each for each in client.status(served.name)}
        stats = client.stats() if server.is_bundled else {}
        series = _series(client, served.name, minutes) if server.is_bundled else None
    except (HopsError, LookupError, TypeError) as error:  # something else may listen there
        return _served_elsewhere(served) or LiveModel(address=client.address, kind=server.kind, problem=str(error))
    if not states and (external := _served_elsewhere(served)) is not None:
        return external
    counted = {int(v): result for v, result in stats.get("models", {}).get(served.name, {}).get("versions", {}).items()}
    versions = []
    for version in sorted(states.keys() | counted.keys(), reverse=True):
        state = states.get(version) or ModelVersion(version, "END")
        known = {"version": version, "state": state.state, "error": state.error}
        versions.append(LiveVersion(**{**counted.get(version, {}), **known}))
    since = stats.get("since")
    return LiveModel(address=client.address, kind=server.kind, since=since, versions=versions, series=series)


def _served_elsewhere(served: ServedModelOf) -> LiveModel | None:
    """Returns what is known of an adopted model that only its endpoint serves; None for others."""
    endpoint = _external_endpoint(served)
    return None if endpoint is None else LiveModel(address=endpoint, external=True)


def _external_endpoint(served: ServedModelOf) -> str | None:
    with contextlib.suppress(HTTPException):  # without a store, it is not known
        return external_endpoint(read_model_record(served.hook.store, served.name))
    return None


@router.get("/logs", dependencies=[READS_LOGS])
def tail_model_logs(
    served: Served,
    version: Annotated[int, Query(ge=0, description="Only lines of this version; 0 for all")] = 0,
    level: Annotated[Literal["INFO", "WARNING", "ERROR"], Query(description="Lowest level of the lines")] = "INFO",
    lines: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> list[LogLine]:
    """Returns the newest lines of the model server's log about this model, oldest first."""
    if (endpoint := _external_endpoint(served)) is not None:
        raise BadInput(f"{endpoint} serves model {served.name!r}, outside of this installation: its log is there alone")
    client, server = server_of(served.hops_conn_id)
    if not server.is_bundled:
        raise BadInput(
            f"{client.address} is a {server.kind}, which does not provide its log over HTTP: it writes the log to "
            "standard error"
        )
    wanted: dict[str, str | int | float] = {"model": served.name, "version": version, "level": level, "lines": lines}
    try:
        result = client.call("GET", f"/v1/logs?{urlencode(wanted)}")["lines"]
    except ModelServerError as error:
        if error.code.name not in _NO_ROUTE:
            raise
        raise HTTPException(
            404, f"the model server at {client.address} does not provide its log: start it with --log_file"
        ) from error
    return [LogLine(**{**line, "version": line["version"] or None}) for line in result]


def read_series(client: RestClient, query: str = "") -> dict[str, Any] | None:
    """Returns the series of a bundled server, as ``GET /v1/stats/series`` shows them; None if it keeps none."""
    try:
        result: dict[str, Any] = client.call("GET", f"/v1/stats/series?{query}")
    except ModelServerError as error:
        if error.code.name not in _NO_ROUTE:
            raise
        return None
    return result


def _series(client: RestClient, model_name: str, minutes: float) -> Series | None:
    result = read_series(client, urlencode({"model": model_name, "since": time.time() - 60 * minutes}))
    if result is None:
        return None
    versions = result["models"].get(model_name, {"versions": {}})["versions"]
    listed = [{"version": int(version), **columns} for version, columns in versions.items()]
    return Series.model_validate({**result, "versions": listed})
