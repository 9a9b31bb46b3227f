"""The Lineage page: the demo's versions, back to their first data and on."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from ui.conftest import OpenPage, Site

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

DAG = "flights_training"


@pytest.fixture
def versions(site: Site) -> list[dict[str, Any]]:
    """The versions that the demo has deployed, the newest first."""
    result: list[dict[str, Any]] = site.get(f"/hops/api/dags/{DAG}/versions")
    return result


@pytest.fixture
def lineage(site: Site, versions: list[dict[str, Any]]) -> dict[str, Any]:
    """The lineage of the version that serves."""
    made = next(each for each in versions if each["role"] == "champion")["deployment"]
    run = quote(made["run_id"], safe="")
    path = f"/hops/api/dags/{made['dag_id']}/runs/{run}/artifacts/{made['task_id']}/-1/{made['kind']}/lineage"
    result: dict[str, Any] = site.get(path)
    return result


def test_served_version_leads_to_its_snapshot(
    open_page: OpenPage, versions: list[dict[str, Any]], lineage: dict[str, Any]
) -> None:
    page = open_page(f"plugin/hops/lineage?dag={DAG}", theme="dark")
    serving = next(each for each in versions if each["role"] == "champion")
    choice = page.get_by_label("Served version")
    expect(choice).to_have_value(f"flights {serving['version']}")
    boxes = page.locator("[data-node]")
    expect(boxes).to_have_count(len(lineage["nodes"]))
    kinds = {node["kind"] for node in lineage["nodes"]}
    assert {"snapshot", "examples", "statistics", "schema", "transformed_examples", "model", "deployment"} <= kinds
    model = next(n for n in lineage["nodes"] if n["kind"] == "model" and n["served"][0]["role"] == "champion")
    expect(page.locator(f"[data-node='{model['id']}']")).to_contain_text(f"v{serving['version']} ")
    snapshot = next(node for node in lineage["nodes"] if node["kind"] == "snapshot")
    page.locator(f"[data-node='{snapshot['id']}']").press("Enter")
    expect(page).to_have_url(re.compile(f"node={snapshot['id']}"))
    expect(page.get_by_role("heading", name="Snapshot")).to_be_visible()
    expect(page.get_by_text(snapshot["fingerprint"][:16]).first).to_be_visible()  # the tooltip has it, too
    link = page.get_by_role("link", name="DAG run", exact=True)
    expect(link).to_have_attribute("href", re.compile(re.escape(quote(snapshot["address"]["run_id"], safe=""))))
    page.reload()
    expect(page.get_by_role("heading", name="Snapshot")).to_be_visible()
