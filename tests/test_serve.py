"""``airflow hops serve``: the flags and the environment of the server that a connection names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from world import World

from airflow_hops.cli.serve import server_flags, storage_variables
from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.runner.settings import with_default_places


def test_connection_gives_flags_before_explicit_ones(tmp_path: Path) -> None:
    services = {
        "serving_host": "127.0.0.1",
        "serving_port": "9500",
        "serving_rest_port": "9501",
        "serving_config_file": str(tmp_path / "new" / "models.config"),
        "serving_traffic_file": "file:///srv/traffic.json",
        "serving_capture_path": "s3://bucket/captured/",
        "serving_base_path": "/srv/models",
    }
    assert server_flags(services, ["--port=1", "--workers=2"]) == [
        "--host=127.0.0.1",
        "--port=9500",
        "--rest_api_port=9501",
        f"--model_config_file={tmp_path}/new/models.config",
        "--model_config_file_poll_wait_seconds=1",
        "--traffic_config_file=/srv/traffic.json",
        "--capture_base_path=s3://bucket/captured",
        "--port=1",
        "--workers=2",
    ]
    written = tmp_path / "new" / "models.config"
    assert written.read_text() == "model_config_list {}\n"
    written.write_text("model_config_list { config { name: 'a' } }")
    server_flags(services)
    assert written.read_text() == "model_config_list { config { name: 'a' } }"


def test_token_is_passed_in_memory(tmp_path: Path) -> None:
    services = {"serving_config_file": str(tmp_path / "models.config"), "serving_token": "secret"}
    (flag,) = (flag for flag in server_flags(services) if flag.startswith("--control_token_file="))
    path = Path(flag.partition("=")[2])
    assert path.read_text() == path.read_text() == "secret"  # it may be read again
    assert "secret" not in flag


def test_remote_host_is_reported_not_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    services = {"serving_config_file": str(tmp_path / "models.config"), "serving_host": "192.0.2.1"}
    assert not [flag for flag in server_flags(services) if flag.startswith("--host")]
    assert (
        "host '192.0.2.1' is not an address of this machine: the server listens at 127.0.0.1" in capsys.readouterr().err
    )
    assert server_flags(services, ["--host=0.0.0.0"])[-1] == "--host=0.0.0.0"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("services", "given", "words"),
    [
        ({}, [], "field 'serving_config_file' is empty, so there is nothing to serve; fill it in, or give"),
        ({"kind": "tensorflow_model_server"}, [], "'serving_kind' is 'tensorflow_model_server', expected"),
        ({"config_file": "models.config"}, [], "'serving_config_file' is 'models.config'; expected an"),
        ({"config_file": "/proc/none/models.config"}, [], "'/proc/none/models.config', which cannot be"),
        ({"ca_file": "/ca.pem"}, ["--upstream=a:1"], "'serving_ca_file' says that the server speaks TLS; give"),
    ],
)
def test_unservable_connection_is_refused(services: dict[str, str], given: list[str], words: str) -> None:
    with pytest.raises(BadInput) as refused:
        server_flags({f"serving_{name}": value for name, value in services.items()}, given)
    assert words in str(refused.value)
    server_flags({}, ["--upstream=a:1"])


def test_storage_options_reach_the_servers_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FSSPEC_S3", '{"profile": "p", "anon": true}')
    services = {"serving_base_path": "s3://bucket/models", "serving_capture_path": "/srv/capture"}
    store = ArtifactStore(str(tmp_path))
    assert storage_variables(services, store) == {}
    services["serving_storage_options"] = '{"endpoint_url": "http://minio:9000", "anon": false}'
    assert {name: json.loads(value) for name, value in storage_variables(services, store).items()} == {
        "FSSPEC_S3": {"profile": "p", "anon": False, "endpoint_url": "http://minio:9000"}
    }


@pytest.mark.runtime
@pytest.mark.server
def test_the_command_becomes_the_server_of_a_connection(hops: Any, tmp_path: Path, world: World) -> None:
    world.connect(port=9500, serving_config_file=str(tmp_path / "models.config"))
    became: list[Any] = []
    with world.patch.context() as patch:
        patch.setattr(os, "execve", lambda *given: became.append(given))
        hops("serve", "--", "--port=none")
    ((_, command, environment),) = became
    wrong = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "--port" in wrong.stderr


@pytest.mark.runtime
@pytest.mark.server
def test_default_paths_are_below_airflow_home(tmp_path: Path) -> None:
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW_CONN_HOPS_DEFAULT": ""}
    command = [str(Path(sys.executable).with_name("airflow")), "hops", "serve", "--", "--version"]
    server = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert server.returncode == 0, server.stderr
    assert server.stdout.splitlines()[-2].startswith("airflow-hops model server: ")
    assert (tmp_path / "hops-serving" / "models.config").read_text() == "model_config_list {}\n"


@pytest.mark.parametrize(
    ("given", "has_defaults"),
    [
        ({"serving_port": "9500", "serving_rest_port": "9501"}, True),
        ({"serving_host": "localhost"}, True),
        ({"serving_host": "models.internal"}, False),
        ({"serving_base_path": "/srv/models"}, False),
        ({"serving_capture_path": "s3://captured"}, False),
    ],
)
def test_paths_missing_in_the_connection_have_defaults(given: dict[str, str], has_defaults: bool) -> None:
    services = {"serving_host": "127.0.0.1", "serving_port": "8500", **given}
    result = with_default_places(services, Path("/srv/airflow"))
    added = {name: result[name] for name in result.keys() - given.keys()}
    assert services.items() <= result.items()
    assert ("/srv/airflow/hops-serving/models" in added.values()) == has_defaults
    assert result.get("serving_rest_port") == (given.get("serving_rest_port") or ("8501" if has_defaults else None))
