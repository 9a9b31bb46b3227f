"""The overview of a pipeline, over the demo's Airflow."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from ui.conftest import OpenPage, Site, follow

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

DAG, MONITOR, MODEL = "flights_training", "flights_monitoring", "flights"
WHY = "eval: auc 0.51, at least 0.6 is asked for <img src=x>"


def test_overview_summarises_the_pipeline(site: Site, open_page: OpenPage) -> None:
    result = site.get(f"/hops/api/dags/{DAG}/overview")
    page = open_page(f"plugin/hops/overview?dag={MONITOR}")
    expect(page).to_have_url(re.compile(f"/plugin/hops/overview[?]dag={DAG}$"))
    expect(page.locator("h1")).to_have_text("Overview")
    model = page.get_by_role("region", name=f"Model {MODEL}")
    expect(model).to_contain_text(f"v{result['pipeline']['model']['champion']['version']}")
    expect(model.get_by_role("group", name=re.compile("^Requests: "))).to_be_visible()
    runs = page.get_by_role("region", name="Last runs").get_by_role("link", name=re.compile("^Run "))
    expect(runs).to_have_count(len(result["runs"]))
    drift = page.get_by_role("region", name="Drift")
    expect(drift.get_by_role("link", name=f"Skew: {result['pipeline']['skew']['verdict']}")).to_be_visible()
    schedule = page.get_by_role("region", name="Schedule")
    expect(schedule).to_contain_text(f"Started by flights_drifted, which {MONITOR} updates")
    decisions = page.get_by_role("region", name="Decisions")
    expect(decisions).to_contain_text("Retraining requested")
    expect(decisions).to_contain_text("Version 1 deployed as champion")
    decisions.get_by_role("link", name="All decisions").click()
    expect(page).to_have_url(re.compile(f"/models/{MODEL}[?]dag={DAG}&tab=decisions"))


def test_refused_candidates_and_pending_approvals_are_shown(site: Site, open_page: OpenPage) -> None:
    result: dict[str, Any] = site.get(f"/hops/api/dags/{DAG}/overview")
    detail: dict[str, Any] = site.get(f"/hops/api/dags/{DAG}/models/{MODEL}")
    run = result["runs"][0]
    task = {"dag_id": DAG, "run_id": run["run_id"], "task_id": "evaluate", "map_index": -1, "iteration": -1}
    run["refusals"] = [{"task_id": "evaluate", "map_index": -1, "iteration": -1, "verdict": "not blessed", "why": WHY}]
    candidate = {"at": run["ended_at"], "why": WHY, "judged": {**task, "kind": "evaluation"}, "metrics": {}}
    question = {
        "state": "waiting", "subject": "Data does not fit its schema", "options": [], "assigned_to": ["ann"],
        "default": None, "asked_at": run["ended_at"], "deadline": None, "choice": None, "answered_by": None,
        "answered_at": None, "note": "", "may_answer": True, "schema_changed": False,
    }  # fmt: skip
    asked = {"stage": "validation", "question": question, "task": {**task, "task_id": "validate"}}
    proposed = {
        "validation": {**task, "kind": "anomalies"}, "at": run["ended_at"], "features_total": 412,
        "features": ["", *"abcdefghijklmno"],
    }  # fmt: skip
    checks = [{"at": run["ended_at"], "verdict": "stable", "rows": 9, "drifted": count} for count in (0, 1, 1, 3)]
    overview = {**result, "waiting": [asked], "proposed": [proposed], "skew": checks}
    refused = {**detail, "refused": [{**candidate, "champion_version": 1}], "may_change": True}

    def answer(route: Route) -> None:
        body = overview if route.request.url.endswith("/overview") else refused
        route.fulfill(content_type="application/json", body=json.dumps(body))

    page = open_page(own=True)
    page.route(re.compile(f"/hops/api/dags/{DAG}/(overview|models/{MODEL})$"), answer)
    follow(page, f"{site.url}/plugin/hops/overview?dag={DAG}")
    waits = page.get_by_role("region", name="Waiting for a person")
    expect(waits).to_contain_text("Assigned to ann.")
    expect(waits).to_contain_text(": the data set as a whole, a, b, c, d, e, f, g, h, i and 402 more.")
    expect(waits.get_by_role("link", name="Answer")).to_have_attribute("href", re.compile("/schema[?].*artifact=anom"))
    runs = page.get_by_role("region", name="Last runs")
    expect(runs.get_by_role("link", name=f"Run {run['run_id']}")).to_contain_text("not blessed")
    expect(runs).to_contain_text(f"evaluate: {WHY}")
    expect(page.get_by_role("img", name=re.compile("in the last 4 checks$"))).to_be_visible()
    decisions = page.get_by_role("region", name="Decisions")
    expect(decisions).to_contain_text("Candidate refused, and not deployed")
    expect(decisions).to_contain_text(WHY)
    expect(decisions.get_by_role("link", name="Its figures beside those of version 1")).to_have_attribute(
        "href", re.compile("/tasks/evaluate/plugin/hops-task$")
    )
    grey = page.get_by_role("button", name=re.compile("^Set traffic ?.Traffic is shared"))
    expect(grey).to_have_attribute("aria-disabled", "true")
    grey.focus()
    expect(page.get_by_role("tooltip")).to_contain_text("there is no challenger")
    grey.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
