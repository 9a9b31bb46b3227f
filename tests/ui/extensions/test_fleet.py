"""The segments of a served fleet: those that matter first, what borrows from whom, and one from drift to promotion."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Page, expect
from shown_demo import REPOSITORY
from waiting import wait_for

from tests.extensions.fleet.hostile_keys import hostile_keys
from ui.accessibility import expect_fits, grave_violations
from ui.conftest import OpenPage, Site, follow
from ui.own_dags import run_own_dags
from ui.test_models import rest_url

pytestmark = [pytest.mark.runtime]
DAG, MODEL = "shown_fleet", "shown_shops"
API = f"/hops/api/dags/{DAG}/models/{MODEL}"
PAGE = f"plugin/hops/models/{MODEL}?dag={DAG}&tab=segments"
FAILED, SMALL, DRIFTED, LARGE = "no sales", "new 🏪", "price <b>moved</b> & more", "the largest"
NORTH = [f"north {number}" for number in range(4)]
KEYS = [FAILED, SMALL, DRIFTED, LARGE, *NORTH, *hostile_keys(22)]


def rows_of(key: str, edition: int) -> pa.Table:
    """Rows of a shop; in the second edition, one shop's prices and the stock of the north have changed."""
    generator = np.random.default_rng([KEYS.index(key), edition])
    rows = {SMALL: 12, LARGE: 900}.get(key, 200)
    price = generator.normal(10 + 5 * (edition and key == DRIFTED), 2, rows)
    stock = generator.normal(100 + 60 * (edition and key in NORTH), 20, rows)
    slope = KEYS.index(key) % 3 + 2 * (edition and key in (DRIFTED, *NORTH))
    return pa.table(
        {
            "row": [f"{KEYS.index(key)}-{edition}-{number}" for number in range(rows)],
            "shop": [key] * rows,
            "region": ["north" if key in NORTH else "south"] * rows,
            "price": price.astype(np.float32),
            "stock": stock.astype(np.float32),
            "sales": np.full(rows, 7.0) if key == FAILED else slope * price + stock / 50 + generator.normal(size=rows),
        }
    )


@pytest.fixture(scope="module")
def site_with_fleet(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A fleet whose drifted segments have new models, which a canary tries, all by the real steps and server."""
    raw = tmp_path_factory.mktemp("raw")
    for number, key in enumerate(KEYS):
        pq.write_table(rows_of(key, 0), raw / f"{number:02}.parquet")
    dags = REPOSITORY / "tests" / "extensions" / "fleet" / "dags"
    with run_own_dags(site, tmp_path_factory.mktemp("dags"), DAG, "fleet_code", dags=dags) as own:
        own.run(DAG, raw=str(raw))
        assert own.wait_for(lambda: own.states(DAG)) == ["success"]
        for number, key in enumerate(KEYS):
            table = rows_of(key, 1)
            asked = {"inputs": table.select(["shop", "price", "stock"]).to_pydict()}
            answer = httpx.post(f"{rest_url(site)}/v1/models/{MODEL}:predict", json=asked, trust_env=False)
            assert answer.status_code == 200, answer.text
            pq.write_table(table, raw / f"{number:02}.parquet")
        httpx.post(f"{rest_url(site)}/v1/capture:flush", trust_env=False, timeout=60).raise_for_status()
        own.run(DAG, raw=str(raw), first="watch")
        assert own.wait_for(lambda: own.states(DAG)[1:]) == ["success"]
    return site


def segments(page: Page) -> Any:
    return page.locator("button[data-segment]")


def expect_names(page: Page, names: list[str], *, ordered: bool = True) -> None:
    """Expects these segments and no others."""
    read = "cards => cards.map(card => card.dataset.segment)"

    def shown() -> list[str]:
        keys = segments(page).evaluate_all(read)
        return list(keys if ordered else sorted(keys))

    wait_for(lambda: shown() == (names if ordered else sorted(names)), lambda: f"{names} instead of {shown()}")


def open_segment(page: Page, key: str) -> None:
    page.get_by_placeholder("Search segments").fill(key)
    expect_names(page, [key])
    page.locator(f"button[data-segment={json.dumps(key)}]").click()


def test_segments_that_matter_come_first_and_others_are_found(site_with_fleet: Site, open_page: OpenPage) -> None:
    page = open_page(PAGE, height=1400)
    entries = site_with_fleet.get(f"{API}/fleet?limit=30")["entries"]
    importance = [each["rows"] * (each["loss"] or 0) for each in entries]
    assert importance == sorted(importance, reverse=True)
    expect_names(page, [each["segment"] for each in entries][:24])
    expect(segments(page).first).to_contain_text(LARGE)
    page.get_by_role("button", name="Show 6 more of 6").click()
    expect_names(page, KEYS, ordered=False)
    assert grave_violations(page) == []
    page.get_by_text("Only drifted (5)").click()
    expect_names(page, [DRIFTED, *NORTH], ordered=False)
    expect(segments(page).get_by_text("drift", exact=True)).to_have_count(5)
    page.get_by_text("Only drifted (5)").click()
    page.get_by_text("Only failed (1)").click()
    expect(segments(page)).to_have_count(1)
    expect(segments(page)).to_contain_text(re.compile(f"^{FAILED}failed.*pooled"))
    expect(segments(page)).to_contain_text("ValueError: the sales are all the same")
    page.get_by_text("Only failed (1)").click()
    page.get_by_role("button", name="Model", exact=True).click()
    page.get_by_role("menuitemcheckbox", name="borrows the pooled model").click()
    page.keyboard.press("Escape")
    borrowing = [each["segment"] for each in entries if each["state"] == "pooled"]
    assert {FAILED, SMALL} <= {*borrowing}
    expect_names(page, borrowing, ordered=False)
    expect(segments(page).filter(has_text=SMALL)).to_contain_text("training rows, fewer than 30")


@pytest.mark.parametrize("key", ["\u200b", "a1 ", "A\u030a", "\u202egpj", "<img src=x onerror=alert(1)>", "../../up"])
def test_keys_that_look_alike_are_shown_differently(site_with_fleet: Site, open_page: OpenPage, key: str) -> None:
    page = open_page(f"{PAGE}&search={quote(key)}")
    segment = page.locator(f"button[data-segment={json.dumps(key, ensure_ascii=False)}]")
    shown = {"\u200b": r"\u{200b}", "a1 ": r"a1\u{20}", "A\u030a": r"A\u{30a}", "\u202egpj": r"\u{202e}gpj"}.get(
        key, key
    )
    expect(segment.get_by_text(shown, exact=True)).to_be_visible()
    segment.click()
    expect(page.get_by_role("dialog").get_by_role("heading", name=shown, exact=True)).to_be_visible()
    expect(page.get_by_role("dialog").get_by_text("First model, in version")).to_be_visible()


def test_a_segment_has_a_story_from_drift_to_promotion(site_with_fleet: Site, open_page: OpenPage) -> None:
    page = open_page(f"plugin/hops/models/{MODEL}?dag={DAG}")
    known = site_with_fleet.get(API)
    first, canary = known["champion"]["version"], known["challenger"]["version"]
    page.get_by_role("button", name="Promote").click()
    dialog = page.get_by_role("alertdialog")
    dialog.get_by_role("textbox", name="Reason").fill("better for the shops of the north")
    dialog.get_by_role("button", name="Promote").click()
    expect(dialog).to_have_count(0)
    page.get_by_role("tab", name="Segments").click()
    open_segment(page, DRIFTED)
    story = page.get_by_role("dialog")
    expect(story.get_by_role("heading", name=DRIFTED)).to_be_visible()
    chapters = story.get_by_role("listitem")
    expected = [
        (f"Version {canary} was promoted", "better for the shops of the north"),
        (f"Version {canary} is tried as a canary",),
        (f"New model, in version {canary}", "better than the pooled model"),
        ("Its data moved", "price", "the comparison"),
        (f"Version {first} serves",),
        (f"First model, in version {first}",),
    ]
    for number, texts in enumerate(expected):
        for text in texts:
            expect(chapters.nth(number)).to_contain_text(text)
    known = site_with_fleet.get(f"{API}/fleet/statistics?key={quote(DRIFTED)}&version={canary}")["statistics"]["price"]
    price = story.get_by_role("table", name="Statistics").get_by_role("row").filter(has_text="price")
    expect(price).to_contain_text(f"{known['mean']:.4g}")
    assert grave_violations(page) == []
    page.keyboard.press("Escape")
    open_segment(page, "north 1")
    expect(story).to_contain_text("All of region=north moved")
    page.keyboard.press("Escape")
    open_segment(page, LARGE)
    expect(story.get_by_text(f"First model, in version {first}")).to_be_visible()
    expect(story.get_by_text("was promoted")).to_have_count(0)  # its model is the same
    page.set_viewport_size({"width": 390, "height": 844})
    assert grave_violations(page, "light") == []
    page.keyboard.press("Escape")
    expect(story).to_have_count(0)
    expect_fits(page)
    follow(page, f"{site_with_fleet.url}/{PAGE}&in_version={first}")
    expect(segments(page)).to_have_count(24)
    expect(page.get_by_text("in 2 versions")).to_be_visible()
