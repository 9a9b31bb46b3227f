"""Skew through the API: comparisons over time, what was decided about them, and one of them with its histograms."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from web.conftest import WINDOWS, Api

pytestmark = pytest.mark.runtime

DAG = "pages_skew"
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def runs(comparisons: list[Any]) -> list[Any]:
    return comparisons


@pytest.fixture
def report_path(api: Api, runs: list[Any]) -> Any:
    """The path of the report of a run."""
    return lambda number: api.artifact_path("drift", "skew", runs[number])


def test_timeline_has_every_comparison_and_decision(api: Api, runs: list[Any]) -> None:
    timeline = api.get(f"/api/dags/{DAG}/skew", "viewer").json()
    assert (timeline["total_entries"], len(timeline["entries"])) == (5, 5)
    assert [check["run_id"] for check in timeline["entries"]] == [run.run_id for run in runs]
    assert [check["verdict"] for check in timeline["entries"]] == [
        "stable", "drift", "drift", "pipeline_fault", "insufficient",
    ]  # fmt: skip
    decisions = [check["decision"] for check in timeline["entries"]]
    assert [(each["outcome"], each["why"]) for each in decisions] == [
        ("refused", "verdict"),
        ("requested", None),
        ("refused", "in_flight"),
        ("refused", "pipeline_fault"),
        ("refused", "verdict"),
    ]
    assert decisions[1]["reason"].startswith("size drifted from")
    assert runs[1].run_id in decisions[2]["reason"]
    assert "word (new_category)" in decisions[3]["reason"]
    held = [(each["condition"], each["forbids"]) for each in decisions[3]["conditions"] if each["held"]]
    assert held == [("pipeline_fault", True)]
    assert decisions[1]["window_end"] == "2026-01-19T00:00:00+00:00"
    drifted = timeline["entries"][1]
    assert (drifted["rows_current"], drifted["rows_reference"], drifted["drifted"]) == (1200, 800, ["size"])
    assert (drifted["window_start"], drifted["window_end"]) == ("2026-01-12T00:00:00Z", "2026-01-19T00:00:00Z")
    assert timeline["source"]["model"] is None
    assert [each["notified"] for each in decisions] == [[], ["request"], [], [], []]
    assert timeline["sources"][0]["checks"] == 5


def test_feature_values_are_in_comparison_order(api: Api, runs: list[Any]) -> None:
    timeline = api.get(f"/api/dags/{DAG}/skew").json()
    assert HOSTILE in timeline["features"]
    scores, thresholds = timeline["features"]["size"]
    assert len(scores) == len(thresholds) == 5
    above = [score > threshold for score, threshold in zip(scores[:3], thresholds[:3], strict=True)]
    assert above == [False, True, True]
    newest = api.get(f"/api/dags/{DAG}/skew?limit=2&offset=1").json()
    assert [check["run_id"] for check in newest["entries"]] == [run.run_id for run in runs[2:4]]
    assert newest["features"]["size"][0] == scores[2:4]


def test_feature_details_come_from_the_reports(api: Api, runs: list[Any]) -> None:
    points = api.get(f"/api/dags/{DAG}/skew/feature?feature=size").json()["entries"]
    assert [point["drifted"] for point in points[:3]] == [False, True, True]
    assert points[0]["p_value"] > 0.01 > points[1]["p_value"]
    assert points[1]["cause"] == "covariate_shift"
    assert (points[1]["measure"], "population_stability_index" in points[1]["scores"]) == ("distance", True)
    assert "in the reference" in points[1]["summary"]
    unknown = api.get(f"/api/dags/{DAG}/skew/feature?feature=no_such").json()["entries"]
    assert {point["state"] for point in unknown} == {"not_compared"}


def test_deleted_report_leaves_its_scores_with_a_note(api: Api, runs: list[Any], report_path: Any) -> None:
    from airflow_hops.web.skew import report as skew_reports

    with api.without(api.folder("drift", "skew", runs[2])):
        skew_reports._reports.clear()
        points = api.get(f"/api/dags/{DAG}/skew/feature?feature=size").json()["entries"]
        assert [point["state"] for point in points[:4]] == ["compared", "compared", "deleted", "compared"]
        assert "was deleted" in points[2]["detail"]
        assert api.get(f"/api/dags/{DAG}/skew").json()["entries"][2]["verdict"] == "drift"
        api.refused(f"{report_path(2)}/skew", 410)


def test_one_comparison_has_figures_and_a_feature_of_it_both_histograms(api: Api, report_path: Any) -> None:
    report = api.get(f"{report_path(1)}/skew").json()
    assert (report["verdict"], report["rows_current"], report["row_skew"]) == ("drift", 1200, None)
    assert {"maybe", "large"} <= set(report["unmatched"])
    assert "histogram" not in report["features"][0]
    assert api.get(f"{report_path(1)}/skew?features=false").json() == {**report, "features": []}
    size = api.get(f"{report_path(1)}/skew/feature?feature=size").json()
    assert (size["drifted"], size["cause"]) == (True, "covariate_shift")
    for side in (2, 3):
        assert sum(bucket[side] for bucket in size["histogram"]) == pytest.approx(1, abs=0.01)
    assert all(low <= high for low, high, *_ in size["histogram"])
    word = api.get(f"{report_path(3)}/skew/feature?feature=word").json()
    assert word["cause"] == "new_category"
    assert {value for value, *_ in word["histogram"]} >= {"never", "<script>alert(1)</script>"}
    assert api.get(f"{report_path(1)}/skew/feature?feature={quote(HOSTILE)}").json()["name"] == HOSTILE


def test_report_lists_most_important_features_first() -> None:
    from airflow_hops.web.skew.report import describe_comparison

    none = dict.fromkeys(("p_value", "missing_reference", "missing_current", "missing_p_value", "cause", "detail"))
    calm = {**none, "measure": "distance", "score": 0.04, "threshold": 0.05, "drifted": False, "scores": {}}
    fault = {**calm, "score": 0.02, "drifted": True, "cause": "unit_change", "detail": "kilo in 4% of the rows"}
    fault |= {"summary": "median 4, 5 in the reference", "effect": 0.06, "effect_signed": -0.05}
    report = {
        **{"verdict": "pipeline_fault", "rows_reference": 9, "rows_current": 9, "min_rows": 5},
        "reference": {"model": "m", "version": 3},
        **{"features": {"calm": calm, "far": {**calm, "drifted": True}, "fault": fault}, "drifted": ["fault", "far"]},
        **{"attribution": {"problem": "binary", "effects": {}}, "notes": ["no windows"]},
    }
    result = describe_comparison(report)
    assert [each.name for each in result.features] == ["fault", "far", "calm"]
    assert (result.model, result.version) == ("m", 3)
    first, _, last = result.features
    assert (first.summary, first.effect, first.effect_signed) == ("median 4, 5 in the reference", 0.06, -0.05)
    assert (last.summary, last.effect_signed, result.problem, result.notes) == (None, None, "binary", ["no windows"])


def test_a_comparison_that_failed_is_on_the_timeline_with_its_message(
    api: Api, runs: list[Any], brief_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert api.get(f"/api/dags/{DAG}/skew").json()["failures"] == []
    run = brief_run(DAG, {"reference": {"uri": "file:///gone"}, "window": {**WINDOWS[0], "window": [None, None]}})
    result = api.get(f"/api/dags/{DAG}/skew").json()
    (failure,) = result["failures"]
    task = {"dag_id": DAG, "run_id": run.run_id, "task_id": "drift", "map_index": -1, "iteration": -1}
    assert failure["task"] == task
    assert "input 'reference': expected an artifact" in failure["message"]
    assert len(result["entries"]) == len(runs)
    run = brief_run(DAG, {})  # The window is not there: the comparison does not get its turn.
    monkeypatch.setattr("airflow_hops.web.skew.routes._MOST", 1)
    result = api.get(f"/api/dags/{DAG}/skew").json()
    (failure,) = result["failures"]
    assert (failure["task"]["run_id"], failure["task"]["task_id"]) == (run.run_id, "drift")
    assert (failure["message"], result["total_failures"]) == ("it did not run, since a task before it failed", 2)
    result = api.get(f"/api/dags/{DAG}/skew", "taskless").json()
    unknown = "whether monitors failed, because you may not read tasks of pages_skew"
    assert (len(result["entries"]), result["failures"], result["problems"]) == (len(runs), [], [unknown])


def test_pipeline_without_comparison_shows_how_to_start(api: Api) -> None:
    watched = api.get("/api/dags/pages_training/skew").json()
    assert (watched["entries"], watched["total_entries"]) == ([], 0)
    assert [(each["dag_id"], each["model"]) for each in watched["sources"]] == [("pages_monitoring", "pages_model")]
    assert api.get("/api/dags/pages_training/skew", "only:pages_training").json()["sources"] == []
    assert api.get("/api/dags/pages/skew").json()["sources"] == []
