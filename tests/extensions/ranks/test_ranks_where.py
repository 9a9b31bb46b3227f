"""Places of a training's ranks: by connection and arguments, and errors of bad ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.core.training.rank_places import LocalPlace
from airflow_hops.extensions.ranks.hooks import RanksHook
from airflow_hops.runner.environments.named import packages_of, python_version
from airflow_hops.runner.ranks import where_ranks_run


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the connection ``gpus`` to a text, or to fields."""

    def set_connection(value: str | dict[str, Any]) -> None:
        text = value if isinstance(value, str) else json.dumps({"conn_type": "horovod", **value})
        monkeypatch.setenv("AIRFLOW_CONN_GPUS", text)

    return set_connection


def test_airflow_knows_the_connection_type_with_its_typed_fields() -> None:
    from airflow.providers_manager import ProvidersManager

    manager = ProvidersManager()
    hook = manager.hooks["horovod"]
    assert hook is not None and hook.hook_class_name == "airflow_hops.extensions.ranks.hooks.RanksHook"
    assert hook.connection_testable
    widgets = manager.connection_form_widgets
    assert {"hosts", "key_file", "config_file", "python", "address", "slots"} == {
        name.removeprefix("extra__horovod__") for name in widgets if name.startswith("extra__horovod__")
    }
    assert widgets["extra__horovod__slots"].field["schema"]["type"] == ["integer", "null"]
    assert manager.field_behaviours["horovod"]["relabeling"] == {"login": "SSH user", "port": "SSH port"}


def test_all_fields_reach_the_step(connection: Any) -> None:
    texts = {"key_file": "/keys/train", "python": "/opt/runtime/bin/python", "address": "192.0.2.7"}
    connection({"login": "train", "port": 2222, "extra": {"hosts": "gpu-1:4,gpu-2:4", "slots": 2, **texts}})
    expected = {
        "kind": "ssh",
        "hosts": "gpu-1:4,gpu-2:4",
        "hosts_from": "connection 'gpus', field 'hosts'",
        "user": "train",
        "port": 2222,
        "config_file": None,
        **texts,
    }
    assert where_ranks_run("gpus", None) == expected
    other = {"hosts": "gpu-3:1", "hosts_from": "argument 'hosts'"}
    assert where_ranks_run("gpus", "gpu-3:1") == {**expected, **other}
    connection("horovod://train@:2222/?hosts=gpu-1%3A4%2Cgpu-2%3A4")
    assert where_ranks_run("gpus", "") == {**expected, **dict.fromkeys(texts)}


def test_ranks_run_on_this_machine_without_hosts(connection: Any) -> None:
    assert where_ranks_run(None, None) is None
    assert where_ranks_run("", "") is None
    connection({})
    assert where_ranks_run("gpus", None) == {"kind": "local", "slots": None}
    connection({"extra": {"hosts": "", "slots": "3"}})
    assert where_ranks_run("gpus", None) == {"kind": "local", "slots": 3}


def test_hosts_alone_and_spark_need_no_connection_of_this_type() -> None:
    assert where_ranks_run(None, "gpu-1:2") == {"kind": "ssh", "hosts": "gpu-1:2", "hosts_from": "argument 'hosts'"}
    assert where_ranks_run("spark_local", None) == {"kind": "spark"}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"extra": "{not json"}, "connection 'gpus': field 'extra': expected a JSON object, found text that"),
        ({"extra": "[1]"}, "connection 'gpus': field 'extra': expected a JSON object, found a list"),
        ({"extra": {"slots": 0}}, "connection 'gpus': field 'slots' is 0, expected a number of ranks, 1 or more"),
        ({"extra": {"slots": "two"}}, "field 'slots' is 'two', expected a number of ranks, 1 or more"),
        ({"extra": {"hosts": ["gpu-1:4"]}}, "field 'hosts' is ['gpu-1:4'], expected a text"),
        ({"conn_type": "ssh"}, "connection 'gpus' is of type 'ssh', expected 'horovod' or 'kubernetes' or 'spark'"),
        ("{not json", "ranks_conn_id: connection 'gpus': AIRFLOW_CONN_GPUS cannot be read; expected a URI"),
    ],
)
def test_unusable_input_is_named(connection: Any, value: Any, message: str) -> None:
    connection(value)
    with pytest.raises(BadInput, match=re.escape(message)):
        where_ranks_run("gpus", None)


def test_hosts_besides_spark_are_refused() -> None:
    with pytest.raises(BadInput, match=r"hosts is 'gpu-1:2', but connection 'spark_local' is of type 'spark'"):
        where_ranks_run("spark_local", "gpu-1:2")


@pytest.mark.runtime
def test_test_button_connects_ranks_of_all_hosts(
    connection: Any, start_ssh_server: Any, runtime_python: Path, runtime: Path
) -> None:
    server = start_ssh_server()
    fields = {"key_file": server.key_file, "config_file": server.config_file, "python": str(runtime_python)}
    connection({"port": server.port, "extra": {**fields, "hosts": "127.0.0.1:4,127.0.0.2:2"}})
    ok, result = RanksHook("gpus").test_connection()
    assert ok, result
    first, second = result.split("; ")
    for host, text in (("127.0.0.1", first), ("127.0.0.2", second)):
        assert text.startswith(f"{host}: {runtime_python}, Python {python_version(runtime)}")
        assert f"tensorflow {packages_of(runtime)['tensorflow']}, keras 3." in text and text.endswith("horovod 0.28.1")


@pytest.mark.runtime
def test_test_button_reports_errors(connection: Any) -> None:
    for fields, message in (
        ({"extra": {"hosts": "gpu-1"}}, "connection 'gpus', field 'hosts': found 'gpu-1' in 'gpu-1', expected 'name:s"),
        ({"port": 1, "extra": {"hosts": "127.0.0.1:1"}}, "port 1: Connection refused"),
    ):
        connection(fields)
        ok, result = RanksHook("gpus").test_connection()
        assert not ok and message in result


@pytest.mark.parametrize(("conn_id", "hosts"), [("spark_local", None), (None, "gpu-1:2")])
def test_places_that_are_not_installed_are_refused(
    monkeypatch: pytest.MonkeyPatch, conn_id: str | None, hosts: str | None
) -> None:
    monkeypatch.setattr("airflow_hops.runner.ranks.rank_places", lambda: {"local": LocalPlace()})
    with pytest.raises(BadInput, match=r"no installed distribution registers a place of ranks .*; there are local"):
        where_ranks_run(conn_id, hosts)
