"""Lineage through the API: back to the first data, on to what was made of it, and what of it a user may see."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, record_uri, write_record
from airflow_hops.core.schema.history import publish_schema, schema_text
from web.conftest import Api

pytestmark = pytest.mark.runtime


def _lineage(api: Api, task_id: str, kind: str, user: str = "admin") -> tuple[dict[str, Any], dict[str, Any]]:
    """The lineage, and its nodes by kind (of several the last)."""
    lineage = api.get(f"{api.artifact_path(task_id, kind)}/lineage", user).json()
    return lineage, {node["kind"]: node for node in lineage["nodes"]}


def _edges(lineage: dict[str, Any]) -> set[tuple[str, str]]:
    kinds = {node["id"]: node["kind"] for node in lineage["nodes"]}
    return {(kinds[edge["source"]], kinds[edge["target"]]) for edge in lineage["edges"]}


def test_an_artifact_leads_back_to_the_first_data(api: Api) -> None:
    lineage, nodes = _lineage(api, "validate", "anomalies", "viewer")
    assert lineage["focus"] == nodes["anomalies"]["id"]
    assert _edges(lineage) == {
        ("examples", "statistics"), ("statistics", "schema"), ("statistics", "anomalies"), ("schema", "anomalies"),
    }  # fmt: skip
    examples = nodes["examples"]
    assert (examples["state"], examples["rows"], examples["address"]["task_id"]) == ("present", 1000, "examples")
    assert examples["runs"] == [{"dag_id": "pages", "run_id": api.pages.run_id}]
    assert examples["created_at"].endswith("Z")
    assert lineage["is_whole"]


def test_artifact_leads_to_derived_artifacts(api: Api) -> None:
    lineage, nodes = _lineage(api, "examples", "examples")
    assert {"statistics", "schema", "anomalies"} <= set(nodes)
    assert ("statistics", "anomalies") in _edges(lineage)


def test_foreign_artifact_is_an_unnamed_box(api: Api) -> None:
    api.write("borrowed", task_id="schema", inputs={"rows": api.reference("examples", "examples", api.other)})
    lineage, nodes = _lineage(api, "schema", "borrowed", "only:pages")
    hidden = nodes["examples"]
    assert (hidden["state"], hidden["address"], hidden["fingerprint"], hidden["runs"]) == ("hidden", None, None, [])
    assert "pages_other" not in str(lineage)
    _, seen = _lineage(api, "schema", "borrowed", "only:pages,pages_other")
    assert seen["examples"]["address"]["dag_id"] == "pages_other"


def test_deleted_artifact_stays_in_the_graph(api: Api) -> None:
    with api.without(api.folder("statistics", "statistics")):
        lineage, nodes = _lineage(api, "validate", "anomalies")
        gone = nodes["statistics"]
        assert (gone["state"], gone["address"]["task_id"]) == ("deleted", "statistics")
        assert "was deleted" in gone["detail"]
        assert ("statistics", "anomalies") in _edges(lineage)
        assert "examples" not in nodes


def test_replaced_schema_leads_to_derived_artifacts(api: Api) -> None:
    uri = api.store.frozen_schema("pages", "schema")
    previous, text = _lineage(api, "schema", "schema")[0], schema_text(api.store, uri)
    publish_schema(api.store, uri, f"{text}\n", approved_by="Ada")
    try:
        lineage, nodes = _lineage(api, "schema", "schema")
        assert (lineage["focus"], _edges(lineage)) == (previous["focus"], _edges(previous))
        assert ("schema", "anomalies") in _edges(lineage) and nodes["schema"]["state"] == "present"
    finally:
        publish_schema(api.store, uri, text, approved_by="Ada")


def test_a_result_of_an_earlier_run_is_marked(api: Api, brief_run: Any) -> None:
    again = brief_run("pages", {})
    path = api.artifact_path("statistics", "statistics", again)
    lineage = api.get(f"{path}/lineage").json()
    (statistics,) = [node for node in lineage["nodes"] if node["id"] == lineage["focus"]]
    assert statistics["cached"]
    assert statistics["address"]["run_id"] == api.pages.run_id
    assert [run["run_id"] for run in statistics["runs"]] == [again.run_id, api.pages.run_id]
    (focus,) = [n for n in _lineage(api, "statistics", "statistics")[0]["nodes"] if n["id"] == lineage["focus"]]
    assert not focus["cached"]


def test_versions_are_listed_with_their_deployments(api: Api) -> None:
    champion = ServedVersion.of(Artifact("file:///m", "model", "f"), 2, "", 100)
    former = _lineage(api, "examples", "examples")[1]["examples"]["fingerprint"]
    first = ModelRecord(champion).after("deployed", 1, "the first model", by={}, fingerprint=former)
    record = first.after("deployed", 2, "better", by={})
    write_record(api.store, "pages_model", record)
    try:
        versions = api.get("/api/dags/pages_training/versions").json()
        assert [(each["version"], each["role"], each["traffic_percent"]) for each in versions] == [
            (2, "champion", 100),
            (1, "former", 0),
        ]
        (mark,) = _lineage(api, "examples", "examples")[1]["examples"]["served"]
        assert (mark["model"], mark["version"], mark["role"]) == ("pages_model", 1, "former")
    finally:
        api.store.remove_text(record_uri(api.store, "pages_model"))
    assert api.get("/api/dags/pages_training/versions").json() == []
