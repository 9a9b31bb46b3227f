"""The page of shared data: what others offer, a transfer in progress, and statistics next to ours."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from waiting import wait_for

from tests.extensions.sharing.conftest import as_organisation, sharing_base, sharing_launcher, sharing_runtime  # noqa: F401
from tests.extensions.sharing.organisations import Organisation, loopback, make_snapshot, random_files
from ui.accessibility import grave_violations
from ui.conftest import OpenPage
from ui.own_dags import OwnDags

pytestmark = [pytest.mark.runtime]
TRIPS = "north/trips@1"


@pytest.fixture
def north(
    own: OwnDags,
    tmp_path: Path,
    sharing_runtime: Path,  # noqa: F811
    as_organisation: Any,  # noqa: F811
    hops: Any,
) -> Iterator[Organisation]:
    """Another organisation, of whose data sets the site's has fetched one and is fetching another."""
    made = []
    for number, (name, home) in enumerate((("north", tmp_path / "north"), ("south", own.site.home))):
        (home / "store").mkdir(parents=True, exist_ok=True)
        made.append(Organisation(name, home, loopback(number + 1), sharing_runtime, download_mbit_s=1))
    north, south = made
    north.trust(south)
    south.trust(north)
    for organisation, licence, city in ((north, "CC-BY-4.0", "New York"), (south, "CC0-1.0", "Stockholm")):
        as_organisation(organisation)
        code, _, error = hops(
            "datasets", "publish", make_snapshot(organisation, dag_id="pages_features").uri, "--name", "flights",
            "--licence", licence, "--description", f"Flights from {city}.",
        )  # fmt: skip
        assert code == 0, error
    trips = random_files(tmp_path / "trips", a=20_000_000, b=10_000_000)
    north.share(trips, name="trips", rows=1_204_331, description="Taxi trips.")
    north.share(random_files(tmp_path / "rides", a=100), name="rides", rows=48_120, description="Rides of bikes.")
    for organisation in made:
        organisation.start()
    south.ask("north/flights@1")
    south.wait_until("north/flights@1", "fetched")
    south.ask(TRIPS)
    wait_for(lambda: (t := south.transfer(TRIPS)) and t.peers and t.done_bytes, south.log.read_text, 90)
    yield north
    for organisation in made:
        organisation.end()


def test_the_page_shows_offers_transfers_and_statistics_next_to_ours(open_page: OpenPage, north: Organisation) -> None:
    page = open_page("plugin/hops", height=860)
    page.get_by_role("link", name="Shared data").click()
    expect(page.get_by_role("heading", name="Data sets")).to_be_visible()
    table = page.get_by_role("table", name="Data sets")
    trips = table.get_by_role("row").filter(has_text=TRIPS)
    expect(trips.get_by_role("progressbar")).to_be_visible()
    expect(trips).to_contain_text("downloading")
    expect(trips).to_contain_text("north")
    for name, state in (("north/flights@1", "fetched"), ("south/flights@1", "shared"), ("north/rides@1", "offered")):
        expect(table.get_by_role("row").filter(has_text=name)).to_contain_text(state)
    organisations = page.get_by_role("table", name="Trusted organisations")
    expect(organisations).to_contain_text(north.key[:12])
    expect(organisations).to_contain_text(north.catalogue)
    assert grave_violations(page) == []
    if folder := os.environ.get("HOPS_PICTURES"):  # for the documentation
        page.set_viewport_size({"width": 1440, "height": 620})
        page.wait_for_timeout(3000)
        page.screenshot(path=Path(folder, "sharing.png"))
    page.get_by_role("textbox").fill("delay.mean>10 cc-by")
    expect(table.get_by_role("row").filter(has_text="@1")).to_have_count(1)
    table.get_by_text("north/flights@1").click()
    drawer = page.get_by_role("dialog")
    expect(drawer).to_contain_text("CC-BY-4.0")
    features = drawer.get_by_role("table", name="Features")
    expect(features.get_by_role("row").filter(has_text="flights.delay")).to_contain_text("10%")
    drawer.get_by_role("tab", name="Rows").click()
    expect(drawer.get_by_role("table", name="Rows of planes")).to_contain_text("IAH")
    drawer.get_by_role("tab", name="Schema").click()
    expect(drawer.get_by_label("schema of flights", exact=True)).to_contain_text('name: "dest"')
    drawer.get_by_role("tab", name="Statistics").click()
    drawer.get_by_label("Compare with").select_option("south/flights@1")
    expect(features.get_by_role("row").filter(has_text="south/flights@1")).to_have_count(8)
    assert grave_violations(page) == []
    expect(drawer.get_by_text("owned by")).to_have_count(0)
    page.keyboard.press("Escape")
    page.get_by_role("textbox").fill("stockholm")
    table.get_by_text("south/flights@1").click()
    drawer.get_by_role("button", name="Change owners").click()
    asked = page.get_by_role("alertdialog")
    asked.get_by_label("DAGs, separated by commas").fill("pages_features pages_schema")
    asked.get_by_label("Reason").fill("one team")
    asked.get_by_role("button", name="Change owners").click()
    expect(drawer).to_contain_text("owned by pages_features, pages_schema")
