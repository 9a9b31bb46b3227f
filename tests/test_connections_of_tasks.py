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

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.store import ArtifactStore
from airflow_hops.hooks.model_server import ModelServerHook
from airflow_hops.runner.connections import check_options, connections_of_tasks, find_connection, in_team
from airflow_hops.runner.launchers.spark import SparkLauncher
from airflow_hops.runner.ranks import where_ranks_run
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
def secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Configures a secrets backend of files, of a section of Airflow's configuration, with connections."""
    from airflow.sdk import configuration

    clear_secrets_backends_cache = getattr(configuration, "clear_secrets_backends_cache", lambda: None)  # newer SDKs'

    def configure(section: str, option: str, connections: dict[str, Any] | None) -> None:
        path = tmp_path / f"{section}.json"
        if connections is not None:
            path.write_text(json.dumps(connections))
        prefix = f"AIRFLOW__{section.upper()}__{option}"
        monkeypatch.setenv(prefix, LOCAL_FILES)
        monkeypatch.setenv(f"{prefix}_KWARGS", json.dumps({"connections_file_path": str(path)}))
        clear_secrets_backends_cache()

    yield configure
    monkeypatch.undo()
    clear_secrets_backends_cache()


def checks(hops: Any, *arguments: str) -> dict[str, Any]:
    _, output, _ = hops("doctor", "--output", "json", *arguments)
    return {check["name"]: check for check in json.loads(output)}


def test_commands_use_the_store_of_a_connection_in_the_database(hops: Any, in_database: Any, tmp_path: Path) -> None:
    in_database("hops_default", conn_type="hops", extra=json.dumps({"store": str(tmp_path / "store")}))
    store, producer = ArtifactStore(str(tmp_path / "store")), Producer("dag", "run", "task")
    with store.create(store.address(producer, "model"), "model", producer) as writer:
        writer.commit()
    code, _, errors = hops("store", "verify", "dag/run")
    assert code == 0, errors
    assert f"1 artifacts in file://{tmp_path}/store/dag/run" in errors
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
    hops: Any, in_database: Any, secrets: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW__HOPS__RUNTIME", str(tmp_path / "none"))
    monkeypatch.delenv("AIRFLOW_CONN_HOPS_DEFAULT")
    assert checks(hops)["connection hops_default"]["found"].endswith("from no connection: defaults of [hops] apply")
    in_database("hops_default", conn_type="hops", extra='{"store": "/of/database"}')
    in_database("spark_default", conn_type="spark", host="local[3]")
    result = checks(hops)
    assert result["connection hops_default"]["found"] == "store file:///of/database, from Airflow's database"
    assert result["connection spark_default"]["found"] == "master local[3], from Airflow's database"
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", '{"conn_type": "hops", "extra": {"store": "/of/variable"}}')
    assert checks(hops)["connection hops_default"]["found"] == (
        "store file:///of/variable, from environment variable AIRFLOW_CONN_HOPS_DEFAULT"
    )
    secrets("secrets", "BACKEND", {"hops_default": {"conn_type": "hops", "extra": {"store": "/of/secrets"}}})
    assert checks(hops)["connection hops_default"]["found"] == (
        "store file:///of/secrets, from secrets backend LocalFilesystemBackend"
    )
    secrets("workers", "SECRETS_BACKEND", {"hops_default": {"conn_type": "hops", "extra": {"store": "/of/workers"}}})
    assert checks(hops)["connection hops_default"]["found"].startswith("store file:///of/workers, from secrets backend")
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
    with pytest.raises(HopsError, match="'hops_default': secrets backend LocalFilesystemBackend failed") as failure:
        RuntimeHook().settings  # noqa: B018
    assert not isinstance(failure.value, BadInput)  # a retry may succeed
    code, _, errors = hops("store", "verify")
    assert code == 1
    assert "secrets backend LocalFilesystemBackend failed" in errors
    secrets("secrets", "BACKEND", {})
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


def ask(conn_type: str) -> None:
    {
        "hops": lambda: RuntimeHook("odd").settings,
        "horovod": lambda: where_ranks_run("odd", None),
    }[conn_type]()


@pytest.mark.parametrize(
    ("conn_type", "fields", "message"),
    [
        ("hops", {"extra": {"stor": "/x"}}, "have no field 'stor'; did you mean 'store'?"),
        ("hops", {"extra": {"serving_rest_prot": 1}}, "no field 'serving_rest_prot'; did you mean 'serving_rest_port'"),
        ("hops", {"extra": {"Store": "/x"}}, "have no field 'Store'; did you mean 'store'?"),
        ("hops", {"extra": {"zzz": False}}, "have no field 'zzz'; the fields in extra are store, storage_conn_id, "),
        ("hops", {"login": "ann"}, "have no field 'login'"),
        ("horovod", {"extra": {"host": "gpu-1:4"}}, "have no field 'host'; did you mean 'hosts'"),
        ("horovod", {"host": "gpu-1"}, "have no field 'host'; did you mean 'hosts'"),
    ],
)  # fmt: skip
def test_misspelt_field_is_refused(
    conn_type: str, fields: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ODD", json.dumps({"conn_type": conn_type, **fields}))
    with pytest.raises(BadInput) as refused:
        ask(conn_type)
    assert f"connection 'odd': connections of type '{conn_type}' have " in str(refused.value)
    assert message in str(refused.value)


def test_hops_connection_has_the_fields_of_its_model_server(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"serving_{name}" for name in ("kind", "timeout", "server_base_path", "host", "token")]
    extra = {**dict.fromkeys(names, "bundled"), "store": None, "no_field": ""}
    monkeypatch.setenv("AIRFLOW_CONN_ODD", json.dumps({"conn_type": "hops", "extra": extra}))
    services = RuntimeHook("odd").settings.services
    assert [services[name] for name in names] == ["bundled"] * len(names)


def test_connection_of_another_type_is_refused(runtime: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ODD", '{"conn_type": "http", "host": "local[2]"}')
    for conn_type in ("hops", "horovod"):
        with pytest.raises(BadInput, match=f"connection 'odd' is of type 'http', expected '{conn_type}'"):
            ask(conn_type)
    with pytest.raises(BadInput, match="connection 'odd' is of type 'http', expected 'spark'"):
        SparkLauncher(runtime, "odd").start(tmp_path / "spec.json", ())
    with pytest.raises(
        BadInput, match="connection 'odd' is of type 'http', expected 'horovod' or 'kubernetes' or 'spark'"
    ):
        where_ranks_run("odd", None)


def test_doctor_fails_for_a_misspelt_field_and_a_wrong_type(
    hops: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__HOPS__RUNTIME", str(tmp_path / "none"))
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", '{"conn_type": "hops", "extra": {"stor": "/x"}}')
    result = checks(hops)["connection hops_default"]
    assert result["status"] == "fail" and "did you mean 'store'" in result["found"]
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", '{"conn_type": "hops", "extra": {"spark_conn_id": "odd"}}')
    monkeypatch.setenv("AIRFLOW_CONN_ODD", '{"conn_type": "http"}')
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
