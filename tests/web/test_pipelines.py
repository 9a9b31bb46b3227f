"""The list of pipelines: which there are for whom, what serves, who watches it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, record_uri, write_record
from web.conftest import Api

pytestmark = pytest.mark.runtime


@pytest.fixture
def canary(api: Api) -> Iterator[ModelRecord]:
    """A record of the model ``pages_model``: version 3 serves, version 4 is tried with a fifth of the traffic."""
    model = Artifact(f"{api.store.root}/pages_training/first/train/model", "model", "f" * 64)
    record = ModelRecord(ServedVersion.of(model, 3, "/serving/3", 100), ServedVersion.of(model, 4, "/serving/4", 20))
    write_record(api.store, "pages_model", record)
    yield record
    api.store.remove_text(record_uri(api.store, "pages_model"))


def _pipelines(api: Api, user: str, name: str = "pages") -> dict[str, Any]:
    return {result["dag_id"]: result for result in api.get(f"/api/pipelines?name={name}", user).json()["entries"]}


def test_user_sees_only_readable_pipelines(api: Api) -> None:
    seen = list(_pipelines(api, "viewer"))
    assert {"pages", "pages_other", "pages_training"} <= set(seen)
    assert seen == sorted(seen)
    assert list(_pipelines(api, "only:pages_other,pages")) == ["pages", "pages_other"]
    assert api.get("/api/pipelines", "only:no_such").json() == {"total_entries": 0, "entries": [], "problems": []}


def test_list_pages_continue_without_gaps(api: Api) -> None:
    path, user = "/api/pipelines?name=pages&limit=2", "only:pages,pages_other,pages_training"
    pages = [api.get(f"{path}&offset={offset}", user).json() for offset in (0, 2)]
    assert [page["total_entries"] for page in pages] == [3, 3]
    results = [[pipeline["dag_id"] for pipeline in page["entries"]] for page in pages]
    assert results == [["pages", "pages_other"], ["pages_training"]]


def test_pipeline_has_its_last_run_and_stages(api: Api) -> None:
    pages = _pipelines(api, "viewer")["pages"]
    assert pages["stages"] == ["statistics", "schema", "validation"]
    newest = api.get("/api/dags/pages/runs?limit=1", "viewer").json()["entries"][0]
    assert (pages["last_run"]["run_id"], pages["last_run"]["state"]) == (newest["run_id"], "success")
    assert pages["model"] is None


def test_monitoring_dag_belongs_to_the_deploying_dag(api: Api) -> None:
    pipelines = _pipelines(api, "viewer")
    (monitor,) = pipelines["pages_training"]["monitors"]
    assert (monitor["dag_id"], monitor["last_run"]) == ("pages_monitoring", None)
    assert pipelines["pages_training"]["stages"] == ["training", "deploy"]
    assert list(_pipelines(api, "only:pages_monitoring")) == ["pages_monitoring"]
    assert _pipelines(api, "only:pages_training")["pages_training"]["monitors"] == []


def test_overview_of_a_monitoring_dag_is_that_of_its_pipeline(api: Api) -> None:
    def overview(user: str) -> Any:
        return api.get("/api/dags/pages_monitoring/overview", user).json()

    result = overview("viewer")
    assert (result["pipeline"]["dag_id"], result["models"]) == ("pages_training", ["pages_model"])
    training, monitoring = result["schedules"]
    assert training["assets"] == {"pages.drifted": ["pages_monitoring"]}
    assert (monitoring["dag_id"], monitoring["next_run"]) == ("pages_monitoring", None)
    alone = overview("only:pages_monitoring")
    assert (alone["pipeline"]["dag_id"], len(alone["schedules"])) == ("pages_monitoring", 1)


def test_served_version_is_the_decided_one(api: Api, canary: ModelRecord) -> None:
    model = _pipelines(api, "viewer")["pages_training"]["model"]
    shares = {role: (model[role]["version"], model[role]["traffic_percent"]) for role in ("champion", "challenger")}
    assert shares == {"champion": (3, 80), "challenger": (4, 20)}
    assert (model["name"], model["problem"], model["metric"]) == ("pages_model", None, None)


def test_a_pipeline_is_read_again_when_its_dag_changes(api: Api) -> None:
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.session import create_session

    from airflow_hops.web.artifacts.tasks import read_pipelines

    with create_session() as session:
        first = read_pipelines(session, ["pages"]).get("pages")
        assert read_pipelines(session, ["pages"]).get("pages") is first
        row = SerializedDagModel.get("pages", session=session)
        assert row is not None and first is not None
        retained, row.dag_hash = row.dag_hash, "changed"
        session.flush()
        assert read_pipelines(session, ["pages"]).get("pages") == type(first)("pages", "changed", first.tasks)
        row.dag_hash = retained
