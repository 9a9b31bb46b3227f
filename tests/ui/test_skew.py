"""The Skew page: the demo's comparison, and a season of weekly ones beside it."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import datetime, timedelta
from typing import Any

import pytest
import skew_history
from playwright.sync_api import Locator, Page, expect
from waiting import wait_for

from ui.conftest import OpenPage, Site, follow

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

DAG = "flights_training"
WEEKS = 12


@pytest.fixture(scope="module")
def timeline(site: Site) -> dict[str, Any]:
    """Returns the API's report of a season: six weeks like the reference, then spring, too few rows, a fault."""
    command = [sys.executable, skew_history.__file__, "flights_monitoring", str(WEEKS)]
    made = subprocess.run(command, env=site.environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-3000:]
    result: dict[str, Any] = site.get(f"/hops/api/dags/{DAG}/skew")
    return result


@pytest.fixture
def weeks(timeline: dict[str, Any]) -> list[dict[str, Any]]:
    """The weekly comparisons."""
    return [check for check in timeline["entries"] if "week-" in check["run_id"]]


def _rows(page: Page) -> Locator:
    return page.get_by_role("table", name="Features").locator("tr[data-index]")


def test_features_are_searched_and_cells_open_comparisons(
    site: Site, open_page: OpenPage, timeline: dict[str, Any], weeks: list[dict[str, Any]]
) -> None:
    page = open_page(f"plugin/hops/skew?dag={DAG}", theme="dark")
    newest = timeline["entries"][-1]
    expect(page.get_by_role("heading", level=2)).to_have_text(newest["drifted"][0])
    for place, name in enumerate(newest["drifted"][:3]):
        expect(_rows(page).nth(place)).to_contain_text(name)
    page.get_by_placeholder("Search features").fill("DEW")
    expect(_rows(page)).to_have_count(1)
    _rows(page).first.click()
    expect(page).to_have_url(re.compile("feature=dewp"))
    page.reload()
    expect(page.get_by_role("heading", level=2)).to_have_text("dewp")
    expect(_rows(page)).to_have_count(1)

    follow(page, f"{site.url}/plugin/hops/skew?dag={DAG}&feature=temp")
    strip = page.get_by_role("img", name=re.compile("^temp: drifted in"))

    def first_time() -> datetime:
        return datetime.fromisoformat((strip.locator("title").first.text_content() or "").partition(": ")[0])

    utc = first_time()
    changed = "dispatchEvent(new Event('local-storage'))"
    page.evaluate(f"localStorage.timezone = JSON.stringify('Asia/Tokyo'); {changed}")  # as chosen in Airflow
    wait_for(lambda: first_time() == utc + timedelta(hours=9), "the time in Tokyo")
    page.evaluate(f"localStorage.removeItem('timezone'); {changed}")
    wait_for(lambda: first_time() == utc, "the time before")
    strip.locator("rect").nth(timeline["entries"].index(weeks[2])).click()
    expect(page).to_have_url(re.compile("week-02"))
    expect(page.get_by_text("No feature has drifted")).to_be_visible()
    expect(page.get_by_text("No retraining: no reason to retrain")).to_be_visible()
    expect(page.get_by_role("link", name="DAG run")).to_have_attribute("href", re.compile("week-02"))
    assert [check["verdict"] for check in weeks[:6]] == ["stable"] * 6
    drifted = next(index for index, check in enumerate(timeline["entries"]) if "temp" in check["drifted"])
    assert timeline["entries"][drifted] in weeks[6:]
    strip.locator("rect").nth(drifted).click()
    expect(page.get_by_text("Retraining requested", exact=True)).to_be_visible()
    expect(page.get_by_text("The values have shifted")).to_be_visible()
    page.go_back()
    expect(page.get_by_text("No feature has drifted")).to_be_visible()
    page.get_by_role("button", name="Newer comparison").press("Enter")
    expect(page).to_have_url(re.compile("week-03"))
