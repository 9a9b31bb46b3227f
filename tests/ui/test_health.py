"""Ten-second questions: what the first screen of 1280 × 800 says to whom, and after how many clicks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import health_world
import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect
from world import REPOSITORY

from demo.services import free_port
from ui.accessibility import COLOURS, expect_fits, grave_violations
from ui.conftest import PASSWORDS, OpenPage, Site, Windows, expect_at_rest, serving, users

SCREEN = {"width": 1280, "height": 800}
ROWS = f"{health_world.SCORED_ROWS:,}"
LIST, OVERVIEW = "plugin/hops", "plugin/hops/overview?dag={dag}"
MODEL = "plugin/hops/models/stock?dag=stock_training"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, pages_built: None) -> Iterator[Site]:
    """The pages over pipelines of every health."""
    home, port = tmp_path_factory.mktemp("health"), free_port()
    (home / "passwords.json").write_text(json.dumps(PASSWORDS))
    url = f"http://127.0.0.1:{port}/behind/a-proxy"
    settings = {
        **os.environ,
        **health_world.connections(home, free_port()),
        **users(url, home / "passwords.json"),
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "PYTHONPATH": str(REPOSITORY),
    }
    subprocess.run([sys.executable, health_world.__file__, str(home)], env=settings, check=True)
    with serving(port, settings, home / "api.log"):
        yield Site(url, home, PASSWORDS, settings)


@pytest.fixture(scope="module")
def windows(browser: Browser) -> dict[str, Windows]:
    """The browser's windows by user, other than those of the demo's site."""
    return {}


def row(page: Page, name: str) -> Locator:
    return page.locator("tbody tr[data-index]").filter(has=page.get_by_role("link", name=name, exact=True))


def seen(element: Locator, *texts: str | re.Pattern[str]) -> None:
    """Expects an element with some texts, all of it on the first screen."""
    for text in texts:
        expect(element).to_contain_text(text)
    expect(element).to_be_in_viewport(ratio=1)


def test_list_tells_what_is_broken_why_and_what_is_fine(open_page: OpenPage) -> None:
    """On call: no click. Team lead: no click. The worst comes first, and a count is a filter."""
    page = open_page(LIST, **SCREEN)
    seen(row(page, "eta_training"), "broken", re.compile(r"the server does not answer since \d+:\d\d"), "decided: v2")
    seen(row(page, "fraud_training"), "broken", "train failed 3 hours ago", "out of memory in epoch 3")
    seen(row(page, "price_training"), "not known", "because the record of price cannot be read")
    gone = "because the operator of fraud_monitor: skew cannot be imported: airflow_hops.operators.gone.GoneOperator"
    seen(row(page, "fraud_monitor"), "not known", gone)
    seen(row(page, "churn_training"), "waits for you", "a question waits for you since ")
    seen(row(page, "stock_training"), "fine", f"{ROWS} rows scored", "no drift", "stock v2")
    counts = page.get_by_role("group", name="Health").get_by_role("button")
    expect(counts).to_have_text(["3 need you", "2 not known", "2 fine"])
    names = page.locator("tbody tr[data-index] td:first-child a[title]")
    order = ["eta_training", "fraud_training", "churn_training", "fraud_monitor", "price_training"]
    expect(names).to_have_text([*order, "stock_scoring", "stock_training"])
    counts.first.click()
    expect(names).to_have_text(["eta_training", "fraud_training", "churn_training"])
    page.reload()
    expect(names).to_have_count(3)
    counts.first.click()
    expect(names).to_have_count(7)
    expect(page).not_to_have_url(re.compile("health="))


def test_pipeline_is_not_counted_as_fine_before_its_server_has_answered(open_page: OpenPage) -> None:
    page = open_page(LIST, **SCREEN)
    held: list[Route] = []
    page.route("**/pipelines/activity*", lambda route: held.append(route))
    page.reload()
    counts = page.get_by_role("group", name="Health").get_by_role("button")
    expect(counts).to_have_text(["2 need you", "2 not known", "3 not known yet"])
    expect(row(page, "stock_training")).not_to_contain_text("fine")
    for route in list(held):
        route.continue_()
    expect(counts).to_have_text(["3 need you", "2 not known", "2 fine"])


def test_overview_begins_with_health_and_leads_to_its_cause(open_page: OpenPage) -> None:
    """On call: one click for the whole reason, two for the run; what drifts is listed below what waits."""
    page = open_page(LIST, **SCREEN)
    row(page, "fraud_training").get_by_role("link", name="fraud_training", exact=True).click()
    health = page.get_by_role("region", name="Health")
    seen(health, "broken", "train failed 3 hours ago", health_world.WHY)
    expect(health.get_by_role("link").first).to_have_attribute(
        "href", re.compile("/dags/fraud_training/runs/scheduled__")
    )
    page.goto(page.url.replace("fraud", "churn"))
    seen(
        health, "waits for you", health_world.SUBJECT, "warning", re.compile(r"drift since \w+: dewp, temp and 2 more")
    )
    page.goto(page.url.replace("churn", "eta"))
    seen(health, "broken", "the server does not answer since")


def test_unreadable_record_is_not_taken_for_one_that_loads(open_page: OpenPage) -> None:
    page = open_page(OVERVIEW.format(dag="price_training"), problems_expected=True, **SCREEN)
    decisions = page.get_by_role("region", name="Decisions")
    expect(decisions).to_contain_text("Not known: the record of price cannot be read.")
    expect_at_rest(page)
    expect(decisions).not_to_contain_text("No decisions yet")
    page.goto(page.url.replace("price", "fraud"))
    drift = page.get_by_role("region", name="Drift")
    expect(drift).to_contain_text("Not known, because an operator cannot be imported")


def test_pipelines_are_cards_on_a_phone(open_page: OpenPage) -> None:
    page = open_page(LIST, width=390, height=844)
    seen(row(page, "eta_training"), "broken", "success", "decided: v2 100%")
    page.get_by_label("Sort by").select_option("run")
    seen(page.locator("tbody tr[data-index]").first, "fraud_training")
    page.get_by_role("button", name="Descending: sort ascending").click()
    expect_fits(page)


def test_scored_windows_stand_where_an_endpoint_would(open_page: OpenPage) -> None:
    """Overview shows the last window, its rows and what is wrong with it; the tab Scoring, those before."""
    page = open_page(OVERVIEW.format(dag="stock_training"), **SCREEN)
    scoring = page.get_by_role("region", name="Scoring")
    seen(scoring, "stock_scoring: next window due in", "success", ROWS, "written (write)", "v2")
    expect(scoring.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_role("region", name="Endpoint")).to_have_count(0)
    page.get_by_role("link", name="stock", exact=True).click()
    seen(page.get_by_role("tab", name="Scoring", selected=True))
    for gone in ("Serving", "Log"):
        expect(page.get_by_role("tab", name=gone, exact=True)).to_have_count(0)
    expect(scoring.locator("tbody tr")).to_have_count(3)
    expect(scoring.locator("tbody tr").nth(1).locator("td").nth(3)).to_have_text("7")


@pytest.mark.parametrize("path", [LIST, OVERVIEW.format(dag="churn_training"), MODEL])
def test_health_is_accessible_in_both_themes_and_on_a_phone(open_page: OpenPage, path: str) -> None:
    problems: list[str] = []
    for theme, rules, size in (("light", None, SCREEN), ("dark", COLOURS, {"width": 390, "height": 844})):
        page = open_page(path, theme=theme, **size)
        expect(page.locator("main h1")).to_be_attached()
        expect_at_rest(page)
        expect(page.get_by_role("status", name="Loading from the server")).to_have_count(0)
        problems += grave_violations(page, theme, rules)
    assert problems == []
    expect_fits(page)
