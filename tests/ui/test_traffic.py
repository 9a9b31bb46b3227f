"""A canary that is being rolled out, whose share is set on the page."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from ui.accessibility import grave_violations
from ui.conftest import OpenPage, Site
from ui.test_models import API, DAG, MODEL, PAGE, answering_versions, decide, promote, tiles

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

PERCENT = 20


@pytest.fixture(scope="module")
def versions(site: Site) -> Iterator[tuple[int, int]]:
    """The champion and a canary that is being rolled out; afterwards it is all as it was."""
    known = site.get(API)
    champion = known["champion"]["version"]
    canary = next(version for version in known["deployed"] if version != champion)
    manifests = (site.home / "store" / DAG).glob("*/*/deployment/manifest.json")
    deployed = next(each for each in manifests if json.loads(each.read_text())["properties"]["version"] == canary)
    record = site.home / "store" / "_models" / f"{MODEL}.json"
    content = record.read_bytes()
    script = str(Path(__file__).with_name("begin_rollout.py"))
    try:
        command = [sys.executable, script, f"file://{deployed.parent}", str(PERCENT)]
        begun = subprocess.run(command, env=site.environment, capture_output=True, text=True)
        assert begun.returncode == 0, begun.stdout[-3000:] + begun.stderr[-3000:]
        yield champion, canary
    finally:
        if site.get(API)["challenger"] is not None:
            decide(site, "roll_back", {"to_version": "previous"})
        promote(site, canary)  # taken out, it was unloaded
        promote(site, champion)
        record.write_bytes(content)  # by whom each version was deployed, and evaluated


def test_traffic_set_on_the_page_is_served(site: Site, versions: tuple[int, int], open_page: OpenPage) -> None:
    champion, canary = versions
    page = open_page(PAGE, user="op")
    page.get_by_role("button", name="Set traffic").click()
    dialog = page.get_by_role("alertdialog")
    expect(dialog).to_contain_text(f"Share of version {canary}, the challenger, in percent")
    share = dialog.get_by_role("spinbutton")
    expect(share).to_have_value(str(PERCENT))
    assert grave_violations(page) == []
    share.fill("70")
    expect(dialog).to_contain_text(f"30% go to version {champion}, the champion, and 70% to version {canary}")
    expect(dialog).to_contain_text(f"Version {canary} is being rolled out")
    confirm = dialog.get_by_role("button", name="Set traffic")
    expect(confirm).to_be_disabled()
    reason = f"a look at it {uuid.uuid4().hex}"
    dialog.get_by_role("textbox", name="Reason").fill(reason)
    confirm.click()
    expect(dialog).to_have_count(0)
    shares = sorted({champion: 30, canary: 70}.items())
    traffic = "Traffic: " + ", ".join(f"version {version} {percent}%" for version, percent in shares)
    expect(tiles(page).get_by_role("img", name=traffic)).to_be_visible()
    answered = answering_versions(site, 200)
    assert sum(answered.values()) == 200
    assert 110 <= answered[str(canary)] <= 170  # 140 on average, and six deviations from 20%
    decision = site.get(API)["decisions"][0]
    assert (decision["why"], decision["by"]["user"]) == (reason, "op")
    assert decision["traffic"] == {str(champion): 30, str(canary): 70}
    decide(site, "traffic", {"percents": {champion: 100 - PERCENT, canary: PERCENT}})
    expect(tiles(page).get_by_role("img", name=f"version {canary} {PERCENT}%")).to_be_visible()
