"""Notebooks as tasks."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.processes.temporary_folders import socket_root
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.extensions.notebooks.cli import notebook as command
from airflow_hops.extensions.notebooks.core import NotebookProperties
from airflow_hops.runner.runtime import RuntimeHook

pytestmark = pytest.mark.runtime


def test_notebook_task_renders_parameters_except_conf_and_keeps_failed_notebook(
    run_dag: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    run = run_dag("notebook", {"rows": "{{ 1 + 1 }}"}, "tests/extensions/notebooks/dags")
    states = {ti.task_id: ti for ti in run.get_task_instances()}
    assert states["report"].state == "success" and states["failing"].state == "failed"
    left = {"day": run.run_id, "rows": "{{ 1 + 1 }}"}
    report = states["report"]
    assert report.xcom_pull(task_ids="report", key="result") == left
    artifact = Artifact.from_dict(report.xcom_pull(task_ids="report"))
    assert NotebookProperties.of(artifact).parameters == left
    printed = capfd.readouterr()
    assert (
        "report of manual__" in printed.out and "report.ipynb: cell 4 failed with KeyError" in printed.out + printed.err
    )
    store = RuntimeHook().store
    failed = store.manifest(artifact.uri.replace("/report/", "/failing/"))
    properties = NotebookProperties.of(failed)
    assert (properties.failed_cell, properties.parameters) == (4, {"day": "xxx", "fail": True})
    assert failed.inputs["report"][0].fingerprint == artifact.fingerprint


def test_jupyterlab_refuses_unusable_settings(hops: Any, tmp_path: Path) -> None:
    code, _, error = hops("notebook", str(tmp_path / "none"), "--no-browser")
    assert (code, "none: there is no such folder" in error) == (1, True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, error = hops("notebook", str(tmp_path), "--port", str(port))
        assert (code, f"--port {port}: cannot listen there" in error) == (1, True)


def test_kernel_socket_paths_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, root in (("/tmp", None), ("/tmp/" + "t" * 60, Path("/tmp"))):
        monkeypatch.setattr(tempfile, "tempdir", folder)
        assert socket_root(command._SOCKET_LENGTH) == root


def test_connection_secrets_are_only_in_the_environment_of_jupyterlab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"store": str(tmp_path / "store"), "storage_options": {"secret": "s3cret"}}
    connection = {"conn_type": "hops", "password": "t0ken", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(connection))
    home = tmp_path / "home"
    home.mkdir()
    spec = RuntimeHook().complete(StepSpec("notebook", "", producer=Producer("notebook", "now", "notebook")))
    environment = command._variables({"PATH": "/bin"}, spec, home, Path("/runtime/bin/python"))
    held = json.loads(environment["HOPS_STEP_CONNECTIONS"])
    assert (held["storage_options"]["secret"], held["services"]["serving_token"]) == ("s3cret", "t0ken")
    files = [file.read_text() for file in home.rglob("*") if file.is_file()]
    assert len(files) == 2 and not any(secret in text for text in files for secret in ("s3cret", "t0ken"))
    kernel = json.loads((home / "kernels" / "airflow-hops" / "kernel.json").read_text())
    assert kernel["argv"][0] == "/runtime/bin/python" and environment["JUPYTER_PATH"] == str(home)
