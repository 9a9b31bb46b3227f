"""The overview of the Data page: statistics of the demo's runs, sorted, filtered, laid over one another, opened."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Page, expect
from waiting import wait_for

from ui.conftest import OpenPage, Site, follow

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

DAG = "flights_training"
DATA = f"plugin/hops/data?dag={DAG}"


def _names(page: Page) -> Locator:
    """The features in sight, in order."""
    return page.locator("[data-ready] [data-feature]")


def _ready(page: Page, datasets: int) -> None:
    """Waits until the figures of so many data sets are there, and their distances."""
    expect(page.get_by_role("group", name="Data sets").locator("button[aria-pressed=true]")).to_have_count(datasets)
    expect(page.locator("[data-ready]")).to_be_visible()


def _cell(page: Page, feature: str, heading: str) -> list[str]:
    """A cell's text, a line a data set."""
    headings = page.locator("thead th").all_inner_texts()
    column = next(place for place, text in enumerate(headings) if text.startswith(heading))
    row = page.get_by_role("row").filter(has=page.locator(f'[data-feature="{feature}"]'))
    return row.locator("td").nth(column).inner_text().splitlines()


def _statistics(site: Site) -> dict[str, str]:
    """The artifact of each run that has statistics, as the address names it; the newest first."""
    runs = site.get(f"/hops/api/dags/{DAG}/runs?with=statistics")["entries"]
    return {run["run_id"]: f"statistics/{DAG}/{run['artifacts'][0]['task_id']}/-1/{run['run_id']}" for run in runs}


def _greatest(tables: list[dict[str, Any]], value: Callable[[dict[str, Any], int], float]) -> str:
    """The feature that has the greatest value in one of the data sets."""
    names: list[str] = tables[0]["names"]
    return max(names, key=lambda name: max(value(table, names.index(name)) for table in tables))


def test_the_last_statistics_are_filtered_and_a_feature_is_opened(site: Site, open_page: OpenPage) -> None:
    page = open_page(DATA, theme="dark")
    splits = ["train", "eval", "newest"]
    _ready(page, len(splits))
    chosen = page.get_by_role("group", name="Data sets").locator("button[aria-pressed=true]")
    expect(chosen).to_have_text([re.compile(f"^{split}") for split in splits])
    for place, name in enumerate(("scheduled_at", "late", "carrier")):
        expect(_names(page).nth(place)).to_have_text(name)
    newest = next(iter(_statistics(site).values()))
    kind, dag_id, task_id, index, run_id = newest.split("/", 4)
    run = f"/hops/api/dags/{dag_id}/runs/{quote(run_id, safe='')}/artifacts/{task_id}/{index}/{kind}"
    tables = [site.get(f"{run}/statistics/features?dataset={split}") for split in splits]
    means = [table["mean"][table["names"].index("late")] for table in tables]
    assert [float(line) for line in _cell(page, "late", "Mean")] == pytest.approx(means, abs=5e-4)
    first = page.locator("[data-feature]").first
    page.get_by_role("button", name="Missing").click()
    expect(page).to_have_url(re.compile("sort=-missing"))
    missing = _greatest(tables, lambda table, row: (table["missing"][row] + (table["nan"][row] or 0)) / table["rows"])
    expect(first).to_have_text(missing)
    page.get_by_label("Sort by").select_option("-non_uniformity")
    expect(first).to_have_text(_greatest(tables, lambda table, row: table["non_uniformity"][row] or 0))
    search = page.get_by_placeholder("Search, or /regular expression/")
    search.fill("/^plane_(a|s)/")
    expect(page.get_by_text("2 of 22 features")).to_be_visible()
    search.fill("/(/")
    expect(page.get_by_text("Invalid regular expression")).to_be_visible()
    page.get_by_role("button", name="Clear").click()
    page.get_by_text("Other 4").click()
    page.get_by_role("button", name="Only").click()
    page.get_by_role("menuitemcheckbox", name="has missing values").click()
    expect(page.get_by_text("1 of 22 features")).to_be_visible()
    page.reload()
    expect(_names(page)).to_have_text(["plane_manufacturer"])

    follow(page, f"{site.url}/{DATA}&chart=quantiles")
    page.locator("[data-feature=temp]").click()
    panel = page.get_by_role("region", name="Feature temp")
    expect(panel.get_by_role("img", name="Distribution of temp")).to_be_visible()
    expect(panel.get_by_text(re.compile(r"Kolmogorov-Smirnov statistic 0(\.\d+)?")).first).to_be_visible()
    expect(panel.get_by_role("table", name="Figures").get_by_role("row", name="Rows with a value")).to_be_visible()
    median = panel.get_by_role("table", name="Quantiles").get_by_role("row", name="median").locator("td")
    expect(median).to_have_text(["median", *[re.compile(r"^\d")] * 3])
    assert [float(text) for text in median.all_inner_texts()[1:]] == pytest.approx([46, 46, 46], abs=40)
    panel.get_by_text("Cumulative").click()
    expect(panel.get_by_role("img", name="Cumulative distribution of temp")).to_be_visible()
    page.keyboard.press("Escape")
    expect(panel).to_have_count(0)
    follow(page, f"{site.url}/{DATA}&feature=carrier&view=cumulative")
    values = page.get_by_role("region", name="Feature carrier").get_by_role("table", name="Values")
    expect(values.get_by_role("row").nth(1)).to_contain_text("UA")
    page.get_by_role("button", name="Next feature").click()
    expect(page.get_by_role("region", name="Feature origin")).to_be_visible()
    expect(page.get_by_role("link", name="Skew", exact=True).last).to_have_attribute(
        "href", re.compile(f"/plugin/hops/skew[?]dag={DAG}&feature=origin$")
    )


def test_other_split_and_served_data_are_overlaid(site: Site, open_page: OpenPage) -> None:
    first, *_, last = _statistics(site).values()
    page = open_page(f"{DATA}&artifact={quote(first)}&show=0:train")
    _ready(page, 1)
    expect(page.get_by_role("button", name=re.compile("^Distance"))).to_have_count(0)
    page.get_by_role("button", name="Add data").click()
    entries = page.get_by_role("table", name="Statistics, newest first")
    entries.get_by_role("button", name=re.compile("^eval .* of ")).last.click()
    expect(page).to_have_url(re.compile(re.escape(quote(last, safe=""))[-40:]))
    _ready(page, 2)
    page.get_by_role("button", name="Add data").click()
    served = page.get_by_role("table", name=re.compile("^Served data"))
    served.get_by_role("button", name=re.compile("^current ")).first.click()
    _ready(page, 3)
    expect(page.get_by_role("row").filter(has=page.locator('[data-feature="late"]'))).to_contain_text("not in all")
    wait_for(lambda: len(_cell(page, "temp", "Mean")) == 3, "a mean of each data set")
    apart = page.get_by_role("row").filter(has=page.locator("[data-feature=temp]")).locator("[title^='From train']")
    expect(apart).to_have_count(2)  # of each of the others, and each says of which pair it is
    for place in range(2):
        expect(apart.nth(place)).to_have_attribute("title", re.compile(r" to (eval|current) .*: Kolmogorov-Smirnov"))
    page.get_by_role("button", name="Remove").first.click()
    expect(page.get_by_role("group", name="Data sets").locator("button[aria-pressed=true]")).to_have_count(2)
    follow(page, f"{site.url}/plugin/hops/data?dag=flights_monitoring&sort=-distance&only=differs")
    wait_for(lambda: {"temp", "dewp"} <= {*_names(page).all_inner_texts()[:4]}, "the two that differ most")
    assert "▲ of " in _cell(page, "temp", "Distance")[-1]
    page.locator("[data-feature=temp]").click()
    expect(page.get_by_text("(from the skew report)")).to_be_visible()
