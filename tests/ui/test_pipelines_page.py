"""The list of pipelines, over the demo's Airflow."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from ui.conftest import OpenPage, Site

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

DAG = "flights_training"
HOSTILE = "<img src=x onerror=alert(1)>"


def _pipeline(site: Site) -> dict[str, Any]:
    result: dict[str, Any] = site.get(f"/hops/api/pipelines?name={DAG}")["entries"][0]
    return result


def _row(page: Page, name: str) -> Any:
    return page.locator("tbody tr[data-index]").filter(has=page.get_by_role("link", name=name, exact=True))


def test_pipelines_are_listed_with_their_state_and_filtered(site: Site, open_page: OpenPage) -> None:
    page, known = open_page("plugin/hops?sort=-pipeline", theme="dark"), _pipeline(site)
    row = _row(page, DAG)
    champion, metric = known["model"]["champion"], known["model"]["metric"]
    expect(row).to_contain_text(f"{known['model']['name']} v{champion['version']}")
    expect(row).to_contain_text(f"{metric['name']} {metric['value']:.4g}")
    expect(row.get_by_role("link", name=f"Run {known['last_run']['run_id']}")).to_contain_text("success")
    expect(row.get_by_role("img", name="11 of 11 stages ended")).to_be_visible()
    expect(row.get_by_role("link", name=f"Skew: {known['skew']['verdict']}")).to_be_visible()
    expect(row).to_contain_text(known["retraining"]["reason"] or known["retraining"]["triggered_by"])
    traffic = site.get(f"/hops/api/pipelines/activity?dag_id={DAG}")[DAG]["traffic"]
    served = [each for each in traffic["versions"] if each["traffic_percent"]]
    shares = " · ".join(f"v{each['version']} {each['traffic_percent']:g}%" for each in served)
    expect(row.get_by_role("img", name=f"Traffic: {shares}", exact=True)).to_be_visible()
    assert sum(version["requests"] for version in traffic["versions"]) > 0
    never = _row(page, "fashion_mnist")
    expect(never).to_contain_text("never run")
    expect(never).to_contain_text("no version serves yet")
    expect(page.locator("html")).to_have_class("dark")

    names = page.locator("tbody tr[data-index] td:first-child a").filter(
        has_text=re.compile("^f.*(ts_training|_mnist)$")
    )
    expect(names).to_have_text([DAG, "fashion_mnist"])
    page.get_by_role("button", name="Pipeline", exact=True).click()
    expect(names).to_have_text(["fashion_mnist", DAG])
    page.get_by_role("search").get_by_role("button", name="Last run").click()
    page.get_by_role("menuitemcheckbox", name="never run").click()
    page.keyboard.press("Escape")
    expect(names).to_have_text(["fashion_mnist"])
    page.get_by_label("Search pipelines and models").fill("flights_tr")
    expect(page.get_by_text("No pipeline matches")).to_be_visible()
    page.reload()
    expect(page.get_by_text("No pipeline matches")).to_be_visible()
    expect(page.get_by_label("Search pipelines and models")).to_have_value("flights_tr")


def _listed(real: dict[str, Any]) -> list[dict[str, Any]]:
    """Pipelines that there are not: of runs that failed, run and were refused, and 200 more."""

    def like(name: str, shown: str = "", **run: Any) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(json.dumps(real))
        result.update(dag_id=name, display_name=shown or name)
        result["last_run"].update(run)
        return result

    end = {"map_index": -1, "iteration": -1}
    failure = {**end, "task_id": "train", "verdict": "failed", "why": f"it {HOSTILE}"}
    refusal = {**end, "task_id": "evaluate", "verdict": "not blessed", "why": f"AUC {HOSTILE}"}
    running = like("a_running", state="running", ended_at=None)
    running["last_run"]["stages"][6].update(state="running", ended=0)
    return [
        like("a_failed", HOSTILE, state="failed", failure=failure),
        running,
        like("a_refused", state="success", refusals=[refusal]),
        *(like(f"p{number:03}") for number in range(200)),
    ]


def test_failed_running_and_hostile_pipelines_are_listed_or_none(site: Site, open_page: OpenPage) -> None:
    page = open_page("plugin/hops/nowhere", own=True)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    pipelines = _listed(_pipeline(site))

    def answer(route: Route) -> None:
        result = route.fetch().json()
        route.fulfill(json={**result, "entries": pipelines})

    page.route("**/hops/api/pipelines?*", answer)
    page.get_by_role("link", name="Pipelines", exact=True).first.click()
    expect(page.get_by_text("203 pipelines")).to_be_visible()
    expect(_row(page, HOSTILE)).to_contain_text(f"train: it {HOSTILE}")
    expect(_row(page, "a_running")).to_contain_text("10/11 train")
    expect(_row(page, "a_refused")).to_contain_text(f"evaluate: AUC {HOSTILE}")
    expect(_row(page, "a_refused").get_by_role("link", name=re.compile("^Run "))).to_have_text("not blessed")
    assert page.locator("tbody tr[data-index]").count() < 60
    page.get_by_role("row", name=re.compile("a_running")).focus()
    page.keyboard.press("End")
    expect(_row(page, "p199")).to_be_visible()
    assert page.locator("img[src=x]").count() == 0

    pipelines.clear()
    page.reload()
    expect(page.get_by_role("heading", name="No pipelines yet")).to_be_visible()
    page.get_by_role("button", name="Copy the pipeline").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    made: dict[str, Any] = {}
    exec(page.evaluate("navigator.clipboard.readText()"), made)
    assert made["statistics"].source == "/data/*.csv"
