"""Rehearsals through the API: listed, one whole; who may see them; what is damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.extensions.rehearsal.core.rehearsal import Rehearsal
from tests.extensions.rehearsal.small_rehearsals import small_rehearsal, write_rehearsal
from web.conftest import Api

pytestmark = pytest.mark.runtime
DAG, MODEL = "pages_training", "pages_model"
PATH = f"/api/dags/{DAG}/models/{MODEL}/rehearsals"


@pytest.fixture
def report() -> Rehearsal:
    return small_rehearsal(MODEL, 1)


@pytest.fixture
def written(api: Api, report: Rehearsal, whole_store: None) -> list[str]:
    """Writes three rehearsals, the newest by another DAG; returns their addresses."""
    tasks = [
        Producer(DAG, "r1", "rehearse"),
        Producer(DAG, "r2", "rehearse"),
        Producer("pages_other", "r1", "rehearse"),
    ]
    reports = [replace(report, version=version) for version in (2, 1, 1)]
    return [write_rehearsal(api.store, each, task) for each, task in zip(reports, tasks, strict=True)]


def test_rehearsals_are_listed_the_newest_first(api: Api, written: list[str]) -> None:
    listed = api.get(PATH).json()
    assert ([each["version"] for each in listed["entries"]], listed["total_entries"]) == ([1, 1, 2], 3)
    second = api.get(PATH, params={"limit": 1, "offset": 1}).json()
    assert second == {"entries": listed["entries"][1:2], "problems": [], "total_entries": 3}


def test_a_rehearsal_matches_its_file(api: Api, written: list[str], report: Rehearsal) -> None:
    entry = api.get(PATH).json()["entries"][2]
    answer = api.get(f"{PATH}/{entry['id']}", "viewer").json()
    task = {"dag_id": DAG, "run_id": "r1", "task_id": "rehearse", "map_index": -1, "iteration": -1}
    assert (answer["made"], answer["task"]) == (entry["made"], task)
    assert answer["report"] == json.loads(json.dumps(replace(report, version=2).to_dict()))


def test_a_rehearsal_of_an_unreadable_dag_is_hidden(api: Api, written: list[str]) -> None:
    newest, *others = api.get(PATH).json()["entries"]
    seen = api.get(PATH, f"only:{DAG}").json()
    assert (seen["entries"], seen["total_entries"]) == (others, 2)
    api.refused(f"{PATH}/{newest['id']}", 404, "has no rehearsal", f"only:{DAG}")
    assert api.get(f"{PATH}/{newest['id']}", f"only:{DAG},pages_other").status_code == 200
    api.refused(PATH, 403, user="only:pages_other")
    api.refused(f"{PATH}/1-0123456789abcdef", 404, "has no rehearsal")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is damaged"),
        ("[]", "not a rehearsal of this model (report: "),
        ({"model_name": "another"}, "'another', expected 'pages_model'"),
        ({"faults": [{}]}, "report.faults.0.feature: "),
    ],
)
def test_a_damaged_report_is_named(api: Api, written: list[str], report: Rehearsal, content: Any, says: str) -> None:
    text = content if isinstance(content, str) else json.dumps({**report.to_dict(), **content})
    (_path(written[2]) / "rehearsal.json").write_text(text)
    newest = api.get(PATH).json()["entries"][0]
    api.refused(f"{PATH}/{newest['id']}", 502, "rehearsal.json")
    api.refused(f"{PATH}/{newest['id']}", 502, says)


def test_a_damaged_entry_is_listed_as_a_problem(api: Api, written: list[str]) -> None:
    entries = api.get(PATH).json()["entries"]
    (entry,) = _path(api.store.root).glob(f"_state/monitored/{MODEL}/1/rehearsal/pages_other/*.json")
    entry.write_text("{}")
    listed = api.get(PATH).json()
    assert (listed["entries"], listed["total_entries"]) == (entries[1:], 3)
    assert [entry.name in problem and "remove it" in problem for problem in listed["problems"]] == [True]
    api.refused(f"{PATH}/{entries[0]['id']}", 502, entry.name)
    assert api.get(PATH, f"only:{DAG}").json()["problems"] == []


def test_a_deleted_rehearsal_is_gone(api: Api, written: list[str]) -> None:
    _path(written[2]).rename(_path(written[2]).with_name("away"))
    api.refused(f"{PATH}/{api.get(PATH).json()['entries'][0]['id']}", 410, "was deleted")


def _path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))
