"""Endpoints of Databricks, by its documented API on a port: deployments, canaries by percentages, kills, and changes by
others, who use Databricks' own client.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.cloud_endpoints.ml.databricks import DatabricksEndpoints
from airflow_hops.ml.model_server import ModelServer
from airflow_hops.testing.model_servers import ModelServerContract
from tests.ml.extensions.cloud_endpoints.databricks_api import TOKEN, DatabricksApi, Refusal, serving
from tests.ml.extensions.cloud_endpoints.endpoint_contract import Connect, EndpointContract, canary

pytestmark = [pytest.mark.runtime, pytest.mark.server]

SETTINGS = {
    "entity_name": "main.models.{model}",
    "served_entity": {"workload_size": "Small", "scale_to_zero_enabled": False},
    "endpoint": {"ai_gateway": {"inference_table_config": {"catalog_name": "main", "schema_name": "logs"}}},
}


class Workspace(DatabricksApi):
    """A workspace in which version n of each model is registered as version n + 6, by the alias of its fingerprint."""

    def model(self, name: str, alias: str) -> Any:
        if alias.startswith("hops-fingerprint "):
            self.aliases[name, alias] = int(alias[-1]) + 6
        return super().model(name, alias)


@pytest.fixture(scope="module")
def workspace() -> DatabricksApi:
    return Workspace()


@pytest.fixture(scope="module")
def url(workspace: DatabricksApi) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, serving(workspace) as url:
        patch.setattr(DatabricksEndpoints, "poll_s", 0.001)
        yield url


def services_of(url: str, **changes: Any) -> dict[str, str]:
    return {
        "serving_kind": "databricks",
        "serving_databricks_url": url,
        "serving_databricks_token": TOKEN,
        "serving_databricks": json.dumps({**SETTINGS, **changes}),
    }


def write_model(folder: Path) -> None:
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(b"model")


class TestContract(ModelServerContract):
    kind = "databricks"

    @pytest.fixture
    def services(self, url: str) -> Mapping[str, str]:
        return services_of(url)

    def write(self, folder: Path) -> None:
        write_model(folder)


@pytest.fixture
def connect(url: str, name: str, tmp_path: Path) -> Connect:
    """Connects with the versions 1 to 3 of a model published, whatever its name."""
    write_model(tmp_path / "model")

    def make(**changes: Any) -> Any:
        server = ModelServer.of(services_of(url, **changes), ArtifactStore(str(tmp_path / "store")))
        serve = server.serve

        def published(model: str, versions: list[int], *labels: Any) -> Any:
            for version in versions:
                server.publish(tmp_path / "model", model, version, f"fingerprint {version}")
            return serve(model, versions, *labels)

        object.__setattr__(server, "serve", published)
        return server

    return make


def percents(workspace: DatabricksApi, name: str) -> dict[str, float]:
    routes = workspace.endpoints[name]["config"]["traffic_config"]["routes"]
    return {route["served_entity_name"]: route["traffic_percentage"] for route in routes}


class TestEndpoints(EndpointContract):
    kills = (35, 30)

    @pytest.fixture
    def connect(self, connect: Connect) -> Connect:
        return connect

    @pytest.fixture
    def service(self, workspace: DatabricksApi) -> DatabricksApi:
        return workspace

    def weights(self, service: Any, name: str) -> dict[str, float]:
        return percents(service, name)

    def left_behind(self, service: Any, name: str) -> list[str]:
        return [each for each in service.endpoints if each.startswith(name)]


@pytest.fixture
def name() -> str:
    return "churn"


@pytest.fixture(autouse=True)
def emptied(workspace: DatabricksApi) -> Iterator[None]:
    yield
    workspace.endpoints.clear()
    workspace.broken.clear()
    workspace.states.clear()


@pytest.fixture
def client(url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Databricks' own client, as somebody else uses it."""
    from databricks.sdk import WorkspaceClient

    return WorkspaceClient(host=url, token=TOKEN, auth_type="pat").serving_endpoints


def test_entities_are_those_of_the_aliases(connect: Connect, client: Any, workspace: DatabricksApi, name: str) -> None:
    for step in [*canary(connect(), name)][:3]:
        step()
    endpoint = client.get(name)
    entities = {each.name: (each.entity_name, each.entity_version) for each in endpoint.config.served_entities}
    assert entities == {"v1": ("main.models.churn", "7"), "v2": ("main.models.churn", "8")}
    routes = {route.served_model_name: route.traffic_percentage for route in endpoint.config.traffic_config.routes}
    assert routes == {"v1": 80, "v2": 20}
    assert endpoint.ai_gateway.inference_table_config.schema_name == "logs"


def test_settings_that_somebody_else_gave_an_entity_stay(connect: Connect, client: Any, name: str) -> None:
    from databricks.sdk.service.serving import ServedEntityInput

    server = connect()
    next(canary(server, name))()
    entity = ServedEntityInput(
        name="v1", entity_name="main.models.churn", entity_version="7", workload_size="Large",
        scale_to_zero_enabled=True, environment_vars={"KEY": "{{secrets/scope/key}}"},
    )  # fmt: skip
    client.update_config(name, served_entities=[entity])
    for step in [*canary(server, name)][1:3]:
        step()
    first, second = client.get(name).config.served_entities
    assert (first.workload_size, first.scale_to_zero_enabled) == ("Large", True)
    assert first.environment_vars == {"KEY": "{{secrets/scope/key}}"} and second.workload_size == "Small"


def test_change_by_somebody_else_is_named_and_not_overwritten(
    connect: Connect, client: Any, workspace: DatabricksApi, name: str
) -> None:
    from databricks.sdk.service.serving import Route, ServedEntityInput, TrafficConfig

    def split(**percents: int) -> Any:
        routes = [Route(served_model_name=part, traffic_percentage=percent) for part, percent in percents.items()]
        return TrafficConfig(routes=routes)

    server = connect()
    for step in [*canary(server, name)][:3]:
        step()
    changes = (
        lambda: server.set_traffic(name, {2: 100}),
        lambda: server.serve(name, [1]),
        lambda: server.shares.read(name),
        lambda: server.withdraw(name),
    )
    fault = "the served entity 'v1' has the weight 40, and was given 80: somebody else has changed it"
    for change in changes:
        client.update_config(name, traffic_config=split(v1=40, v2=60))
        with pytest.raises(BadInput, match=fault):
            change()
    assert percents(workspace, name) == {"v1": 40, "v2": 60}
    workspace.aliases["main.models.other", "any"] = 1
    other = ServedEntityInput(
        entity_name="main.models.other", entity_version="1", name="blue", scale_to_zero_enabled=False
    )
    client.update_config(name, served_entities=[other], traffic_config=split(blue=100))
    with pytest.raises(
        BadInput, match=r"is READY IN_PROGRESS: somebody else is changing it to 'blue=main.models.other"
    ):
        server.set_traffic(name, {2: 100})
    while str(client.get(name).state.config_update.value) == "IN_PROGRESS":
        pass
    with pytest.raises(BadInput, match="the served entity 'v1' was removed: somebody else has changed it"):
        server.set_traffic(name, {2: 100})
    workspace.endpoints.clear()
    with pytest.raises(BadInput, match=r"it was deleted, and had the config 'v1=main.models.churn/7 v2="):
        server.serve(name, [2])


def test_foreign_endpoint_is_refused(connect: Connect, workspace: DatabricksApi, name: str, tmp_path: Path) -> None:
    next(canary(connect(), name))()
    (tmp_path / "store" / "_serving" / f"databricks_{name}.json").unlink()
    for change in (lambda: connect().serve(name, [1]), lambda: connect().withdraw(name)):
        with pytest.raises(BadInput, match="and was not made with this store; delete it, or give the model another"):
            change()
    assert percents(workspace, name) == {"v1": 100}


def test_entity_that_does_not_start_is_an_error_and_the_champion_stays(
    connect: Connect, workspace: DatabricksApi, name: str
) -> None:
    server = connect()
    workspace.broken.add(("main.models.churn", "7"))
    nothing = server.serve(name, [1])
    with pytest.raises(BadInput, match="served entity 'v1': v1: the container did not answer"):
        server.wait_until_available(name, 1, 60)
    server.restore(name, nothing)
    assert not workspace.endpoints
    workspace.broken = {("main.models.churn", "8")}
    next(canary(server, name))()
    previous = server.serve(name, [1, 2])
    with pytest.raises(BadInput, match=r"served entity 'v2': .*v2: the container did not answer"):
        server.wait_until_available(name, 2, 60)
    server.restore(name, previous)
    assert server.configured(name) == [1] and percents(workspace, name) == {"v1": 100}
    workspace.broken.clear()
    [*canary(server, name)][1]()
    assert percents(workspace, name) == {"v1": 100, "v2": 0}


def test_share_that_the_service_does_not_set_is_an_error(connect: Connect, workspace: DatabricksApi, name: str) -> None:
    server = connect()
    deploy, canary_too, split = [*canary(server, name)][:3]
    deploy()
    canary_too()
    workspace.broken.add(("main.models.churn", "8"))
    for _ in range(2):
        with pytest.raises(
            HopsError, match=r"'churn' keeps its weights: .*v2: the container did not answer"
        ) as failure:
            split()
        assert failure.value.retryable and percents(workspace, name) == {"v1": 100, "v2": 0}
    workspace.broken.clear()
    split()
    assert percents(workspace, name) == {"v1": 80, "v2": 20}


def test_busy_service_is_asked_again(connect: Connect, name: str, tmp_path: Path) -> None:
    """A deployment that waits for minutes is not undone since one of its questions had no answer."""

    class Busy(Workspace):
        left = 4

        def answer(self, method: str, path: str, body: Any, authorization: str) -> Any:
            self.left -= 1
            if self.left >= 0:
                raise Refusal(503 if method == "GET" else 429, "REQUEST_LIMIT_EXCEEDED", "try again later")
            self.left = 4
            return super().answer(method, path, body, authorization)

    busy = Busy()
    with serving(busy) as url:
        server = ModelServer.of(services_of(url), connect().store)
        server.publish(tmp_path / "model", name, 1, "fingerprint 1")
        next(canary(server, name))()
        assert percents(busy, name) == {"v1": 100}
        busy.left = 5
        with pytest.raises(HopsError, match=r"Databricks: GET .*try again later"):
            server.status(name)


@pytest.mark.parametrize("status", [302, 307])
def test_redirection_does_not_get_the_token(connect: Connect, name: str, status: int) -> None:
    other = DatabricksApi()

    class Redirecting(DatabricksApi):
        def answer(self, method: str, path: str, body: Any, authorization: str) -> Any:
            raise Refusal(status, "", f"{address}{path}")

    with serving(other) as address, serving(Redirecting()) as url:
        server = ModelServer.of(services_of(url), connect().store)
        with pytest.raises(BadInput, match=rf"redirects to {address}/api/.*, expected the server's own address"):
            server.status(name)
    assert not other.requests


def test_proxy_of_the_environment_is_asked(
    connect: Connect, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    next(canary(connect(), name))()
    monkeypatch.setenv("http_proxy", url)
    monkeypatch.delenv("no_proxy", raising=False)
    behind = ModelServer.of(services_of("http://workspace.example"), connect().store)
    assert [each.state for each in behind.status(name, 1)] == ["AVAILABLE"]


def test_model_that_is_not_registered_is_named(
    connect: Connect, workspace: DatabricksApi, name: str, tmp_path: Path
) -> None:
    server = connect()
    server.publish(tmp_path / "model", name, 1, "0123456789abcdef01234")
    with pytest.raises(
        BadInput, match=r"no version of 'main.models.churn' with the alias 'hops-0123456789abcdef'; reg"
    ):
        type(server).serve(server, name, [1])
    workspace.states["main.models.churn", 8] = "PENDING_REGISTRATION"
    with pytest.raises(HopsError, match=r"'main.models.churn' version 8 is PENDING_REGISTRATION; try again") as failure:
        server.serve(name, [2])
    assert failure.value.retryable and not workspace.endpoints


def test_conflict_is_retried_and_refusals_are_not(connect: Connect, client: Any, name: str, url: str) -> None:
    server = connect()
    next(canary(server, name))()
    server.serve(name, [1, 2])
    endpoints: Any = server.shares
    path, routes = f"/api/2.0/serving-endpoints/{name}/config", [{"served_model_name": "v1", "traffic_percentage": 90}]
    with pytest.raises(HopsError, match=r"Databricks: PUT .*currently updating") as failure:
        endpoints._call("PUT", path, {"traffic_config": {"routes": routes}})
    assert failure.value.retryable
    server.wait_until_available(name, 2, 60)
    with pytest.raises(BadInput, match=r"Traffic percentages \[90\] do not sum to 100"):
        endpoints._call("PUT", path, {"traffic_config": {"routes": routes}})
    wrong = ModelServer.of({**services_of(url), "serving_databricks_token": "old"}, server.store)
    with pytest.raises(BadInput, match=r"Databricks: GET .*Invalid access token"):
        wrong.status(name)
    gone = ModelServer.of(services_of("http://127.0.0.1:9"), server.store)
    with pytest.raises(HopsError, match=r"Databricks: GET .*does not answer") as failure:
        gone.status(name)
    assert failure.value.retryable


def test_unknown_setting_of_an_entity_is_refused_by_the_service(connect: Connect, name: str) -> None:
    with pytest.raises(BadInput, match=r"Databricks: POST .*Unknown field workload_sise"):
        connect(served_entity={"workload_sise": "Small", "scale_to_zero_enabled": False}).serve(name, [1])


@pytest.mark.parametrize(
    "changes",
    [
        {"entity_name": "churn"},
        {"entity_name": None},
        {"served_entity": {}},
        {"served_entity": {"entity_version": "7"}},
        {"endpoint": {"config": {}}},
        {"served_entities": []},
    ],
)
def test_wrong_connection_is_refused(url: str, changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"serving_databricks' is .*; expected entity_name such as 'main"):
        ModelServer.of(services_of(url, **changes), ArtifactStore(str(tmp_path / "store")))


def test_unsupported_operations_are_refused(connect: Connect, tmp_path: Path) -> None:
    server = connect()
    with pytest.raises(BadInput, match="model_name is 'late flights', which cannot be the name of an endpoint"):
        server.status("late flights")
    (tmp_path / "model" / "lookup.json").write_text("{}")
    with pytest.raises(BadInput, match="needs a look-up of features, which Databricks does not run"):
        server.publish(tmp_path / "model", "churn", 1, "fingerprint 1")
