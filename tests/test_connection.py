"""The connection of type hops and the section [hops]: what their fields become, and what is said of bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk._shared.secrets_masker import redact

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput, ConnectionNotFound
from airflow_hops.core.steps.protocol import json_object
from airflow_hops.core.store import ArtifactStore
from airflow_hops.runner.ranks import where_ranks_run
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.runner.settings import Settings


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Settings of a connection with the given text, or fields."""

    def read(value: str | dict[str, Any], conn_id: str = "hops_other") -> Settings:
        text = value if isinstance(value, str) else json.dumps({"conn_type": "hops", **value})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", text)
        return RuntimeHook(conn_id).settings

    return read


def test_all_fields_of_the_connection_reach_the_settings(settings: Any) -> None:
    extra = {
        "store": "s3://bucket/hops/",
        "storage_options": '{"endpoint_url": "http://127.0.0.1:9000"}',
        "runtime": "/opt/hops-runtime",
        "tracking_uri": "http://mlflow:5000",
        "serving_rest_port": 8501,
        "serving_base_path": "/srv/models",
        "serving_config_file": "/srv/models.config",
        "serving_traffic_file": "/srv/traffic.json",
        "serving_capture_path": "s3://bucket/capture",
        "serving_storage_options": {"endpoint_url": "http://127.0.0.1:9001"},
        "serving_prediction_token": "oracle",
        "serving_rest_tls": True,
    }
    result = settings({"host": "model-server", "port": 8600, "password": "open-sesame", "extra": extra})
    assert (result.store, result.runtime, result.tracking_uri) == (
        "s3://bucket/hops",
        Path("/opt/hops-runtime"),
        "http://mlflow:5000",
    )
    assert result.storage_options == {"endpoint_url": "http://127.0.0.1:9000"}
    assert result.services == {
        "tracking_uri": "http://mlflow:5000",
        "serving_host": "model-server",
        "serving_port": "8600",
        "serving_rest_port": "8501",
        "serving_base_path": "/srv/models",
        "serving_config_file": "/srv/models.config",
        "serving_traffic_file": "/srv/traffic.json",
        "serving_capture_path": "s3://bucket/capture",
        "serving_storage_options": '{"endpoint_url": "http://127.0.0.1:9001"}',
        "serving_token": "open-sesame",
        "serving_prediction_token": "oracle",
        "serving_rest_tls": "True",
    }
    uri = settings("hops://model-server:8600/?store=s3%3A%2F%2Fbucket%2Fhops&serving_rest_port=8501")
    assert (uri.store, uri.services["serving_port"], uri.services["serving_rest_port"]) == (
        "s3://bucket/hops",
        "8600",
        "8501",
    )


def test_empty_fields_come_from_the_configuration_and_then_from_airflow_home(
    settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.delenv("AIRFLOW__HOPS__RUNTIME")
    result = settings({"extra": {"store": ""}})
    assert result.store == (tmp_path / "hops").as_uri()
    assert result.runtime == tmp_path / "hops-runtime"
    assert result.tracking_uri == f"sqlite:///{tmp_path}/mlflow.db"
    assert (result.services["serving_host"], result.services["serving_port"]) == ("127.0.0.1", "8500")
    monkeypatch.setenv("AIRFLOW__HOPS__STORE", "s3://configured/hops")
    assert settings({}).store == "s3://configured/hops"
    assert settings({"extra": {"store": "s3://connection/hops"}}).store == "s3://connection/hops"
    monkeypatch.delenv("AIRFLOW_CONN_HOPS_DEFAULT")
    assert RuntimeHook().settings.store == "s3://configured/hops"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"extra": "{not json"}, "connection 'hops_other': field 'extra': expected a JSON object, found text"),
        ({"extra": "[1]"}, "field 'extra': expected a JSON object, found a list"),
        ({"extra": {"storage_options": "{"}}, "field 'storage_options': expected a JSON object, found text that is"),
        ({"extra": {"storage_options": "[1]"}}, "field 'storage_options': expected a JSON object, found a list"),
        ({"extra": {"serving_rest_port": "http"}}, "field 'serving_rest_port' is 'http', expected a port"),
        ({"extra": {"serving_rest_port": 70000}}, "field 'serving_rest_port' is '70000', expected a port"),
        ({"extra": {"store": "artifacts"}}, "field 'store' is 'artifacts', expected a URI or an absolute path"),
        ({"extra": {"store": "s3://bucket/hops/../other"}}, "'s3://bucket/hops/../other' has a part '..'"),
        ({"extra": {"store": "file:///srv/%2e%2e/other"}}, "'file:///srv/%2e%2e/other' has a part '..'"),
        ({"extra": {"runtime": "venv"}}, "runtime 'venv': there is no such environment beside"),
        ({"port": "http"}, "AIRFLOW_CONN_HOPS_OTHER cannot be read; expected"),
        ("{not json", "AIRFLOW_CONN_HOPS_OTHER cannot be read; expected"),
    ],
)  # fmt: skip
def test_a_field_that_does_not_parse_is_named_with_its_value(settings: Any, value: Any, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        settings(value)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["{'secret': 'abc123'}", '{"secret": "abc123"', '["abc123"]', '"abc123"', "abc123"])
def test_values_with_possible_credentials_are_not_shown(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {
        "hops": lambda: RuntimeHook("odd").settings,
        "horovod": lambda: where_ranks_run("odd", None),
    }
    for conn_type, ask in asked.items():
        monkeypatch.setenv("AIRFLOW_CONN_ODD", json.dumps({"conn_type": conn_type, "extra": text}))
        with pytest.raises(BadInput, match="'extra': expected a JSON object") as caught:
            ask()
        assert "abc123" not in str(caught.value)
    extra = {"storage_options": text}
    monkeypatch.setenv("AIRFLOW_CONN_ODD", json.dumps({"conn_type": "hops", "extra": extra}))
    with pytest.raises(BadInput, match="'storage_options': expected a JSON object") as caught:
        RuntimeHook("odd").settings  # noqa: B018
    assert "abc123" not in str(caught.value)
    with pytest.raises(BadInput) as caught:
        json_object(text, "connection field 'serving_storage_options'")
    assert "abc123" not in str(caught.value)


STORAGE = {
    "aws": (
        {"login": "key", "password": "s3cr3t", "extra": {"endpoint_url": "http://minio:9000", "region_name": "eu"}},
        {"key": "key", "secret": "s3cr3t", "endpoint_url": "http://minio:9000", "client_kwargs": {"region_name": "eu"}},
    ),
    "google_cloud_platform": (
        {"extra": {"keyfile_dict": '{"type": "service_account"}', "project": "p"}},
        {"token": {"type": "service_account"}, "project": "p"},
    ),
    "wasb": ({"login": "account", "password": "k"}, {"account_name": "account", "account_key": "k"}),
    "webhdfs": ({"host": "namenode", "port": 9870, "login": "ann"}, {"host": "namenode", "port": 9870, "user": "ann"}),
}


@pytest.mark.parametrize("conn_type", STORAGE)
def test_storage_options_come_from_another_connection(
    settings: Any, monkeypatch: pytest.MonkeyPatch, conn_type: str
) -> None:
    fields, options = STORAGE[conn_type]
    monkeypatch.setenv("AIRFLOW_CONN_STORAGE", json.dumps({"conn_type": conn_type, **fields}))
    extra = {"store": "memory://hops", "storage_conn_id": "storage", "storage_options": {"timeout": 5}}
    assert settings({"extra": extra}).storage_options == {**options, "timeout": 5}
    assert conn_type != "aws" or redact("refused: s3cr3t") == "refused: ***"


def test_store_is_opened_with_another_connection(
    settings: Any, monkeypatch: pytest.MonkeyPatch, s3_endpoint: str
) -> None:
    import s3fs

    s3fs.S3FileSystem(endpoint_url=s3_endpoint, key="k", secret="s").mkdir("connected")
    connection = {"conn_type": "aws", "login": "k", "password": "s", "extra": {"endpoint_url": s3_endpoint}}
    monkeypatch.setenv("AIRFLOW_CONN_AWS_DEFAULT", json.dumps(connection))
    settings({"extra": {"store": "s3://connected/hops", "storage_conn_id": "aws_default"}})
    store = RuntimeHook("hops_other").store
    store.write_text(store.internal("_models", "m.json"), "{}")
    assert store.names(store.internal("_models")) == ["m.json"]


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        (None, "storage_conn_id: there is no connection 'storage'"),
        ({"conn_type": "http"}, "connection 'storage' is of type 'http', expected 'aws' or"),
        (
            {"conn_type": "aws", "extra": {"role_arn": "r"}},
            "'storage': storage_conn_id cannot use the field 'role_arn'",
        ),
        (
            {"conn_type": "wasb", "host": "h"},
            "cannot use the field 'host' of a connection of type 'wasb'; it uses login",
        ),
        (
            {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": "{"}},
            "field 'keyfile_dict': expected a JSON",
        ),
    ],
)
def test_storage_connection_is_checked(
    settings: Any, monkeypatch: pytest.MonkeyPatch, connection: Any, message: str
) -> None:
    if connection:
        monkeypatch.setenv("AIRFLOW_CONN_STORAGE", json.dumps(connection))
    with pytest.raises(BadInput, match=message):
        settings({"extra": {"storage_conn_id": "storage"}})


def test_store_password_is_an_option_and_not_recorded(settings: Any) -> None:
    result = settings({"extra": {"store": "memory://ann:p%40ss@host:22/hops", "storage_options": {"timeout": 5}}})
    assert (result.store, result.storage_options) == ("memory://ann@host:22/hops", {"password": "p@ss", "timeout": 5})
    assert "p@ss" not in repr(result)
    assert redact("OSError: p@ss99 at host") == "OSError: p@ss99 at host"
    settings({"extra": {"store": "memory://ann:p%40ss99@host/hops", "tracking_uri": "http://ann:mlflow99@host"}})
    assert redact("OSError: p@ss99 and mlflow99 at host") == "OSError: *** and *** at host"
    values = settings({"extra": {"store": "memory://ann:old@host/hops", "storage_options": {"password": "new"}}})
    assert values.storage_options == {"password": "new"}
    value = {"uri": "memory://ann:p%40ss@host:22/hops/dag/run/task/model", "kind": "model", "fingerprint": "f"}
    assert Artifact.from_dict(value).uri == "memory://ann@host:22/hops/dag/run/task/model"
    for plain in ("file:///srv/a:b@c/hops", "s3://bucket/a:b@c", "hdfs://nn:8020/t@3", "/srv/a:b@c", "s3://ann@host/x"):
        assert Artifact.from_dict({**value, "uri": plain}).uri == plain


def test_unreadable_missing_and_unknown_are_named(settings: Any) -> None:
    with pytest.raises(BadInput, match="AIRFLOW_CONN_HOPS_DEFAULT cannot be read"):
        settings({"port": "http"}, "hops_default")
    with pytest.raises(ConnectionNotFound, match=r"there is no connection 'hops_nowhere'.*AIRFLOW_CONN_HOPS_NOWHERE"):
        _ = RuntimeHook("hops_nowhere").settings
    store = ArtifactStore(settings({"extra": {"store": "nosuch://bucket"}}).store)
    with pytest.raises(BadInput, match=r"store 'nosuch://bucket'.*nosuch"):
        store.exists("nosuch://bucket/a")
