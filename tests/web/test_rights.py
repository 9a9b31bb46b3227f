"""Rights beyond the DAG of the path: lists across DAGs, answers that two DAGs share, values of others, and teams."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import update

from airflow_hops.airflow_internals.database import DagModel, create_session
from airflow_hops.core.artifacts.artifact import Artifact
from web.conftest import Api
from web.test_access import _path, routes

pytestmark = pytest.mark.runtime


def test_dag_right_alone_reveals_no_runs_and_artifacts(api: Api) -> None:
    def listed(user: str) -> dict[str, Any]:
        return {each["dag_id"]: each for each in api.get("/api/pipelines", user).json()["entries"]}

    assert listed("admin")["pages"]["last_run"]["state"] == "success"
    bare = listed("bare")
    assert bare.keys() == listed("admin").keys()
    for name in ("last_run", "model", "skew", "retraining"):
        assert {each[name] for each in bare.values()} == {None}, name
    assert {each["health"][0]["state"] for each in bare.values()} == {"unknown"}
    assert {monitor["last_run"] for each in bare.values() for monitor in each["monitors"]} == {None}


def test_trigger_right_on_a_monitoring_dag_allows_no_decision(api: Api) -> None:
    watching = "/api/dags/pages_monitoring/models/pages_model"
    assert api.get(watching).json()["may_change"] is False
    body = {"reason": "a test", "request_id": "12345678", "to_version": "previous"}
    api.refused(f"{watching}/roll_back", 403, "does not deploy model 'pages_model'", method="POST", json=body)
    assert api.get("/api/dags/pages_training/models/pages_model").json()["may_change"] is True


@pytest.fixture
def twin(api: Api) -> Any:
    """``twin(task_id, kind)``: an artifact of the DAG ``pages_other`` with the contents of one of ``pages``."""

    def copy(task_id: str, kind: str, inputs: Any = None) -> tuple[str, Artifact]:
        original = api.get(api.artifact_path(task_id, kind)).json()
        by = api.by("examples", api.other)
        with api.store.create(api.store.address(by, kind), kind, by, inputs=inputs) as writer:
            ignored = shutil.ignore_patterns("manifest.json")
            shutil.copytree(api.folder(task_id, kind), writer.path, ignore=ignored, dirs_exist_ok=True)
            facts = {"window": ["2026-01-01", "2026-01-02"], "splits": original["properties"]["splits"]}
            artifact = writer.commit(properties=facts)
        assert artifact.fingerprint == original["fingerprint"]
        return api.artifact_path("examples", kind, api.other), artifact

    return copy


def test_equal_contents_reveal_no_facts_of_another_dag(api: Api, twin: Any) -> None:
    statistics, artifact = twin("statistics", "statistics")
    mine, others = (
        api.get(f"{each}/statistics").json() for each in (api.artifact_path("statistics", "statistics"), statistics)
    )
    assert mine["window"] is None
    assert (others["window"], others["label"]) == (["2026-01-01", "2026-01-02"], None)
    assert others["datasets"] == mine["datasets"]

    validation, _ = twin("validate", "anomalies", {"statistics": (artifact,)})
    mine = api.get(f"{api.artifact_path('validate', 'anomalies')}/anomalies").json()
    assert (mine["statistics"]["dag_id"], mine["schema_name"]) == ("pages", "schema")
    report = api.get(f"{validation}/anomalies", "only:pages_other").json()
    assert (report["statistics"]["dag_id"], report["schema_name"]) == ("pages_other", None)


@pytest.mark.parametrize(
    "value",
    [
        {"uri": 5, "kind": "examples", "fingerprint": "f"},
        {"uri": "u", "kind": None, "fingerprint": "f"},
        {"uri": "u", "kind": "examples", "fingerprint": "f", "metrics": "many"},
        {"uri": "u", "kind": "examples", "fingerprint": "f", "metrics": {"auc": "good"}},
        '{"__classname__": "elsewhere.Thing", "__version__": 1, "__data__": {}}',
    ],
)
def test_invalid_artifacts_do_not_break_lists(api: Api, value: Any) -> None:
    from airflow.models.xcom import XComModel

    def kinds() -> list[str]:
        answer = api.get("/api/dags/pages_other/runs")
        assert answer.status_code == 200, answer.text
        return [each["kind"] for run in answer.json()["entries"] for each in run["artifacts"]]

    kinds_then = kinds()
    of_the_task = {"dag_id": "pages_other", "run_id": api.other.run_id, "task_id": "examples", "key": "return_value"}
    with create_session() as session:
        row = session.query(XComModel).filter_by(**of_the_task).one()
        returned, row.value = row.value, value
    try:
        assert kinds() == []
    finally:
        with create_session() as session:
            session.query(XComModel).filter_by(**of_the_task).one().value = returned
    assert kinds() == kinds_then == ["examples"]


def test_links_do_not_bypass_rights_of_their_author(api: Api, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("the server's own")
    by = api.by("validate")
    with api.store.create(api.store.address(by, "linked"), "linked", by) as writer:
        (writer.path / "out.txt").symlink_to(secret)
        (writer.path / "plain.txt").write_text("one's own")
        (writer.path / "within.txt").symlink_to("plain.txt")
        (writer.path / "hour=10%3A00").mkdir()
        (writer.path / "hour=10%3A00" / "part%25.txt").write_text("escaped, as Spark does")
        writer.commit()
    files = f"{api.artifact_path('validate', 'linked')}/files"
    api.refused(f"{files}/out.txt", 502, "leads out of the artifact")
    assert api.get(f"{files}/within.txt").text == "one's own"
    name = quote(quote("hour=10%3A00/part%25.txt"))  # the test client unquotes twice
    assert api.get(f"{files}/{name}").text == "escaped, as Spark does"


def test_model_log_requires_the_right_to_read_task_logs(api: Api) -> None:
    api.write("model", {"logs/rank-0.log": "{}", "training.json": "{}"}, "examples", api.other)
    files = f"{api.artifact_path('examples', 'model', api.other)}/files"
    answers = [
        api.get(f"{files}/{name}", user).status_code
        for user in ("logless", "viewer")
        for name in ("logs/rank-0.log", "training.json")
    ]
    assert answers == [403, 200, 200, 200]


VARIABLE = "AIRFLOW_CONN_HOPS_DEFAULT"


@pytest.fixture
def two_teams(api: Api, teams: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Gives ``pages`` to the team ``risk``, whose store it has written, and ``pages_other`` to the team ``ads``."""
    with create_session() as session:
        old_bundles = {
            dag.dag_id: dag.bundle_name for dag in session.query(DagModel).filter(DagModel.dag_id.like("pages%"))
        }
    own = json.loads(os.environ[VARIABLE])
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("AIRFLOW_CONN__RISK___HOPS_DEFAULT", json.dumps(own))
    own["extra"]["store"] = str(tmp_path / "ads")
    monkeypatch.setenv("AIRFLOW_CONN__ADS___HOPS_DEFAULT", json.dumps(own))

    def move(bundles: dict[str, str | None]) -> None:
        with create_session() as session:
            for dag_id, bundle in bundles.items():
                session.execute(update(DagModel).where(DagModel.dag_id == dag_id).values(bundle_name=bundle))

    teams(risk="of_risk", ads="of_ads")
    move({"pages": "of_risk", "pages_other": "of_ads"})
    yield
    move(old_bundles)


@pytest.fixture
def answers(api: Api) -> Any:
    """Returns the answers of all routes that show something of the DAG ``pages``."""
    shown = [route for route in routes() if "GET" in route.methods and "{dag_id}" in route.path]
    shown = [route for route in shown if "tensorboard" not in route.path]
    return lambda: {route.path: api.get(_path(api, route)) for route in shown}


@pytest.fixture
def answers_before(answers: Any) -> Any:
    return answers()


def _of_the_dag(path: str, answer: Any) -> Any:
    """An answer; of a graph, the nodes of ``pages``: what it has of a DAG of another team is no longer in its store."""
    if not path.endswith("/lineage"):
        return answer.text
    nodes = answer.json()["nodes"]
    return [node for node in nodes if node["address"] and node["address"]["dag_id"] == "pages"]


def test_every_route_reads_the_store_of_the_dags_team(answers_before: Any, two_teams: None, answers: Any) -> None:
    after = answers()
    assert {path: _of_the_dag(path, answer) for path, answer in after.items()} == {
        path: _of_the_dag(path, answer) for path, answer in answers_before.items()
    }
    assert sum(answer.status_code == 200 for answer in after.values()) > 20


def test_team_is_not_shown_what_is_in_the_store_of_another(api: Api, two_teams: None, tmp_path: Path) -> None:
    api.refused(api.artifact_path("examples", "examples", api.other), 502, str(tmp_path / "ads"))
