"""The tab of a task instance while it runs: its bar, its words and its curves follow the step."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect
from waiting import wait_for

from ui.conftest import OpenPage, next_frame, place_at_rest
from ui.own_dags import OwnDags

pytestmark = [pytest.mark.runtime]


def _last_of(page: Page, figure: str) -> str:
    """Returns the tooltip's text at the end of a curve."""
    chart = page.get_by_role("img", name=f"{figure} of 1 run by step")
    box = place_at_rest(chart.locator("canvas").first)
    for left in range(8, 200, 8):
        page.mouse.move(box["x"] + box["width"] - left, box["y"] + box["height"] / 2)
        next_frame(page)
        if text := chart.inner_text():
            return text
    return ""


def test_a_step_is_followed_while_it_runs(open_page: OpenPage, own: OwnDags, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    own.run("pages_progress", gate=str(gate))

    def running() -> str | None:
        path = "/api/v2/dags/~/dagRuns/~/taskInstances?state=running"  # of one DAG: 404 until it is stored
        tasks = own.site.get(path)["task_instances"]
        return next((task["dag_run_id"] for task in tasks if task["dag_id"] == "pages_progress"), None)

    run = quote(own.wait_for(running), safe="")
    page = open_page(f"dags/pages_progress/runs/{run}/tasks/learn/plugin/hops-task")
    bar = page.get_by_role("progressbar")
    expect(page.get_by_text("No progress reported yet.")).to_be_visible()
    for epoch in (1, 2, 3):
        (gate / str(epoch)).touch()
        expect(page.get_by_text(f"epoch {epoch} of 4", exact=True)).to_be_visible()
        expect(bar).to_have_attribute("aria-valuenow", str(25 * epoch))
        expect(page.get_by_text(f"{25 * epoch}%", exact=True)).to_be_visible()
    expect(page.get_by_text(re.compile("^about .* left$|^nearly done$"))).to_be_visible()
    wait_for(lambda: "0.333" in _last_of(page, "loss"), "the third epoch's point")  # by a question of its own
    (gate / "4").touch()
    expect(bar).to_have_count(0)  # what it has made is shown in its place
    assert own.wait_for(lambda: own.states("pages_progress")) == ["success"]
