"""The rehearsal of a model's monitor: what it would not notice, each fault, and the unchanged windows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.monitor_reports import reports_of_model
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.rehearsal.core.rehearsal import REHEARSAL, Rehearsal
from tests.extensions.rehearsal.small_rehearsals import BLIND, small_rehearsal, write_rehearsal
from ui.accessibility import UNMARKED, expect_fits, grave_violations
from ui.conftest import OpenPage, Site

pytestmark = [pytest.mark.runtime, pytest.mark.spark]
DAG, MODEL = "flights_training", "flights"
PAGE = f"plugin/hops/skew?dag={DAG}&tab=rehearsal"


@pytest.fixture
def store(site: Site) -> Iterator[ArtifactStore]:
    """The site's store, in which no rehearsal is left."""
    store = ArtifactStore(json.loads(site.environment["AIRFLOW_CONN_HOPS_DEFAULT"])["extra"]["store"])
    yield store
    for listed in reports_of_model(store, MODEL, REHEARSAL):
        folder = store.internal("_state", "monitored", MODEL, str(listed.version), REHEARSAL)
        store.remove_text(f"{folder}/{listed.name}")
    store.remove_folder(store.address(_task(), REHEARSAL))


@pytest.fixture
def report(store: ArtifactStore) -> Rehearsal:
    report = small_rehearsal(MODEL, 1)
    write_rehearsal(store, report, _task())
    return report


def _task() -> Producer:
    return Producer("flights_monitoring", "made_up", "rehearse")


def test_what_slips_through_comes_before_the_faults(report: Rehearsal, open_page: OpenPage) -> None:
    page = open_page(PAGE, width=1280, height=1400)
    missed = [each for each in report.faults if each.size is None]
    title = page.get_by_text(f"This monitor would not notice {len(missed)} of {len(report.faults)} faults")
    expect(title).to_contain_text(BLIND)
    blind = page.get_by_role("region", name=BLIND)
    expect(blind.get_by_label(f"arguments for {BLIND}", exact=True)).to_have_text("SkewOperator(thresholds={})")
    rows = page.get_by_role("table", name="Faults").locator("tbody tr[data-index]")
    for row, *words in (
        (0, "labels", "not found", "up to 100% of the labels flip", "makes predictions wrong"),
        (1, BLIND, "not found", "up to shift of 5 standard deviations", "moves predictions by ≥ "),
    ):
        for each in words:
            expect(rows.nth(row)).to_contain_text(each)
    page.get_by_text(f"Only not found ({len(missed)})").click()
    expect(rows).to_have_count(len(missed))
    page.get_by_role("textbox", name="Search features and faults").fill("amount units")
    page.get_by_text("Only not found").click()
    expect(rows).to_have_count(1)
    rows.first.press("Enter")
    drawer = page.get_by_role("dialog", name="[b]amount: units")
    expect(
        drawer.get_by_role("img", name=re.compile(r"^Share of the tries in which units of \[b\]amount"))
    ).to_be_visible()
    drawer.get_by_text("Table", exact=True).click()
    curve = next(each.curve for each in report.faults if (each.feature, each.fault) == ("[b]amount", "units"))
    expect(drawer.get_by_role("table", name="Found by size").locator("tbody tr")).to_have_count(len(curve))
    assert grave_violations(page) == []
    drawer.get_by_role("button", name="Close").click()
    expect(page.get_by_text("this policy would have requested 1 retraining.")).to_be_visible()
    windows = page.get_by_role("table", name="Unchanged windows").locator("tbody tr")
    expect(windows).to_have_count(len(report.windows))
    expect(windows.filter(has_text="requests a retraining")).to_contain_text("plan, age")
    expect(page.get_by_text(report.notes[0])).to_be_visible()


@pytest.mark.parametrize(("width", "theme"), [(390, "dark"), (390, "light"), (1280, "dark"), (1600, "light")])
def test_a_rehearsal_fits_and_has_no_violations(report: Rehearsal, open_page: OpenPage, width: int, theme: str) -> None:
    page = open_page(PAGE, theme=theme, width=width, height=900)
    expect(page.get_by_text("This monitor would not notice")).to_be_visible()
    expect(page.locator("[aria-label=Faults] tbody tr[data-index]").first).to_contain_text("makes predictions wrong")
    expect_fits(page)
    assert page.evaluate(UNMARKED) == []
    assert grave_violations(page, theme) == []


def test_without_a_rehearsal_the_page_says_how_to_run_one(store: ArtifactStore, open_page: OpenPage) -> None:
    page = open_page(f"plugin/hops/skew?dag={DAG}", width=390, own=True)  # another window knows those of other tests
    page.get_by_role("tab", name="Rehearsal").click()
    expect(page.get_by_label("command", exact=True)).to_have_text(f"airflow hops rehearse {MODEL}")
    expect(page.get_by_label("task", exact=True)).to_contain_text(
        'RehearseOperator(task_id="rehearse", model_name="flig'
    )
    expect_fits(page)
    assert grave_violations(page) == []
