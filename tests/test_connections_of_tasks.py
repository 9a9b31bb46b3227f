"""Commands find the connections that tasks find, and print where; names that nothing reads are refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from world import World, refused

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.hooks.model_server import ModelServerHook
from airflow_hops.runner.connections import check_options, connections_of_tasks, find_connection, in_team
from airflow_hops.runner.runtime import RuntimeHook

LOCAL_FILES = "airflow.secrets.local_filesystem.LocalFilesystemBackend"


@pytest.fixture
def in_database(run_dag: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Adds connections to Airflow's database, and has none of them in the environment."""
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    added: list[str] = []

    def add(conn_id: str, **fields: Any) -> None:
        monkeypatch.delenv(f"AIRFLOW_CONN_{conn_id.upper()}", raising=False)
        added.append(conn_id)
        with create_session() as session:
            session.add(Connection(conn_id=conn_id, **fields))

    yield add
    with create_session() as session:
        session.query(Connection).filter(Connection.conn_id.in_(added)).delete()


@pytest.fixture
def secrets(world: World, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Configures a secrets backend of files, of a section of Airflow's configuration, with a store's connection."""
    from airflow.sdk import configuration

    clear_secrets_backends_cache = getattr(configuration, "clear_secrets_backends_cache", lambda: None)  # newer SDKs'

    def configure(section: str, option: str, store: str | None) -> None:
        path = tmp_path / f"{section}.json"
        if store is not None:
            connections = {"hops_default": {"conn_type": "hops", "extra": {"store": store}}} if store else {}
            path.write_text(json.dumps(connections))
        prefix = f"AIRFLOW__{section.upper()}__{option}"
        world.patch.setenv(prefix, LOCAL_FILES)
        world.patch.setenv(f"{prefix}_KWARGS", json.dumps({"connections_file_path": str(path)}))
        clear_secrets_backends_cache()

    yield configure
    world.patch.undo()
    clear_secrets_backends_cache()


def checks(hops: Any, *arguments: str) -> dict[str, Any]:
    _, output, _ = hops("doctor", "--output", "json", *arguments)
    return {check["name"]: check for check in json.loads(output)}


def test_commands_use_the_store_of_a_connection_in_the_database(hops: Any, in_database: Any, world: World) -> None:
    in_database("hops_default", conn_type="hops", extra=json.dumps({"store": world.store.root}))
    world.artifact()
    code, _, errors = hops("store", "verify", "dag")
    assert code == 0, errors
    assert f"1 artifacts in {world.store.root}/dag" in errors
    assert "Connection 'hops_default': Airflow's database\n" in errors


@given(*[st.text("a|b", min_size=1, max_size=4)] * 3)
@example("alpha", "hops", "alpha|hops")
def test_a_connection_of_a_team_equals_no_text_and_no_other(team: str, conn_id: str, other: str) -> None:
    own = in_team(conn_id, team)
    results = {own: "own", f"{team}|{conn_id}": "text", other: "text", in_team(other, team + "|"): "another"}
    assert results[own] == results[in_team(conn_id, team)] == "own" and results[other] == "text"
    assert own != f"{team}|{conn_id}" and f"{team}|{conn_id}" != own and own == in_team(conn_id, team)


@pytest.fixture
def stores_of_teams(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Folder with the stores of the teams ``risk`` and ``ads``, each of which has a connection ``hops_default``."""
    monkeypatch.delenv("AIRFLOW_CONN_HOPS_DEFAULT")
    for team in ("risk", "ads"):
        connection = {"conn_type": "hops", "extra": {"store": str(tmp_path / team)}}
        monkeypatch.setenv(f"AIRFLOW_CONN__{team.upper()}___HOPS_DEFAULT", json.dumps(connection))
    return tmp_path


def test_commands_use_the_connection_of_a_team(
    hops: Any, teams: Any, in_database: Any, stores_of_teams: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, errors = hops("store", "verify", "--team", "risk")
    assert (code, "--team is 'risk'; the teams are none" in errors) == (1, True)
    teams(risk=None, ads=None)
    _, _, errors = hops("store", "verify", "--team", "risk")
    assert "Connection 'hops_default' of team 'risk': environment variable AIRFLOW_CONN__RISK___HOPS_DEFAULT" in errors
    assert f"file://{stores_of_teams}/risk" in errors
    in_database("models", conn_type="hops", host="of-ads", team_name="ads")
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")  # as in the API server
    assert ModelServerHook(in_team("models", "ads")).services["serving_host"] == "of-ads"
    with pytest.raises(BadInput, match="there is no connection 'models' of team 'risk'"):
        ModelServerHook(in_team("models", "risk")).services  # noqa: B018
    assert RuntimeHook(in_team("hops_default", "ads")).settings.store == f"file://{stores_of_teams}/ads"


def test_doctor_prints_where_connections_come_from(
    hops: Any, in_database: Any, secrets: Any, world: World, tmp_path: Path
) -> None:
    def store() -> str:
        return str(checks(hops)["connection hops_default"]["found"])

    world.patch.setenv("AIRFLOW__HOPS__RUNTIME", str(tmp_path / "none"))
    world.patch.delenv("AIRFLOW_CONN_HOPS_DEFAULT")
    assert store().endswith("from no connection: defaults of [hops] apply")
    in_database("hops_default", conn_type="hops", extra='{"store": "/of/database"}')
    in_database("spark_default", conn_type="spark", host="local[3]")
    assert store() == "store file:///of/database, from Airflow's database"
    assert checks(hops)["connection spark_default"]["found"] == "master local[3], from Airflow's database"
    world.connect(store="/of/variable")
    assert store() == "store file:///of/variable, from environment variable AIRFLOW_CONN_HOPS_DEFAULT"
    secrets("secrets", "BACKEND", "/of/secrets")
    assert store() == "store file:///of/secrets, from secrets backend LocalFilesystemBackend"
    secrets("workers", "SECRETS_BACKEND", "/of/workers")
    assert store().startswith("store file:///of/workers, from secrets backend")
    assert "_AIRFLOW_PROCESS_CONTEXT" not in os.environ


def test_serve_has_the_ports_of_a_connection_in_the_database(
    hops: Any, in_database: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    extra = {"serving_rest_port": 9601, "serving_config_file": str(tmp_path / "models.config")}
    in_database("models", conn_type="hops", port=9600, extra=json.dumps(extra))
    became: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "execve", lambda *given: became.append(given))
        code, _, errors = hops("serve", "--hops-conn-id", "models")
    assert code == 0, errors
    ((_, command, _),) = became
    assert {"--port=9600", "--rest_api_port=9601"} <= set(command)
    assert "Connection 'models': Airflow's database\n" in errors


def test_a_command_prints_once_where_a_connection_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        with connections_of_tasks():
            for _ in range(2):
                find_connection("hops_default", "hops")
        assert capsys.readouterr().err.count("Connection 'hops_default': environment variable") == 1


def test_failing_secrets_backend_is_an_error(hops: Any, secrets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_HOPS_DEFAULT")
    secrets("secrets", "BACKEND", None)
    with refused("'hops_default': secrets backend LocalFilesystemBackend failed", HopsError, retried=True):
        RuntimeHook().settings  # noqa: B018
    code, _, errors = hops("store", "verify")
    assert code == 1
    assert "secrets backend LocalFilesystemBackend failed" in errors
    secrets("secrets", "BACKEND", "")
    assert RuntimeHook().settings.source


def test_undecryptable_connection_is_an_error(hops: Any, in_database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.models import crypto
    from cryptography.fernet import Fernet

    def use_key() -> None:
        monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", Fernet.generate_key().decode())
        crypto.get_fernet.cache_clear()

    use_key()
    in_database("hops_default", conn_type="hops", extra='{"store": "/of/database"}')
    use_key()
    try:
        code, _, errors = hops("store", "verify")
    finally:
        monkeypatch.undo()
        crypto.get_fernet.cache_clear()
    assert code == 1
    assert "connection 'hops_default': Airflow's database failed: " in errors


def test_hops_connection_has_the_fields_of_its_model_server(world: World) -> None:
    names = [f"serving_{name}" for name in ("kind", "timeout", "server_base_path", "host", "token")]
    world.connect("odd", **dict.fromkeys(names, "bundled"), store=None, no_field="")
    services = RuntimeHook("odd").settings.services
    assert [services[name] for name in names] == ["bundled"] * len(names)


def test_doctor_fails_for_a_misspelt_field_and_a_wrong_type(hops: Any, tmp_path: Path, world: World) -> None:
    world.patch.setenv("AIRFLOW__HOPS__RUNTIME", str(tmp_path / "none"))
    world.connect(stor="/x")
    result = checks(hops)["connection hops_default"]
    assert result["status"] == "fail" and "did you mean 'store'" in result["found"]
    world.connect(spark_conn_id="odd").connect("odd", "http")
    assert checks(hops)["connection odd"]["status"] == "fail"


def test_misspelt_option_is_refused(hops: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.configuration import conf

    with monkeypatch.context() as patch:
        patch.setenv("AIRFLOW__HOPS__STOR", "/x")
        message = "AIRFLOW__HOPS__STOR: there is no option 'stor'; did you mean 'store'?"
        with pytest.raises(BadInput, match=message):
            RuntimeHook().settings  # noqa: B018
        code, _, errors = hops("runtime", "path")
        assert (code, message in errors) == (1, True)
    check_options()
    conf.read_dict({"hops": {"warmstart": "False"}})
    try:
        with pytest.raises(
            BadInput, match=r"\[hops\] warmstart .*there is no option 'warmstart'; did you mean 'warm_start'"
        ):
            check_options()
    finally:
        conf.remove_option("hops", "warmstart")
