"""Pages that other distributions and our extensions bring: each bundle is loaded where its page is shown."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from ui.accessibility import grave_violations
from ui.conftest import OpenPage, follow

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

DAG = "flights_training"
BUNDLE = re.compile(r"/behind/a-proxy/hops/static/(\w+)[.]umd[.]js[?]v=\w+")


def test_page_of_another_distribution_is_loaded_where_it_is_shown(open_page: OpenPage) -> None:
    loaded: list[str] = []
    page = open_page(own=True)
    page.on("request", lambda sent: loaded.extend(BUNDLE.findall(sent.url)))
    base = page.url.partition("/behind/a-proxy")[0] + "/behind/a-proxy"
    follow(page, f"{base}/plugin/hops/skew?dag={DAG}")
    navigation = page.get_by_role("navigation", name="Pages of the pipeline")
    expect(navigation.get_by_role("link", name="Features")).to_be_visible()
    assert loaded == ["hops"]
    navigation.get_by_role("link", name="Calibration").click()
    expect(page).to_have_url(re.compile(f"/plugin/hops/calibration[?]dag={DAG}$"))
    expect(page).to_have_title(f"Calibration · {DAG} · ML Pipelines · Airflow")
    expect(page.get_by_text(f"calibrated by {DAG}")).to_be_visible()  # by its own route
    page.get_by_role("button", name="Counted 0").click()
    expect(page.get_by_role("button", name="Counted 1")).to_be_visible()  # one React
    assert grave_violations(page, "light") == []
    navigation.get_by_role("link", name="Features").click()
    expect(page.get_by_text("This pipeline uses no feature store")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("button", name="Counted 0")).to_be_visible()
    assert loaded == ["hops", "calibration", "features"]  # once each
    page.reload()
    expect(page.get_by_role("button", name="Counted 0")).to_be_visible()


def test_bundle_without_a_component_says_so_in_its_place(open_page: OpenPage) -> None:
    page = open_page(f"plugin/hops/models/flights?dag={DAG}&tab=nothing", problems_expected=True)
    message = page.get_by_text("hops/static/nothing.umd.js?v=")
    expect(message).to_contain_text("does not define globalThis.AirflowPlugin")
    page.get_by_role("tab", name="Decisions").click()
    expect(page.get_by_role("tabpanel", name="Decisions")).to_contain_text("Rollout of version")
    expect(page.get_by_role("tab", name="Segments")).to_have_count(0)  # the model is no fleet
