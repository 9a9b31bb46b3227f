"""Deployments to Databricks' endpoints by the steps of operators, from a connection of type databricks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from served_models import Pipeline

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput, HopsError, StepFailed
from airflow_hops.extensions.cloud_endpoints.hooks import databricks_services
from tests.ml.extensions.cloud_endpoints.databricks_api import PRINCIPAL, TOKEN, DatabricksApi, serving

pytestmark = [pytest.mark.runtime, pytest.mark.server]

SETTINGS = {"entity_name": "main.models.{model}", "served_entity": {"scale_to_zero_enabled": False}}
FIELDS = {"serving_databricks_conn_id": "databricks_models"}


@pytest.fixture
def api() -> DatabricksApi:
    return DatabricksApi()


@pytest.fixture
def url(api: DatabricksApi) -> Iterator[str]:
    with serving(api) as url:
        yield url


def connect(patch: pytest.MonkeyPatch, url: str, **fields: Any) -> dict[str, str]:
    port = int(url.rpartition(":")[2])
    connection = {"conn_type": "databricks", "schema": "http", "host": "127.0.0.1", "port": port, **fields}
    patch.setenv("AIRFLOW_CONN_DATABRICKS_MODELS", json.dumps(connection))
    return databricks_services(FIELDS)


def test_token_is_that_of_the_connection(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = {"serving_databricks_url": url, "serving_databricks_token": TOKEN}
    principal = {"login": PRINCIPAL[0], "password": PRINCIPAL[1], "extra": {"service_principal_oauth": True}}
    ways: list[dict[str, Any]] = [
        {"password": TOKEN}, {"login": "token", "password": TOKEN}, {"extra": {"token": TOKEN}}, principal,
        {"host": "http://127.0.0.1/", "password": TOKEN},
    ]  # fmt: skip
    for fields in ways:
        assert connect(monkeypatch, url, **fields) == expected
    assert connect(monkeypatch, url, host="dbc-1.example", schema=None, port=None, password="t") == {
        "serving_databricks_url": "https://dbc-1.example", "serving_databricks_token": "t",
    }  # fmt: skip
    with pytest.raises(HopsError, match=f"'databricks_models': {url} gives no token: .*401") as failure:
        connect(monkeypatch, url, **{**principal, "password": "old"})
    assert failure.value.retryable and "old" not in str(failure.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"login": "me", "password": "secret"}, "has neither a token nor a service principal; expected the workspace"),
        ({"host": None, "password": TOKEN}, "has no host"),
        ({"conn_type": "http", "password": TOKEN}, "is of type 'http', expected 'databricks'"),
    ],
)
def test_connection_that_cannot_be_used_is_named(
    url: str, fields: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match=f"connection 'databricks_models' {message}"):
        connect(monkeypatch, url, **fields)
    with pytest.raises(BadInput, match="serving_databricks_conn_id: there is no connection 'databricks_default'"):
        databricks_services({})


def test_canary_is_deployed_promoted_and_rolled_back(
    pipeline: Pipeline, api: DatabricksApi, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    churn = replace(pipeline, name="churn")
    names = ("rest_port", "config_file", "traffic_file", "base_path")
    services = {
        "serving_kind": "databricks",
        "serving_databricks": json.dumps(SETTINGS),
        **{f"serving_{name}": "" for name in names},
        **connect(monkeypatch, url, password=TOKEN),
    }

    def register(model: Artifact, version: int) -> Artifact:
        api.aliases["main.models.churn", f"hops-{model.fingerprint[:16]}"] = version
        return model

    def deploy(model: Artifact) -> Any:
        return churn.deploy(model, services=services, available_timeout_s=60.0).properties

    def shown() -> dict[str, tuple[str, int]]:
        config = api.endpoints["churn"]["config"]
        percents = {r["served_entity_name"]: r["traffic_percentage"] for r in config["traffic_config"]["routes"]}
        return {each["name"]: (each["entity_version"], percents[each["name"]]) for each in config["served_entities"]}

    first = churn.model("first")
    with pytest.raises(StepFailed, match=rf"with the alias 'hops-{first.fingerprint[:16]}'; register the model"):
        deploy(first)
    assert not api.endpoints
    assert deploy(register(first, 11))["mode"] == "champion" and shown() == {"v1": ("11", 100)}
    assert deploy(register(churn.model("second"), 12))["traffic"] == {"1": 80, "2": 20}
    assert shown() == {"v1": ("11", 80), "v2": ("12", 20)}
    assert churn.decide("promote", version=None, services=services)["traffic"] == {"2": 100}
    assert churn.decide("roll_back", to_version=1, services=services)["traffic"] == {"1": 100}
    while "pending_config" in api.look(api.endpoints["churn"]):
        pass
    assert shown() == {"v1": ("11", 100)}
    churn.decide("undeploy", version=None, force=True, services=services)
    assert not api.endpoints
    assert TOKEN not in "".join(line.text for line in churn.runner.lines)
