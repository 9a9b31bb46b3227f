"""The list of pipelines, the tab on a DAG run, and the links on tasks, over the demo's Airflow."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, Route, expect

from ui.conftest import OpenPage, Site

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

DAG = "flights_training"


def _pipeline(site: Site) -> dict[str, Any]:
    result: dict[str, Any] = site.get(f"/hops/api/pipelines?name={DAG}")["entries"][0]
    return result


def _row(page: Page, name: str) -> Any:
    return page.locator("tbody tr[data-index]").filter(has=page.get_by_role("link", name=name, exact=True))


def test_row_shows_the_state_of_a_pipeline(site: Site, open_page: OpenPage) -> None:
    page, known = open_page("plugin/hops", theme="dark"), _pipeline(site)
    row = _row(page, DAG)
    champion, metric = known["model"]["champion"], known["model"]["metric"]
    expect(row).to_contain_text(f"{known['model']['name']} v{champion['version']}")
    expect(row).to_contain_text(f"{metric['name']} {metric['value']:.4g}")
    expect(row.get_by_role("link", name=f"Run {known['last_run']['run_id']}")).to_contain_text("success")
    expect(row.get_by_role("img", name="11 of 11 stages ended")).to_be_visible()
    expect(row.get_by_role("link", name=f"Skew: {known['skew']['verdict']}")).to_be_visible()
    expect(row).to_contain_text(known["retraining"]["reason"] or known["retraining"]["triggered_by"])
    traffic = site.get(f"/hops/api/pipelines/activity?dag_id={DAG}")[DAG]["traffic"]
    shares = " · ".join(
        f"v{v['version']} {v['traffic_percent']:g}%" for v in traffic["versions"] if v["traffic_percent"]
    )
    expect(row.get_by_role("img", name=f"Traffic: {shares}", exact=True)).to_be_visible()
    assert sum(version["requests"] for version in traffic["versions"]) > 0
    never = _row(page, "fashion_mnist")
    expect(never).to_contain_text("never run")
    expect(never).to_contain_text("no version serves yet")
    expect(page.locator("html")).to_have_class("dark")


def test_address_stores_search_filter_and_order_of_pipelines(open_page: OpenPage) -> None:
    page = open_page("plugin/hops?sort=-pipeline")
    names = page.locator("tbody tr[data-index] td:first-child a").filter(
        has_text=re.compile("^f.*(ts_training|_mnist)$")
    )
    expect(names).to_have_text([DAG, "fashion_mnist"])
    page.get_by_role("button", name="Pipeline", exact=True).click()
    expect(names).to_have_text(["fashion_mnist", DAG])
    page.get_by_role("button", name="Last run").last.click()
    expect(names).to_have_text([DAG, "fashion_mnist"])
    expect(page).to_have_url(re.compile("sort=-run"))
    page.get_by_role("search").get_by_role("button", name="Last run").click()
    page.get_by_role("menuitemcheckbox", name="never run").click()
    page.keyboard.press("Escape")
    expect(names).to_have_text(["fashion_mnist"])
    expect(page.get_by_text("4 of 5")).to_be_visible()
    page.get_by_label("Search pipelines and models").fill("flights_tr")
    expect(page.get_by_text("No pipeline matches")).to_be_visible()
    page.reload()
    expect(page.get_by_text("No pipeline matches")).to_be_visible()
    expect(page.get_by_label("Search pipelines and models")).to_have_value("flights_tr")


def _answer(page: Page, change: Any) -> None:
    """Has the list hold what is not there: the API's answer is changed on its way."""

    def answer(route: Route) -> None:
        result = route.fetch().json()
        change(result["entries"])
        route.fulfill(json=result)

    page.route("**/hops/api/pipelines?*", answer)


def test_failed_running_and_hostile_pipelines_are_listed(open_page: OpenPage) -> None:
    page = open_page("plugin/hops/nowhere", own=True)
    hostile = "<img src=x onerror=alert(1)>"

    def many(pipelines: list[dict[str, Any]]) -> None:
        real = json.dumps(next(each for each in pipelines if each["dag_id"] == DAG))
        failed, running, refused = json.loads(real), json.loads(real), json.loads(real)
        failed.update(dag_id="a_failed", display_name=hostile)
        failed["last_run"].update(
            state="failed",
            failure={"task_id": "train", "map_index": -1, "iteration": -1, "verdict": "failed", "why": f"it {hostile}"},
        )
        running.update(dag_id="a_running", display_name="a_running")
        running["last_run"].update(state="running", ended_at=None)
        running["last_run"]["stages"][6].update(state="running", ended=0)
        refused.update(dag_id="a_refused", display_name="a_refused")
        refusal = {
            "task_id": "evaluate",
            "map_index": -1,
            "iteration": -1,
            "verdict": "not blessed",
            "why": f"AUC {hostile}",
        }
        refused["last_run"].update(state="success", refusals=[refusal])
        others = [{**json.loads(real), "dag_id": f"p{n:03}", "display_name": f"p{n:03}"} for n in range(200)]
        pipelines[:] = [failed, running, refused, *others]

    _answer(page, many)
    page.get_by_role("link", name="Pipelines", exact=True).first.click()
    expect(page.get_by_text("203 pipelines")).to_be_visible()
    expect(_row(page, hostile)).to_contain_text(f"train: it {hostile}")
    expect(_row(page, "a_running")).to_contain_text("10/11 train")
    expect(_row(page, "a_refused")).to_contain_text(f"evaluate: AUC {hostile}")
    expect(_row(page, "a_refused").get_by_role("link", name=re.compile("^Run "))).to_have_text("not blessed")
    assert page.locator("tbody tr[data-index]").count() < 60
    page.get_by_role("row", name=re.compile("a_running")).focus()
    page.keyboard.press("End")
    expect(_row(page, "p199")).to_be_visible()
    assert page.locator("img[src=x]").count() == 0


def test_user_without_pipelines_sees_how_to_start(open_page: OpenPage) -> None:
    page = open_page("plugin/hops/nowhere", own=True)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    _answer(page, lambda pipelines: pipelines.clear())
    page.get_by_role("link", name="Pipelines", exact=True).first.click()
    expect(page.get_by_role("heading", name="No pipelines yet")).to_be_visible()
    page.get_by_role("button", name="Copy the pipeline").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = page.evaluate("navigator.clipboard.readText()")
    made: dict[str, Any] = {}
    exec(copied, made)
    assert made["statistics"].source == "/data/*.csv"


def test_run_shows_its_stages_and_their_artifacts(site: Site, open_page: OpenPage) -> None:
    run_id = _pipeline(site)["last_run"]["run_id"]
    page = open_page(f"dags/{DAG}/runs/{quote(run_id, safe='')}/plugin/hops-run", theme="dark", height=1300)
    rows = page.locator("tbody tr[data-index]")
    expect(rows).to_have_count(11)
    stages = site.get(f"/hops/api/dags/{DAG}/runs/{quote(run_id, safe='')}/stages")["stages"]
    expect(rows.locator("td:first-child a")).to_have_text([stage["task_id"] for stage in stages])
    prepare = stages[1]["artifacts"][0]
    counts = prepare["rows"]["flights"]
    row = rows.nth(1)
    expect(row).to_contain_text(f"{counts['rows_in']:,} → {counts['rows_out']:,}")
    expect(row).to_contain_text(f"{sum(counts['rejected'].values()):,} rejected")
    expect(row).to_contain_text(prepare["fingerprint"][:10])
    expect(rows.nth(3)).to_contain_text("cached")
    page.get_by_role("button", name="Took").click()
    slowest = max(stages, key=lambda stage: stage["duration_s"])
    expect(rows.locator("td:first-child a").first).to_have_text(slowest["task_id"])
    row = rows.filter(has=page.get_by_role("link", name="prepare", exact=True))
    row.locator("td").nth(3).click()
    panel = page.get_by_role("region", name="The artifact of prepare")
    for reason, count in counts["rejected"].items():
        expect(panel).to_contain_text(f"{count:,} {reason}")
    expect(panel.get_by_role("link", name="snapshot")).to_be_visible()
    page.reload()
    with page.expect_download() as download:
        panel.get_by_role("link", name=re.compile("eval.part-")).first.click()
    assert download.value.path().read_bytes()[:4] == b"PAR1"
    panel.get_by_role("link", name="Lineage").click()
    expect(page).to_have_url(re.compile(r"/plugin/hops/lineage\?dag=flights_training&artifact=examples"))


def test_links_of_a_task_lead_to_its_pages(site: Site, open_page: OpenPage) -> None:
    run_id = _pipeline(site)["last_run"]["run_id"]
    instance = f"dags/{DAG}/{{}}/{quote(run_id, safe='')}/{{}}/statistics"
    links = site.get(f"/api/v2/{instance.format('dagRuns', 'taskInstances')}/links")["extra_links"]
    if links.get("Data") is None:
        pytest.skip("this site's demo ran before its tasks had links")
    page = open_page(instance.format("runs", "tasks") + "/details")
    page.get_by_role("link", name="Data", exact=True).click()
    expect(page).to_have_url(re.compile(f"/plugin/hops/data[?]dag={DAG}&artifact=statistics"))
    expect(page.locator("h1")).to_have_text("Data")
