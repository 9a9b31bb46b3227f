"""The runs page and the tab on a task instance, with the trainings of the demo."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from ui.conftest import OpenPage, Site, expect_redrawn

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

DAG = "flights_training"
RUNS = f"plugin/hops/runs?dag={DAG}"


@pytest.fixture(scope="module")
def trainings(site: Site) -> list[dict[str, Any]]:
    """The training runs, as the API lists them: the newest first."""
    result: list[dict[str, Any]] = site.get(f"/hops/api/dags/{DAG}/training-runs")["entries"]
    assert len(result) >= 2
    return result


def _rows(page: Page) -> Any:
    return page.get_by_role("table", name="Training runs").locator("tbody tr[data-index]")


def test_runs_are_compared(open_page: OpenPage, trainings: list[dict[str, Any]]) -> None:
    page = open_page(RUNS)
    expect(page.get_by_text("mlflow ui --backend-store-uri")).to_be_visible()
    for index in (0, 1):
        _rows(page).nth(index).get_by_role("checkbox").click()
    page.get_by_role("button", name="Compare").click()
    expect(page).to_have_url(re.compile("(?=.*view=curves)(?=.*compare=.*compare=)"))
    expect(page.get_by_role("img", name="loss of 2 runs by step")).to_be_visible()
    expect_redrawn(page.locator("main [role=img] canvas"))
    page.get_by_role("button", name="Enlarge AUC").click()
    expect(page).to_have_url(re.compile("figure=auc"))
    page.get_by_text("Differences", exact=True).click()
    differences = page.get_by_role("table", name="Differences of the selected runs")
    row = differences.get_by_role("row").filter(has=page.get_by_role("cell", name=re.compile("^val AUC")))
    for run in trainings[:2]:
        expect(row).to_contain_text(f"{run['metrics']['val_auc']:.5g}"[:6])
    expect(differences.get_by_role("row", name=re.compile("^Data"))).to_be_visible()
    expect(differences.get_by_role("row", name=re.compile("^Libraries: the same"))).to_be_visible()
    expect(page.get_by_role("region", name="Code")).to_contain_text("No difference in")
    expect(page.get_by_role("img", name="loss of 2 runs by step")).to_be_visible()


def test_run_shows_its_metrics_and_links(site: Site, open_page: OpenPage, trainings: list[dict[str, Any]]) -> None:
    run = trainings[-1]
    page = open_page(RUNS)
    _rows(page).get_by_title(run["name"]).click()
    expect(page).to_have_url(re.compile(f"run={run['run_id']}"))
    drawer = page.get_by_role("dialog")
    expect(drawer.get_by_role("table", name="Metrics")).to_contain_text("val AUC")
    epochs = site.get(f"/hops/api/dags/{DAG}/training-runs/{run['run_id']}")["slowest"]
    for epoch in (epochs[-1], epochs[0]):
        drawer.get_by_label("Rows and seconds by rank in epoch").select_option(str(epoch["epoch"]))
        ranks = drawer.get_by_role("table", name=f"Ranks in epoch {epoch['epoch']}").locator("tbody tr")
        expect(ranks).to_have_count(2)
        for number, rank in enumerate(epoch["ranks"]):
            expect(ranks.nth(number)).to_contain_text(rank["host"])
            expect(ranks.nth(number)).to_contain_text(f"{rank['row_count']:,}")
    version = run["versions"][0]
    expect(drawer.get_by_role("link", name=f"Model {version['name']} v{version['version']}")).to_be_visible()
    expect(drawer.get_by_role("link", name="Lineage")).to_have_attribute("href", re.compile("artifact=model"))
    page.go_back()
    expect(page.get_by_role("dialog")).to_have_count(0)
