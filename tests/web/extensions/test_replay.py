"""Back-tests through the API: listed, one whole, its policy; who may see them; what is damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.retraining.conditions import Drift
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.extensions.replay.core.backtest import BacktestReport
from tests.extensions.replay.written_backtests import made_up_report, remove_backtest, write_backtest
from web.conftest import Api

pytestmark = pytest.mark.runtime
DAG, MODEL = "pages_training", "pages_model"
PATH = f"/api/dags/{DAG}/models/{MODEL}/backtests"
OLD, NEW = "20131101T101112Z-1a2b", "20131102T101112Z-3c4d"


@pytest.fixture
def report() -> BacktestReport:
    return made_up_report(DAG, MODEL, weeks=12)


@pytest.fixture
def folders(api: Api, report: BacktestReport) -> Iterator[dict[str, str]]:
    """Writes two back-tests, the older of which chose never to retrain."""
    reports = {OLD: replace(report, chosen="never"), NEW: report}
    written = {name: write_backtest(api.store, name, each) for name, each in reports.items()}
    yield written
    for folder in written.values():
        remove_backtest(api.store, folder)


def test_back_tests_are_listed_the_newest_first(api: Api, folders: Any, report: BacktestReport) -> None:
    answer = api.get(PATH, params={"limit": 1}).json()
    (newest,) = answer["entries"]
    assert (newest["id"], newest["chosen"], answer["total_entries"]) == (NEW, report.chosen, 2)
    older = api.get(PATH, params={"limit": 1, "offset": 1}).json()["entries"]
    assert api.get(PATH).json() == {"entries": [newest, *older], "problems": [], "total_entries": 2}
    assert older[0]["id"] == OLD
    remove_backtest(api.store, folders[NEW])
    assert api.get(PATH).json()["entries"] == older, "what was removed is not told from what was kept"


def test_back_test_matches_its_file(api: Api, folders: Any, report: BacktestReport) -> None:
    unknown = {**replace(report, price=float("nan")).to_dict(), "of_a_later_version": 1}
    api.store.write_text(f"{folders[NEW]}/backtest.json", json.dumps(unknown))
    answer = api.get(f"{PATH}/{NEW}").json()
    text = json.dumps(answer["report"])
    without_more = json.loads(
        text, object_hook=lambda fields: {name: fields[name] for name in fields if name != "more"}
    )
    assert without_more == {**json.loads(json.dumps(report.to_dict())), "price": None, "by": {}}
    assert (answer["has_policy"], answer["by"]["user"]) == (True, "ada")


def test_back_test_of_an_unreadable_dag_is_hidden(api: Api, folders: Any, report: BacktestReport) -> None:
    write_backtest(api.store, NEW, replace(report, dag_id="pages_other", by={"dag_id": "pages", "run_id": "r"}))
    user = f"only:{DAG}"
    assert [each["id"] for each in api.get(PATH, user).json()["entries"]] == [OLD]
    for path in (f"{PATH}/{NEW}", f"{PATH}/{NEW}/policy"):
        assert api.get(path, user).status_code == 404
    by = {each: api.get(f"{PATH}/{NEW}", f"{user},pages_other{each}").json()["by"] for each in ("", ",pages")}
    assert by == {
        "": None,
        ",pages": dict.fromkeys(("user", "task_id", "map_index", "iteration")) | {"dag_id": "pages", "run_id": "r"},
    }


@pytest.mark.parametrize(
    ("content", "says"), [("{", "expected JSON"), ({"model_name": "another"}, "'another', expected 'pages_model'")]
)
def test_a_damaged_report_is_named_to_those_who_may_see_it(
    api: Api, folders: Any, report: BacktestReport, content: Any, says: str
) -> None:
    text = content if isinstance(content, str) else json.dumps({**report.to_dict(), **content})
    api.store.write_text(f"{folders[NEW]}/backtest.json", text)
    answer = api.get(PATH).json()
    assert [each["id"] for each in answer["entries"]] == [OLD]
    (problem,) = answer["problems"]
    assert f"{folders[NEW]}/backtest.json" in problem and says in problem
    assert api.get(f"{PATH}/{NEW}").status_code == 502
    if isinstance(content, dict):
        other = json.dumps({**report.to_dict(), **content, "dag_id": "pages_other"})
        api.store.write_text(f"{folders[NEW]}/backtest.json", other)
        assert api.get(PATH, f"only:{DAG}").json()["problems"] == []
        assert api.get(f"{PATH}/{NEW}", f"only:{DAG}").status_code == 404


def test_the_chosen_policy_is_downloaded_and_no_link_is_followed(api: Api, folders: Any, tmp_path: Path) -> None:
    answer = api.get(f"{PATH}/{NEW}/policy", "viewer")
    assert answer.headers["content-disposition"] == "attachment; filename=policy.json"
    assert answer.json() == RetrainingPolicy(when=Drift()).to_dict()
    refused = api.get(f"{PATH}/{OLD}/policy")
    assert (refused.status_code, refused.json()["detail"]) == (404, f"back-test '{OLD}' has no policy.json")
    policy = Path(folders[NEW].removeprefix("file://")) / "policy.json"
    policy.unlink()
    (tmp_path / "secret").write_text("secret")
    policy.symlink_to(tmp_path / "secret")
    refused = api.get(f"{PATH}/{NEW}/policy")
    assert (refused.status_code, "leads out of" in refused.json()["detail"]) == (502, True)
