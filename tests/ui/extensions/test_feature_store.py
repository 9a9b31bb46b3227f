"""The Features page: views that are found by what they hold, and their owners."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect
from web.extensions.test_feature_store import OWNED_NAME, configuration

from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.owners import claim
from ui.accessibility import grave_violations
from ui.conftest import OpenPage
from ui.own_dags import OwnDags

pytestmark = [pytest.mark.runtime]


def test_views_are_searchable(open_page: OpenPage, own: OwnDags) -> None:
    own.run("pages_features", **configuration())
    assert own.wait_for(lambda: own.states("pages_features")) == ["success"]
    claim(ArtifactStore((own.site.home / "store").as_uri()), "features", OWNED_NAME, "pages_features")
    page = open_page("plugin/hops/features?dag=pages_features")
    views = page.get_by_role("table", name="Feature views").locator("tr[data-index]")
    expect(views).to_have_count(2)
    expect(views.first).to_contain_text("mean_delay Float32")
    expect(views.first).to_contain_text("ops@example.com")
    expect(views.last).to_contain_text("never")
    page.get_by_role("button", name="Change owners").click()
    page.get_by_label("DAGs, separated by commas").fill("pages_features, pages_schema")
    page.get_by_label("Reason").fill("one team")
    page.get_by_role("alertdialog").get_by_role("button", name="Change owners").click()
    expect(page.get_by_text("owned by pages_features, pages_schema")).to_be_visible()
    page.get_by_placeholder("Search views, features and owners").fill("wind")
    expect(views).to_have_count(1)
    expect(views.first).to_contain_text("weather")
    assert grave_violations(page) == []
