"""Pages of DAGs of two teams, which have connections of the same name."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from airflow_hops.airflow_internals.database import DagModel, create_session
from web.conftest import Api
from web.test_access import _path, routes

pytestmark = pytest.mark.runtime
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
    path = api.artifact_path("examples", "examples", api.other)
    answer = api.get(path)
    assert (answer.status_code, str(tmp_path / "ads") in answer.text) == (502, True)
