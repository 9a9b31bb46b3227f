"""The list of pipelines and the overview of one, over the demo's Airflow."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from ui.conftest import OpenPage, Site, follow

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

DAG, MONITOR, MODEL = "flights_training", "flights_monitoring", "flights"


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
    expect(row).to_contain_text(f"{metric['name'].upper()} {metric['value']:.4g}")
    expect(row.get_by_role("link", name=f"Run {known['last_run']['run_id']}")).to_contain_text("success")
    expect(row.get_by_role("img", name="11 of 11 stages ended")).to_be_visible()
    expect(row).to_contain_text(known["health"][0]["text"])
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
    page.get_by_role("group", name="Health").get_by_role("button", name="not serving yet").click()
    expect(names).to_have_text(["fashion_mnist"])
    page.evaluate("window.requestAnimationFrame = () => 0")  # the router never follows: the address has it by itself
    page.get_by_label("Search pipelines and models").fill("flights_tr")
    expect(page.get_by_text("No pipeline matches")).to_be_visible()
    page.reload()
    expect(page.get_by_text("No pipeline matches")).to_be_visible()
    expect(page.get_by_label("Search pipelines and models")).to_have_value("flights_tr")


def test_long_list_draws_visible_rows_and_leads_to_an_overview(site: Site, open_page: OpenPage) -> None:
    page, real = open_page("plugin/hops/nowhere", own=True, problems_expected=True), _pipeline(site)
    pipelines = [real, *({**real, "dag_id": f"p{number:03}", "display_name": f"p{number:03}"} for number in range(200))]
    answer = {"total_entries": len(pipelines), "entries": pipelines, "problems": []}
    page.route("**/hops/api/pipelines?*", lambda route: route.fulfill(json=answer))
    page.get_by_role("link", name="Pipelines", exact=True).first.click()
    expect(page.get_by_text("201 pipelines")).to_be_visible()
    assert page.locator("tbody tr[data-index]").count() < 60
    expect(page.get_by_role("group", name="Health").get_by_text("200 not known")).to_be_visible()
    page.locator("tbody tr[data-index]").first.focus()
    page.keyboard.press("End")
    expect(_row(page, DAG)).to_be_visible()  # it alone has an answer of its server
    page.keyboard.press("Home")
    expect(_row(page, "p000").get_by_role("link", name="p000")).to_have_attribute("href", re.compile("/overview"))
    follow(page, f"{site.url}/plugin/hops/overview?dag={MONITOR}")
    expect(page).to_have_url(re.compile(f"/plugin/hops/overview[?]dag={DAG}$"))

    result = site.get(f"/hops/api/dags/{DAG}/overview")
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
