"""The connection of type hops and the section [hops]: what their fields become, and what is said of bad ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk._shared.secrets_masker import redact
from world import World

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput, ConnectionNotFound
from airflow_hops.core.steps.protocol import json_object
from airflow_hops.core.store import ArtifactStore
from airflow_hops.hooks.model_server import ModelServerHook
from airflow_hops.runner.launchers.spark import SparkLauncher
from airflow_hops.runner.ranks import where_ranks_run
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.runner.settings import Settings


def read(conn_id: str = "odd") -> Settings:
    return RuntimeHook(conn_id).settings


ASK: dict[str, Callable[[], object]] = {
    "hops": read,
    "horovod": lambda: where_ranks_run("odd", None),
    "model server": lambda: ModelServerHook("odd").address,
}
"""Readers of the connection ``odd``."""


CANNOT_BE_READ = "AIRFLOW_CONN_ODD cannot be read; expected"


REFUSED: list[tuple[str, str | dict[str, Any], str]] = [
    ("hops", "{not json", CANNOT_BE_READ),
    ("hops", {"port": "http"}, CANNOT_BE_READ),
    ("hops", {"extra": "{not json"}, "connection 'odd': field 'extra': expected a JSON object, found text"),
    ("hops", {"extra": "[1]"}, "field 'extra': expected a JSON object, found a list"),
    ("hops", {"extra": {"storage_options": "{"}}, "'storage_options': expected a JSON object, found text that is"),
    ("hops", {"extra": {"storage_options": "[1]"}}, "'storage_options': expected a JSON object, found a list"),
    ("hops", {"extra": {"serving_rest_port": "http"}}, "field 'serving_rest_port' is 'http', expected a port"),
    ("hops", {"extra": {"serving_rest_port": 70000}}, "field 'serving_rest_port' is '70000', expected a port"),
    ("hops", {"extra": {"store": "artifacts"}}, "field 'store' is 'artifacts', expected a URI or an absolute path"),
    ("hops", {"extra": {"store": "s3://bucket/hops/../other"}}, "'s3://bucket/hops/../other' has a part '..'"),
    ("hops", {"extra": {"store": "file:///srv/%2e%2e/other"}}, "'file:///srv/%2e%2e/other' has a part '..'"),
    ("hops", {"extra": {"runtime": "venv"}}, "runtime 'venv': there is no such environment beside"),
    ("hops", {"extra": {"stor": "/x"}}, "of type 'hops' have no field 'stor'; did you mean 'store'?"),
    ("hops", {"extra": {"serving_rest_prot": 1}}, "no field 'serving_rest_prot'; did you mean 'serving_rest_port'"),
    ("hops", {"extra": {"Store": "/x"}}, "have no field 'Store'; did you mean 'store'?"),
    ("hops", {"extra": {"zzz": False}}, "have no field 'zzz'; the fields in extra are store, storage_conn_id, "),
    ("hops", {"login": "ann"}, "connection 'odd': connections of type 'hops' have no field 'login'"),
    ("hops", {"conn_type": "http"}, "connection 'odd' is of type 'http', expected 'hops'"),
    ("hops", {"extra": {"storage_conn_id": "storage"}}, "storage_conn_id: there is no connection 'storage'"),
    ("horovod", {"extra": {"host": "gpu-1:4"}}, "of type 'horovod' have no field 'host'; did you mean 'hosts'"),
    ("horovod", {"host": "gpu-1"}, "have no field 'host'; did you mean 'hosts'"),
    ("horovod", {"conn_type": "http"}, "is of type 'http', expected 'horovod' or 'kubernetes' or 'spark'"),
    ("model server", {"conn_type": "spark"}, "is of type 'spark', expected 'hops'"),
    ("model server", {"extra": {"serving_kind": "torchserve"}}, "'serving_kind' is 'torchserve', expected one of "),
    ("model server", {"extra": {"serving_timeout": "soon"}}, "'serving_timeout' is 'soon'; expected a number of sec"),
    ("model server", {"extra": {"serving_ca_file": "/no/such.pem"}}, "'/no/such.pem'; there is no such file"),
    ("model server", {"extra": {"serving_cert_file": "/c.pem"}}, "expected both or neither"),
]
"""Reader of a connection, its text or fields, and the words of the error."""


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Settings of a connection with the given text, or fields."""

    def set_and_read(value: str | dict[str, Any], conn_id: str = "odd") -> Settings:
        text = value if isinstance(value, str) else json.dumps({"conn_type": "hops", **value})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", text)
        return read(conn_id)

    return set_and_read


@pytest.mark.parametrize(("asker", "value", "message"), REFUSED)
def test_wrong_field_is_named(asker: str, value: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    conn_type = "horovod" if asker == "horovod" else "hops"
    text = value if isinstance(value, str) else json.dumps({"conn_type": conn_type, **value})
    monkeypatch.setenv("AIRFLOW_CONN_ODD", text)
    with pytest.raises(BadInput) as caught:
        ASK[asker]()
    assert message in str(caught.value)


def test_all_fields_of_the_connection_reach_the_settings(settings: Any) -> None:
    services = {
        "tracking_uri": "http://mlflow:5000",
        "serving_rest_port": "8501",
        "serving_base_path": "/srv/models",
        "serving_config_file": "/srv/models.config",
        "serving_traffic_file": "/srv/traffic.json",
        "serving_capture_path": "s3://bucket/capture",
        "serving_storage_options": '{"endpoint_url": "http://127.0.0.1:9001"}',
        "serving_prediction_token": "oracle",
        "serving_rest_tls": "True",
    }
    extra = {
        **services,
        "store": "s3://bucket/hops/",
        "storage_options": '{"endpoint_url": "http://127.0.0.1:9000"}',
        "runtime": "/opt/hops-runtime",
        "serving_rest_port": 8501,
        "serving_storage_options": {"endpoint_url": "http://127.0.0.1:9001"},
        "serving_rest_tls": True,
    }
    result = settings({"host": "model-server", "port": 8600, "password": "open-sesame", "extra": extra})
    assert (result.store, result.runtime) == ("s3://bucket/hops", Path("/opt/hops-runtime"))
    assert result.tracking_uri == "http://mlflow:5000"
    assert result.storage_options == {"endpoint_url": "http://127.0.0.1:9000"}
    outside = {"serving_host": "model-server", "serving_port": "8600", "serving_token": "open-sesame"}
    assert result.services == {**services, **outside}
    uri = settings("hops://model-server:8600/?store=s3%3A%2F%2Fbucket%2Fhops&serving_rest_port=8501")
    assert (uri.store, uri.services["serving_port"]) == ("s3://bucket/hops", "8600")
    assert uri.services["serving_rest_port"] == "8501"


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


@pytest.mark.parametrize("text", ["{'secret': 'abc123'}", '{"secret": "abc123"', '["abc123"]', '"abc123"', "abc123"])
def test_values_with_possible_credentials_are_not_shown(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for conn_type, extra, words in (
        ("hops", text, "'extra': expected a JSON object"),
        ("horovod", text, "'extra': expected a JSON object"),
        ("hops", {"storage_options": text}, "'storage_options': expected a JSON object"),
    ):
        monkeypatch.setenv("AIRFLOW_CONN_ODD", json.dumps({"conn_type": conn_type, "extra": extra}))
        with pytest.raises(BadInput, match=words) as caught:
            ASK[conn_type]()
        assert "abc123" not in str(caught.value)
    with pytest.raises(BadInput) as caught:
        json_object(text, "connection field 'serving_storage_options'")
    assert "abc123" not in str(caught.value)


def test_spark_connection_of_another_type_is_refused(runtime: Path, world: World) -> None:
    world.connect("odd", "http", host="local[2]")
    with pytest.raises(BadInput, match="connection 'odd' is of type 'http', expected 'spark'"):
        SparkLauncher(runtime, "odd").start(Path("/nowhere/spec.json"), ())


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
def test_storage_options_come_from_another_connection(settings: Any, world: World, conn_type: str) -> None:
    fields, options = STORAGE[conn_type]
    outside = {name: value for name, value in fields.items() if name != "extra"}
    world.connect("storage", conn_type, **outside, **fields.get("extra", {}))
    extra = {"store": "memory://hops", "storage_conn_id": "storage", "storage_options": {"timeout": 5}}
    assert settings({"extra": extra}).storage_options == {**options, "timeout": 5}
    assert conn_type != "aws" or redact("refused: s3cr3t") == "refused: ***"


def test_store_is_opened_with_another_connection(settings: Any, world: World, s3_endpoint: str) -> None:
    import s3fs

    s3fs.S3FileSystem(endpoint_url=s3_endpoint, key="k", secret="s").mkdir("connected")
    world.connect("aws_default", "aws", login="k", password="s", endpoint_url=s3_endpoint)
    settings({"extra": {"store": "s3://connected/hops", "storage_conn_id": "aws_default"}})
    store = RuntimeHook("odd").open_store()
    store.write_text(store.internal("_models", "m.json"), "{}")
    assert store.names(store.internal("_models")) == ["m.json"]


@pytest.mark.parametrize(
    ("conn_type", "fields", "message"),
    [
        ("http", {}, "connection 'storage' is of type 'http', expected 'aws' or"),
        ("aws", {"role_arn": "r"}, "'storage': storage_conn_id cannot use the field 'role_arn'"),
        ("wasb", {"host": "h"}, "cannot use the field 'host' of a connection of type 'wasb'; it uses login"),
        ("google_cloud_platform", {"keyfile_dict": "{"}, "field 'keyfile_dict': expected a JSON"),
    ],
)
def test_storage_connection_is_checked(
    settings: Any, world: World, conn_type: str, fields: dict[str, str], message: str
) -> None:
    world.connect("storage", conn_type, **fields)
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
        read("hops_nowhere")
    with pytest.raises(BadInput, match="there is no connection 'nowhere'; add one of type hops, or set"):
        ModelServerHook("nowhere").services  # noqa: B018
    store = ArtifactStore(settings({"extra": {"store": "nosuch://bucket"}}).store)
    with pytest.raises(BadInput, match=r"store 'nosuch://bucket'.*nosuch"):
        store.exists("nosuch://bucket/a")
