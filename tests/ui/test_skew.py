"""The Skew page: the demo's comparison, and a season of weekly ones beside it."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any
from urllib.parse import quote

import pytest
import skew_history
from playwright.sync_api import Locator, Page, expect

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


def _artifact(check: dict[str, Any]) -> str:
    value = "/".join(str(check[name]) for name in ("kind", "dag_id", "task_id", "map_index", "run_id"))
    return quote(value, safe="")


def _rows(page: Page) -> Locator:
    return page.get_by_role("table", name="Features").locator("tr[data-index]")


def test_features_are_sorted_by_weight_and_can_be_searched(open_page: OpenPage, timeline: dict[str, Any]) -> None:
    page = open_page(f"plugin/hops/skew?dag={DAG}")
    newest = timeline["entries"][-1]
    expect(page.get_by_role("heading", level=2)).to_have_text(newest["drifted"][0])
    for place, name in enumerate(newest["drifted"][:3]):
        expect(_rows(page).nth(place)).to_contain_text(name)
    page.get_by_role("button", name="Feature", exact=True).click()
    expect(_rows(page).first).to_contain_text(min((each["name"] for each in timeline["features"]), key=str.lower))
    page.get_by_placeholder("Search features").fill("DEW")
    expect(_rows(page)).to_have_count(1)
    _rows(page).first.click()
    expect(page).to_have_url(re.compile("feature=dewp"))
    expect(page.get_by_role("heading", level=2)).to_have_text("dewp")
    page.reload()
    expect(page.get_by_role("heading", level=2)).to_have_text("dewp")
    expect(_rows(page)).to_have_count(1)


def test_cell_opens_its_comparison_and_decision(
    open_page: OpenPage, timeline: dict[str, Any], weeks: list[dict[str, Any]]
) -> None:
    page = open_page(f"plugin/hops/skew?dag={DAG}&feature=temp", theme="dark")
    strip = page.get_by_role("img", name=re.compile("^temp: drifted in"))
    stable = timeline["entries"].index(weeks[2])
    strip.locator("rect").nth(stable).click()
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
    expect(page).to_have_url(re.compile("week-02"))
    expect(page.get_by_text("No feature has drifted")).to_be_visible()
    page.get_by_role("button", name="Newer comparison").press("Enter")
    expect(page).to_have_url(re.compile("week-03"))


def test_fault_and_too_few_rows_are_explained(open_page: OpenPage, weeks: list[dict[str, Any]]) -> None:
    few, fault, _ = weeks[-3:]
    assert (few["verdict"], fault["verdict"]) == ("insufficient", "pipeline_fault")
    page = open_page(f"plugin/hops/skew?dag={DAG}&feature=temp&artifact={_artifact(fault)}")
    expect(page.get_by_text("the data looks faulty")).to_be_visible()
    expect(page.get_by_text("The values look like those of the reference in another unit")).to_be_visible()
    follow(page, f"{page.url.split('?')[0]}?dag={DAG}&feature=temp&artifact={_artifact(few)}")
    expect(page.get_by_text(f"{few['min_rows']:,} are needed")).to_be_visible()


def test_measure_and_time_are_in_the_address(open_page: OpenPage, timeline: dict[str, Any]) -> None:
    page = open_page(f"plugin/hops/skew?dag={DAG}&feature=temp")
    chart = page.get_by_role("img", name=re.compile(f"^temp over {len(timeline['entries'])} comparisons"))
    expect(chart.locator("canvas")).to_be_visible()
    page.get_by_label("Measure").select_option("p-value")
    page.get_by_text("Wall time").click()
    expect(page).to_have_url(re.compile("measure=p&time=wall"))
    expect(page.get_by_text("significance level")).to_be_visible()
    page.reload()
    expect(page.get_by_text("significance level")).to_be_visible()
    page.get_by_role("link", name="Overlay on the Data page").click()
    expect(page).to_have_url(re.compile("/plugin/hops/data[?]dag=flights_training&artifact=skew"))
    expect(page.get_by_role("button", name=f"{DAG}: choose a pipeline")).to_be_visible()


DRAWN_DATES = """
window.dates = {};
const draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  if (/^\\d{4}-\\d{2}/.test(text)) {
    window.dates[text] = Math.round(this.getTransform().transformPoint({ x, y }).x);
  }
  return draw.apply(this, arguments);
};
"""


def test_axis_ticks_follow_the_time_zone(open_page: OpenPage, timeline: dict[str, Any]) -> None:
    def dates(browsers: str, chosen: str) -> dict[str, int]:
        script = f"localStorage.timezone = JSON.stringify('{chosen}');\n{DRAWN_DATES}"
        page = open_page(f"plugin/hops/skew?dag={DAG}&feature=temp", zone=browsers, own=script)
        expect(page.get_by_role("img", name=re.compile("^temp over")).locator("canvas")).to_be_visible()
        page.wait_for_function("Object.keys(window.dates).length > 2")
        drawn: dict[str, int] = page.evaluate("window.dates")
        return drawn

    there = dates("UTC", "UTC")
    assert dates("America/Los_Angeles", "UTC") == there
    earlier = dates("UTC", "Asia/Tokyo")
    assert earlier.keys() == there.keys()
    assert all(earlier[day] < there[day] for day in there)


@pytest.mark.parametrize("width", [1024, 2560])
def test_single_comparison_is_shown(open_page: OpenPage, timeline: dict[str, Any], width: int) -> None:
    page = open_page(f"plugin/hops/skew?dag={DAG}&last=1", width=width, theme="dark")
    expect(page.get_by_text(f"the last 1 of {timeline['total_entries']} comparisons")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("over 1 comparisons")).locator("canvas")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Histograms of")).locator("canvas")).to_be_visible()
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width


def test_page_without_comparisons_shows_how_to_start(open_page: OpenPage) -> None:
    page = open_page("plugin/hops/skew?dag=fashion_mnist")
    expect(page.get_by_text("This pipeline is not monitored")).to_be_visible()
