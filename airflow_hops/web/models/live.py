"""The live state of a served model: its versions on the server, shares, rates, latencies, batches, log."""

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
import time
from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Query

from airflow_hops.web.access import READS_ARTIFACTS, READS_LOGS
from airflow_hops.web.models.records import Served
from airflow_hops.web.types import Model, Number, Time

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


router = APIRouter(prefix="/api/dags/{dag_id}/models/{model}", tags=["models"])


class LiveVersion(Model):
    """A version on the server. Counts are those since the server's start."""

    version: int
    state: str
    """TensorFlow Serving's: ``START``, ``LOADING``, ``AVAILABLE``, ``UNLOADING``, ``END``."""
    error: str
    traffic_percent: Number = None
    """Its share in effect, of requests that name no version; null where the server does not say."""
    requests: int = 0
    errors: int = 0
    """Requests that failed."""
    client_errors: int = 0
    """Requests that were refused as the client's mistake."""
    rows: int = 0
    codes: dict[str, int] = {}
    """Requests by gRPC status."""
    latency_ms_p50: Number = None
    latency_ms_p99: Number = None


class VersionSeries(Model):
    """Requests of a version, one element per step."""

    version: int
    requests: list[int]
    errors: list[int]
    """Requests that failed."""
    client_errors: list[int] = []
    """Requests that were refused as the client's mistake; none where the server counts them among the errors."""
    rows: list[int]
    latency_ms_p50: list[Number]
    latency_ms_p99: list[Number]


class BatchSize(Model):
    """Batches of a size: at most ``rows``, and more than half of it; null for sizes above all bounds."""

    rows: int | None
    batches: int


class Batching(Model):
    """Batches of the server's own process, of all its models; lists have one element per step."""

    batches: list[int]
    rows: list[int]
    requests: list[int]
    wait_s: list[Number]
    """How long these requests waited, together."""
    sizes: list[BatchSize]
    """Since the server's start."""


class Series(Model):
    """The last minutes in steps, oldest first."""

    at: list[float]
    """Ends of the steps, seconds since 1970."""
    seconds: list[float]
    versions: list[VersionSeries]
    batching: Batching | None
    """Null where requests are not batched, or none was yet."""


class LiveModel(Model):
    """A served model as its server reports it."""

    address: str | None
    kind: str | None
    problem: str | None
    """Why nothing of the rest is known: the server does not answer."""
    since: Time | None
    """When the server started."""
    versions: list[LiveVersion]
    series: Series | None
    """Null where the server keeps none."""


class LogLine(Model):
    """A line of the server's log."""

    at: Time
    level: str
    logger: str
    version: int | None
    message: str


class LogTail(Model):
    """The newest lines about a model, oldest first."""

    lines: list[LogLine]


@router.get("/live", dependencies=[READS_ARTIFACTS])
def get_live_model(
    served: Served,
    minutes: Annotated[float, Query(gt=0, le=60, description="Part of the last hour that the series covers")] = 60,
) -> LiveModel:
    """The model server's view of a model; if it does not answer, the response says so."""
    try:
        server = AskedServer.of(served.server_conn_id)
    except ServerAway as error:
        return LiveModel(address=None, kind=None, problem=str(error), since=None, versions=[], series=None)
    facts = {"address": server.url, "kind": server.kind}
    try:
        states = {int(each["version"]): each for each in server.statuses(served.name)}
        stats = server.get("/v1/stats") if server.is_bundled else {}
        series = _series(server, served.name, minutes) if server.is_bundled else None
    except (ServerAway, BadInput, FileNotFoundError) as error:  # something else may listen there
        return LiveModel(**facts, problem=str(error), since=None, versions=[], series=None)
    counted = {int(v): result for v, result in stats.get("models", {}).get(served.name, {}).get("versions", {}).items()}
    versions = []
    for version in sorted(states.keys() | counted.keys(), reverse=True):
        state: Mapping[str, Any] = states.get(version, {})
        said = state.get("status", {}).get("error_message", "")
        known = {"version": version, "state": state.get("state", "END"), "error": said}
        versions.append(LiveVersion(**{**counted.get(version, {}), **known}))
    return LiveModel(**facts, problem=None, since=stats.get("since"), versions=versions, series=series)


@router.get("/logs", dependencies=[READS_LOGS])
def tail_model_logs(
    served: Served,
    version: Annotated[int, Query(ge=0, description="Only lines of this version; 0 for all")] = 0,
    level: Annotated[Literal["INFO", "WARNING", "ERROR"], Query(description="Lowest level of the lines")] = "INFO",
    lines: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> LogTail:
    """The newest lines of the model server's log that are about this model."""
    server = AskedServer.of(served.server_conn_id)
    if not server.is_bundled:
        raise BadInput(
            f"{server.url} is a {server.kind}, which does not provide its log over HTTP: it writes the log to "
            "standard error"
        )
    wanted: dict[str, str | int | float] = {"model": served.name, "version": version, "level": level, "lines": lines}
    try:
        result = server.get("/v1/logs", wanted)["lines"]
    except FileNotFoundError as error:
        raise HTTPException(404, f"the model server at {server.url} does not provide its log ({error})") from error
    return LogTail(lines=[LogLine(**{**line, "version": line["version"] or None}) for line in result])


def _series(server: AskedServer, model_name: str, minutes: float) -> Series | None:
    since_s = time.time() - 60 * minutes
    try:
        result = server.get("/v1/stats/series", {"model": model_name, "since": since_s})
    except (BadInput, FileNotFoundError):  # a server of an earlier version
        return None
    versions = result["models"].get(model_name, {"versions": {}})["versions"]
    batching = result["batching"]
    if batching is not None:
        sizes = [BatchSize(rows=rows, batches=batches) for rows, batches in batching["sizes"]]
        batching = Batching(**{**batching, "sizes": sizes})
    return Series(
        at=result["at"],
        seconds=result["seconds"],
        versions=[VersionSeries(version=int(version), **columns) for version, columns in versions.items()],
        batching=batching,
    )
