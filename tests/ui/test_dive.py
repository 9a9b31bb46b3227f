"""Dive: sampled rows of the demo placed, faceted, coloured, filtered, selected and read."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from playwright.sync_api import Locator, Page, expect
from waiting import wait_for

from ui.conftest import OpenPage, Site, expect_at_rest, expect_redrawn, follow, place_at_rest

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

DAG = "flights_training"
MOST_ROWS = 20_000


def address(**query: str | list[str]) -> str:
    """The address of Dive, with what it is to show."""
    return "plugin/hops/data?" + urlencode({"dag": DAG, "tab": "dive", **query}, doseq=True)


def plot_of(page: Page) -> Locator:
    """The plot, once its rows have come, and come to rest."""
    expect_at_rest(page)
    plot = page.locator('[data-dive="plot"]')
    expect(plot).to_have_attribute("data-ready", "true")
    return plot


def drag(page: Page, *places: tuple[float, float]) -> None:
    """Drags over the plot: places as shares of its width and height."""
    box = place_at_rest(page.locator('[data-dive="plot"] canvas').first)
    pixels = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in places]
    page.mouse.move(*pixels[0])
    page.mouse.down()
    for pixel in pixels[1:]:
        page.mouse.move(*pixel, steps=4)
    page.mouse.up()


def pixels_of(page: Page) -> list[int]:
    """Every 97th pixel of what is drawn."""
    read = """canvas => {
      const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      const pixels = new DataView(data.buffer);
      return Array.from({length: Math.floor(data.length / 388)}, (_, i) => pixels.getUint32(i * 388) >>> 8);
    }"""
    return list(page.locator('[data-dive="plot"] canvas').first.evaluate(read))


def last_pixels_of(page: Page) -> list[int]:
    """The same, once it no longer changes: the plot is drawn anew, from nothing, when what stands above it has come."""
    seen = [pixels_of(page)]

    def is_still() -> bool:
        page.wait_for_timeout(300)
        seen.append(pixels_of(page))
        return len(seen) > 4 and all(each == seen[-1] for each in seen[-4:])

    wait_for(is_still, "a picture that no longer changes", poll_s=0)
    return seen[-1]


@pytest.fixture(scope="module")
def newest(site: Site) -> dict[str, Any]:
    """The newest run's statistics, as the web API lists them."""
    for run in site.get(f"/hops/api/dags/{DAG}/runs?with=statistics")["entries"]:
        for artifact in run["artifacts"]:
            return dict(artifact)
    raise AssertionError("the demo has made no statistics")


def test_the_newest_rows_are_placed_as_the_address_says(open_page: OpenPage, newest: dict[str, Any]) -> None:
    page = open_page(address())
    plot = plot_of(page)
    total = newest["rows"]["train"]["rows_out"]
    shown = min(total, MOST_ROWS)
    expect(plot).to_have_attribute("data-points", str(shown))
    words = f"{shown:,} of {total:,} rows of train, drawn at random" if total > shown else f"all {total:,}"
    expect(page.locator('[data-dive="summary"]')).to_contain_text(words)
    expect(page.get_by_role("heading", name="Colour: late")).to_be_visible()
    assert len(set(last_pixels_of(page))) > 20
    expect_redrawn(page.locator("[data-ready=true] canvas"))
    page.get_by_label("Split").select_option("eval")
    expect(plot_of(page)).to_have_attribute("data-points", str(min(newest["rows"]["eval"]["rows_out"], MOST_ROWS)))
    settings = {
        "X axis": "scheduled_minute",
        "Y axis": "",
        "Facet columns": "origin",
        "Facet rows": "distance",
        "Colour": "temp",
    }
    for label, value in settings.items():
        page.get_by_label(label, exact=True).select_option(value)
    page.get_by_label("Scale of the X axis").select_option("log")
    page.get_by_label("Maximum number of facet rows").fill("3")
    expect(page).to_have_url(re.compile("split=eval.*binsy=3"))
    settings |= {"Scale of the X axis": "log", "Maximum number of facet rows": "3"}

    def expect_settings() -> None:
        for label, value in settings.items():
            expect(page.get_by_label(label, exact=True)).to_have_value(value)
        plot_of(page)

    expect_settings()
    pixels = last_pixels_of(page)
    page.reload()
    expect_settings()
    wait_for(lambda: pixels_of(page) == pixels, "the picture as before")
    dark = open_page(address(), theme="dark")
    plot_of(dark)
    assert pixels[0] > 0xE00000 > 0x600000 > last_pixels_of(dark)[0]


def test_the_plot_is_zoomed_and_a_selection_compared(open_page: OpenPage) -> None:
    page = open_page(address(x="temp", y="humid"))
    plot = plot_of(page)
    whole = last_pixels_of(page)
    plot.locator("canvas").first.hover()
    page.mouse.wheel(0, -600)
    expect(page).to_have_url(re.compile("view="))
    zoomed = [float(part) for part in parse_qs(urlsplit(page.url).query)["view"][0].split(",")]
    assert zoomed[0] == zoomed[1] > 2
    drag(page, (0.5, 0.5), (0.6, 0.5))
    # The address follows the mouse, and may be behind it. Only a question to the page sees it change.
    page.wait_for_function(
        """x => Math.abs(new URLSearchParams(location.search).get("view").split(",")[2] - x) < 0.01""",
        arg=zoomed[2] + 0.1,
    )
    wait_for(lambda: pixels_of(page) != whole, "another picture")
    plot.locator("canvas").first.press("0")
    expect(page).not_to_have_url(re.compile("view="))
    wait_for(lambda: pixels_of(page) == whole, "the whole plot")

    # The right half: the warm rows.
    plot.locator("canvas").first.press("b")
    expect(page.get_by_role("button", name="Select a box")).to_have_attribute("aria-pressed", "true")
    drag(page, (0.6, 0.02), (0.98, 0.98))
    selected = page.locator('[data-dive="selected"]')
    expect(selected).to_contain_text(re.compile(r"[\d,]+ of [\d,]+ rows"))
    expect_at_rest(page)
    words = selected.inner_text()
    table = page.get_by_role("table", name="How the selection differs")
    expect(table.get_by_role("row").nth(1)).to_contain_text("temp")
    values = table.get_by_role("row").nth(1).get_by_role("cell").all_inner_texts()
    assert float(values[1]) > float(values[2]) + 5
    page.get_by_label("X axis", exact=True).select_option("carrier")
    plot_of(page)
    page.reload()
    plot_of(page)
    expect(selected).to_have_text(words)
    page.get_by_role("button", name="View rows").click()
    warm = page.locator('[data-dive="row"]').get_by_text("temp", exact=True).locator("xpath=following-sibling::dd")
    assert float(warm.inner_text()) > float(values[2])
    page.locator('[data-dive="plot"] canvas').first.press("Escape")
    expect(selected).to_have_count(0)


def test_rows_are_filtered_and_copied(site: Site, open_page: OpenPage) -> None:
    page = open_page(address())
    all_rows = int(plot_of(page).get_attribute("data-points") or 0)
    page.get_by_role("button", name=re.compile("^1 ")).click()
    expect(page).to_have_url(re.compile("filter=late%3D1"))
    expect(plot_of(page)).not_to_have_attribute("data-points", str(all_rows))
    late = int(plot_of(page).get_attribute("data-points") or 0)
    assert 0 < late < all_rows / 2
    page.get_by_label("Filter by", exact=True).select_option("distance")
    brush = place_at_rest(page.locator('[data-brush="distance"]'))
    page.mouse.move(brush["x"] + 2, brush["y"] + 20)
    page.mouse.down()
    page.mouse.move(brush["x"] + brush["width"] / 3, brush["y"] + 20, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile("filter=distance%3A"))
    expect(plot_of(page)).not_to_have_attribute("data-points", str(late))
    short = int(plot_of(page).get_attribute("data-points") or 0)
    assert 0 < short < late
    expect(page.locator('[data-dive="summary"]')).to_contain_text(f"{short:,} shown")
    page.get_by_label("distance to").fill("500")
    page.get_by_label("distance to").press("Enter")
    expect(page).to_have_url(re.compile(r"filter=distance%3A[\d.]+\.\.500"))
    page.get_by_role("button", name="Remove the filter by late").click()
    expect(page).not_to_have_url(re.compile("late%3D1"))
    follow(page, page.url + "&" + urlencode({"filter": "carrier=no such carrier"}))
    expect(page.get_by_text("No row matches the filters")).to_be_visible()

    follow(page, f"{site.url}/{address(display='table', split='eval', filter='carrier=B6')}")
    first = page.get_by_role("table", name="Rows").get_by_role("row").nth(1)
    expect_at_rest(page)
    expect(first).to_contain_text("B6")
    moment = first.get_by_role("cell").first.inner_text()
    first.press("Enter")
    row = page.locator('[data-dive="row"]')
    expect(row).to_contain_text("B6")
    expect(row).to_contain_text(moment)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the row as JSON").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    copied = json.loads(page.evaluate("navigator.clipboard.readText()"))
    assert copied["carrier"] == "B6" and copied["late"] in (0, 1) and copied["scheduled_at"].startswith("2013-")
    page.get_by_role("button", name="Next row").click()
    expect(row).not_to_contain_text(moment)
    # The same row in the plot.
    page.get_by_text("Plot", exact=True).click()
    plot_of(page)
    page.get_by_role("button", name="Close the row").click()
    expect(row).to_have_count(0)
    page.locator('[data-dive="plot"] canvas').first.press("Enter")
    expect(row).to_be_visible()
