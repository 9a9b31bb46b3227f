"""Notebooks as tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_hops.contract.artifacts import Artifact
from airflow_hops.contract.properties import NotebookProperties
from airflow_hops.hooks.runtime import RuntimeHook
from tests.test_task_hops import xcom

pytestmark = pytest.mark.runtime


def test_notebook_task_renders_parameters_but_not_those_of_the_runs_conf_and_keeps_what_failed(
    run_dag: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    run = run_dag("notebook", {"rows": "{{ 1 + 1 }}"})
    states = {ti.task_id: ti for ti in run.get_task_instances()}
    assert states["report"].state == "success" and states["failing"].state == "failed"
    left = {"day": run.run_id, "rows": "{{ 1 + 1 }}"}
    assert xcom(states["report"], "result") == left
    artifact = Artifact.from_dict(xcom(states["report"]))
    assert NotebookProperties.of(artifact).parameters == left
    said = capfd.readouterr()
    assert "report of manual__" in said.out and "report.ipynb: cell 4 failed with KeyError" in said.out + said.err
    store = RuntimeHook().store
    failed = store.manifest(artifact.uri.replace("/report/", "/failing/"))
    properties = NotebookProperties.of(failed)
    assert (properties.failed_cell, properties.parameters) == (4, {"day": "xxx", "fail": True})
    assert failed.inputs["report"][0].fingerprint == artifact.fingerprint
