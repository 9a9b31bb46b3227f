"""Studies through the API: listed, one with its trials, and requests to stop it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_hops.extensions.experiments.core.studies import StudyFolder
from tests.extensions.experiments.written_studies import write_study
from web.conftest import Api

pytestmark = pytest.mark.runtime
STUDIES = "/api/dags/pages/studies"
ONE = f"{STUDIES}/search/-1"


@pytest.fixture
def studies(api: Api) -> Iterator[dict[str, StudyFolder]]:
    """Studies of ``pages``: one that is complete, one of two metrics, one that runs."""
    written = {
        name: write_study(api.store, "pages", name, 30, started=f"2026-11-2{day}T10:00:00+00:00", **fields)
        for day, (name, fields) in enumerate(
            {"done": {}, "two:a": {"metrics": ["auc", "latency"]}, "goes on": {"state": "running"}}.items()
        )
    }
    yield written
    for folder in written.values():
        for trial in folder.stop_requests():
            folder.clear_stop(trial)
        folder.clear()


def test_studies_are_listed_the_newest_first_and_damaged_ones_named(api: Api, studies: Any) -> None:
    answer = api.get(STUDIES, params={"limit": 2}).json()
    assert (answer["total_entries"], [each["name"] for each in answer["entries"]]) == (3, ["goes on", "two:a"])
    running = answer["entries"][0]
    assert (running["state"], running["task_state"], running["trials"]) == ("running", None, 50)
    trials = {each.number: each for each in studies["goes on"].trials()}
    assert running["best_values"] == [max(each.values[0] for each in trials.values() if each.values)]
    assert running["best_params"] == trials[running["best"]].params
    assert running["counts"] == {"complete": 22, "pruned": 4, "failed": 2, "running": 2}
    assert api.get("/api/dags/pages_other/studies").json() == {"entries": [], "total_entries": 0, "problems": []}
    folder = studies["done"]
    api.store.write_text(f"{folder.uri}/trials-000.jsonl", '{"number": 0}\n')
    refused = api.get(ONE, params={"study": "done"})
    damage = "trials-000.jsonl: not the record of trials (line 1: key, params, "
    assert (refused.status_code, damage in refused.json()["detail"]) == (502, True)
    api.store.write_text(f"{folder.uri}/study.json", '{"name": ')
    answer = api.get(STUDIES).json()
    assert [each["name"] for each in answer["entries"]] == ["goes on", "two:a"]
    (problem,) = answer["problems"]
    assert problem.startswith(f"{folder.uri}/study.json: not the record of a study")


def test_a_study_has_its_trials_as_columns(api: Api, studies: Any) -> None:
    study = api.get(ONE, params={"study": "two:a"}).json()
    trials = studies["two:a"].trials()
    columns = study["columns"]
    assert columns["number"] == list(range(30))
    assert columns["state"] == [each.state for each in trials]
    assert columns["params"]["lr"] == [each.params["lr"] for each in trials]
    assert [columns["values"][metric][12] for metric in (0, 1)] == [None, None]
    assert list(zip(*columns["values"], strict=True))[3] == tuple(trials[3].values)
    assert columns["reason"][12].startswith("ValueError: loss is nan")
    assert (study["space"]["lr"]["type"], study["journal"]) == ("log_uniform", None)
    folder = studies["two:a"]
    api.store.write_text(f"{folder.uri}/journal.log", "")
    assert api.get(ONE, params={"study": "two:a"}).json()["journal"] == f"{folder.uri}/journal.log"


def test_state_of_the_search_task_is_shown(api: Api) -> None:
    folder = write_study(api.store, "pages", "killed", 3, task_id="examples", state="running", run_id=api.pages.run_id)
    try:
        (study,) = [each for each in api.get(STUDIES).json()["entries"] if each["task_id"] == "examples"]
        assert (study["state"], study["task_state"]) == ("running", "success")
        path, params = f"{STUDIES}/examples/-1/stop", {"study": "killed"}
        refused = api.request("POST", path, params=params, json={"trial": None})
        assert (refused.status_code, refused.json()["detail"]) == (
            409,
            "study 'killed' does not run: its task is success",
        )
        assert folder.stop_requests() == {}
    finally:
        folder.clear()


def test_stop_request_names_its_user(api: Api, studies: Any) -> None:
    path, params = f"{ONE}/stop", {"study": "goes on"}
    refused = api.request("POST", path, "viewer", params=params, json={"trial": None})
    assert (refused.status_code, studies["goes on"].stop_requests()) == (403, {})
    assert api.request("POST", path, params=params, json={"trial": 29}).status_code == 200
    assert api.request("POST", path, params=params, json={"trial": None}).status_code == 200
    assert studies["goes on"].stop_requests() == {29: "admin", None: "admin"}
    study = api.get(ONE, "viewer", params=params).json()
    asked = {each["trial"]: each["by"] for each in study["stop_requests"]}
    assert (study["may_stop"], asked) == (False, {29: "admin", None: "admin"})


def test_a_failed_trial_has_the_last_lines_of_its_log(api: Api, studies: Any) -> None:
    answer = api.get(f"{ONE}/log", params={"study": "done", "trial": 12}).json()
    assert answer["text"] == f"Traceback (most recent call last):\n  …\n{answer['reason']}"
    assert api.get(f"{ONE}/log", params={"study": "done", "trial": 3}).json() == {
        "number": 3,
        "reason": "",
        "text": None,
    }
    assert api.get(f"{ONE}/log", params={"study": "done", "trial": 30}).status_code == 404


def test_trial_log_requires_the_right_to_read_task_logs(api: Api, studies: Any) -> None:
    asked = {"study": "done", "trial": 12}
    assert [api.get(f"{ONE}/log", user, params=asked).status_code for user in ("logless", "viewer")] == [403, 200]
    assert api.get(ONE, "logless", params={"study": "done"}).status_code == 200


@pytest.mark.parametrize(
    ("study", "body", "status", "says"),
    [
        ("done", {"trial": None}, 409, "study 'done' is complete; only a running one"),
        ("goes on", {"trial": 3}, 409, "trial 3 of study 'goes on' is complete"),
        ("goes on", {"trial": 4000}, 409, "trial 4000 of study 'goes on' is not there"),
        ("goes_on", {"trial": None}, 404, "no study 'goes_on'"),
        ("..", {"trial": None}, 404, "no study"),
        ("goes on", {"trial": -1}, 422, "trial"),
        ("goes on", {}, 422, "trial"),
    ],
)
def test_only_running_studies_can_be_stopped(
    api: Api, studies: Any, study: str, body: Any, status: int, says: str
) -> None:
    answer = api.request("POST", f"{ONE}/stop", params={"study": study}, json=body)
    assert (answer.status_code, says in answer.text) == (status, True), answer.text
    assert all(folder.stop_requests() == {} for folder in studies.values())


def test_study_of_several_files_is_read_completely(api: Api) -> None:
    folder = write_study(api.store, "pages", "large", 1_100)
    try:
        answer = api.get(ONE, params={"study": "large"})
        assert answer.json()["columns"]["number"] == list(range(1_100))
    finally:
        folder.clear()
