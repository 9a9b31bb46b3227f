"""The back-tests of a model: which policy earns most at which price, and what each decided."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.replay.core.backtest import BacktestReport
from tests.extensions.replay.written_backtests import made_up_report, remove_backtest, write_backtest
from ui.accessibility import expect_fits, grave_violations
from ui.conftest import OpenPage, Site, follow, place_at_rest

pytestmark = [pytest.mark.runtime, pytest.mark.spark]
DAG, MODEL = "flights_training", "flights"
PAGE = f"plugin/hops/models/{MODEL}?dag={DAG}&tab=backtests"
DAMAGED, MADE_UP = "20991101T101112Z-1a2b", "20991102T101112Z-3c4d"


@pytest.fixture
def report(site: Site) -> Iterator[BacktestReport]:
    """The newest back-test; one before it is damaged. Nothing is left of them."""
    store = ArtifactStore(json.loads(site.environment["AIRFLOW_CONN_HOPS_DEFAULT"])["extra"]["store"])
    report = made_up_report(DAG, MODEL)
    folders = [write_backtest(store, each, report) for each in (DAMAGED, MADE_UP)]
    store.write_text(f"{folders[0]}/backtest.json", "{}")
    yield report
    for folder in folders:
        remove_backtest(store, folder)


def _policies(page: Page) -> Any:
    return page.get_by_role("table", name="Policies").locator("tbody tr[data-index]")


def test_policies_are_compared_at_a_price_and_their_decisions_opened(
    site: Site, report: BacktestReport, open_page: OpenPage
) -> None:
    page = open_page(PAGE, theme="dark", height=1800)
    expect(page.get_by_text("1 back-test cannot be read")).to_be_visible()
    expect(page.get_by_text(report.notes[0])).to_be_visible()
    rows = _policies(page)
    expect(rows).to_have_count(len(report.policies) + 1)
    expect(rows.first).to_contain_text(report.chosen)
    expect(rows.first.get_by_label("earns most at a price of 0.001")).to_be_visible()
    expect(rows.last).to_contain_text("best in hindsight")
    expect(page.get_by_text(re.compile("^weekly earns most up to .* per training, .*, never beyond"))).to_be_visible()
    page.get_by_role("spinbutton", name="Price of a training").fill("0.1")
    expect(rows.first).to_contain_text("never")
    expect(rows.nth(len(report.policies) - 1)).to_contain_text("weekly")
    expect(rows.last).to_contain_text("best in hindsight")
    expect(page).to_have_url(re.compile("price=0.1"))
    page.get_by_role("button", name="0.001, as in the report").click()
    monthly = report.policies[1]
    rows.filter(has_text=monthly.name).press("Enter")
    drawer = page.get_by_role("dialog", name=monthly.name)
    decisions = drawer.get_by_role("table", name="Decisions").locator("tbody tr[data-index]")
    decisions.filter(has_text="promoted").first.click()
    asked = monthly.retrainings[0]
    for text in (asked.reason, asked.gate[0], "retrained, promoted: gain 0.0", f"Candidate {asked.candidate}, trained"):
        expect(drawer.get_by_text(text).first).to_be_visible()
    drawer.get_by_role("button", name="Close").click()
    expect(drawer).to_have_count(0)
    rejected = next(each for each in report.policies[3].retrainings if not each.promoted)
    _click_decision(page, report, 3, rejected.at)
    expect(page.get_by_role("dialog", name="drift")).to_contain_text("retrained, rejected: gain 0.0")
    page.set_viewport_size({"width": 390, "height": 844})
    time = report.policies[1].retrainings[0].at.replace("+", "%2B")
    follow(page, f"{site.url}/{PAGE}&policy=monthly&at={time}")
    expect(page.get_by_role("dialog", name="monthly").get_by_role("list")).to_be_visible()
    assert grave_violations(page, "dark") == []
    page.get_by_role("dialog", name="monthly").get_by_role("button", name="Close").click()
    expect(rows.first).to_be_visible()
    assert grave_violations(page, "dark") == []
    expect_fits(page)


def _click_decision(page: Page, report: BacktestReport, lane: int, time: str) -> None:
    """Clicks the mark of a decision below the curves."""
    chart = place_at_rest(page.get_by_role("img", name=re.compile("^AUC over time by policy")).locator("canvas").first)
    first, tick, last = map(datetime.fromisoformat, (report.candidates[0].end, time, report.ticks[-1]))
    x = 190 + (chart["width"] - 190 - 16) * (tick - first) / (last - first)
    page.mouse.click(chart["x"] + x, chart["y"] + 310 + 26 * (lane + 0.5))
