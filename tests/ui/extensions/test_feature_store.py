"""The Features page: views that are found by what they hold, and an audit with its causes."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from web.extensions.test_feature_store import configuration

from ui.accessibility import grave_violations
from ui.conftest import OpenPage
from ui.own_airflow import OwnAirflow

pytestmark = [pytest.mark.runtime]


def test_views_are_searchable_and_audits_name_causes(open_page: OpenPage, own: OwnAirflow) -> None:
    for day in (1, 2, 3):
        own.run("pages_features", **configuration(day=day, mean=5.0 * day))
    own.wait_for(lambda: len(own.states("pages_features")) == 3)
    assert set(own.states("pages_features")) == {"success"}
    page = open_page("plugin/hops/features?dag=pages_features", site=own.site)
    views = page.get_by_role("table", name="Feature views").locator("tr[data-index]")
    expect(views).to_have_count(2)
    expect(views.first).to_contain_text("mean_delay Float32")
    expect(views.first).to_contain_text("ops@example.com")
    expect(views.last).to_contain_text("never")
    page.get_by_placeholder("Search views, features and owners").fill("wind")
    expect(views).to_have_count(1)
    expect(views.first).to_contain_text("weather")
    statistics = page.get_by_role("table", name="Statistics of features").locator("tr[data-index]")
    expect(statistics).to_have_count(0)
    page.get_by_placeholder("Search views, features and owners").fill("delay")
    expect(statistics).to_have_count(1)
    expect(statistics.get_by_role("img", name="Mean of delays:mean_delay: now 15, from 5 to 15")).to_be_visible()
    expect(statistics.get_by_role("img", name="Missing of delays:mean_delay: now 3%")).to_be_visible()
    expect(statistics).to_contain_text("12 to 18")
    expect(page.get_by_text("Rows of the offline store in 3 windows")).to_be_visible()
    audited = page.get_by_role("table", name="Audited columns").locator("tr[data-index]")
    expect(audited.first).to_contain_text("expired value 9")
    expect(page.get_by_text("900 rows of requests to flights")).to_have_count(3)
    assert grave_violations(page) == []
