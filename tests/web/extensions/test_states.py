"""The pages of pipelines in the states in which operators leave them, through the routes that the pages ask."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from web.conftest import Api
from web.test_access import _path, protected

pytestmark = pytest.mark.runtime

DAGS = "tests/extensions/feature_store/dags"
TASKS = {"apply": "feature_definitions", "materialize": "materialization", "examples": "examples", "train": "model"}
TASKS |= {"evaluate": "evaluation", "infra_validate": "infra_blessing", "deploy": "deployment", "rollout": "rollout"}
PROGRAMS = ("/tensorboard/", "/logs")
"""Parts of the paths of routes that ask a program, which does not run here."""


def failures(api: Api, dag_id: str, run_id: str, artifacts: bool = False) -> dict[str, str]:
    """The routes of a pipeline, and maybe of its artifacts, that fail, and those of the pipeline that show nothing."""
    result = {}
    names = {"dag_id": dag_id, "run_id": run_id.replace("+", "%2B"), "model": "pages_served"}
    for method, route in protected():
        _, dag, after = route.path.partition("{dag_id}")
        if method != "GET" or not dag or any(program in route.path for program in PROGRAMS):
            continue
        tasks = (TASKS if artifacts else {}) if "{task_id}" in after else {"": ""}
        for task_id, kind in tasks.items():
            path = _path(api, route, **names, task_id=task_id, kind=kind)
            answer = api.get(path)
            if answer.status_code >= (500 if "{" in after or "?" in path else 400):
                result[path] = answer.text[:600]
    return result


@pytest.mark.parametrize(("state", "ends"), [("never_run", None), ("refused", "success"), ("failed", "failed")])
def test_pages_of_a_pipeline_without_a_model_open(api: Api, run_dag: Any, state: str, ends: str | None) -> None:
    dag_id = f"pages_state_{state}"
    run = run_dag(dag_id if ends else "pages_state_refused", {}, DAGS)
    assert ends is None or str(run.state) == ends
    assert failures(api, dag_id, run.run_id) == {}


def test_pages_open_after_artifacts_are_deleted(api: Api, run_dag: Any) -> None:
    run = run_dag("pages_state_deployed", {}, DAGS)
    assert str(run.state) == "success"
    assert failures(api, "pages_state_deployed", run.run_id, artifacts=True) == {}
    (view,) = api.get("/api/dags/pages_state_deployed/features").json()["views"]
    assert view["used_by"] == [{"model": "pages_served", "version": 1, "features": ["mean_delay"]}]
    shutil.rmtree(Path(api.store.root.removeprefix("file://")) / "pages_state_deployed")
    page = api.get("/api/dags/pages_state_deployed/features").json()
    assert (page["project"], page["views"]) == ("flights", []) and "was deleted" in page["problem"]
    assert failures(api, "pages_state_deployed", run.run_id, artifacts=True) == {}
