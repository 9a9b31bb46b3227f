"""The studies on the runs page, as the contract writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.experiments.core.studies import StudyFolder
from tests.extensions.experiments.written_studies import write_study
from ui.accessibility import expect_fits, grave_violations
from ui.conftest import OpenPage, Site

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

DAG = "flights_training"
STUDIES = f"plugin/hops/runs?dag={DAG}&view=studies"
NAME = "manual__2026-11-20T10:00:00+00:00"


@pytest.fixture(scope="module")
def store(site: Site) -> ArtifactStore:
    return ArtifactStore(json.loads(site.environment["AIRFLOW_CONN_HOPS_DEFAULT"])["extra"]["store"])


@pytest.fixture
def study(store: ArtifactStore) -> Iterator[StudyFolder]:
    """A study of two metrics that runs; nothing is left of it."""
    metrics = ["eval_auc", "latency_ms"]
    folder = write_study(store, DAG, NAME, 30, task_id="browsed", state="running", metrics=metrics)
    store.write_text(f"{folder.uri}/journal.log", "")
    yield folder
    folder.clear()


def _rows(page: Page) -> Any:
    return page.get_by_role("table", name="Trials").locator("tbody tr[data-index]")


def test_a_study_is_opened_and_its_trials_are_filtered_on_a_phone_too(study: StudyFolder, open_page: OpenPage) -> None:
    page = open_page(STUDIES, theme="dark", height=2600)
    row = page.get_by_role("table", name="Studies").locator("tbody tr", has_text="browsed")
    expect(row).to_contain_text("26 complete, 2 failed, 2 running")
    row.click()
    expect(page.get_by_role("heading", name=NAME)).to_be_visible()
    expect(page.get_by_text("28 of 50 trials")).to_be_visible()
    record = study.read()
    assert record is not None
    best = re.compile(r"^Best eval_auc so far over 26 complete trials: 0\.7")
    expect(page.get_by_role("img", name=best)).to_be_visible()
    expect(page.get_by_text("optuna-dashboard")).to_contain_text("journal.log")
    expect(_rows(page)).to_have_count(30)
    page.get_by_role("button", name="eval_auc", exact=True).click()
    expect(_rows(page).first).to_contain_text(f"{record.best}")
    page.get_by_role("search").get_by_role("button", name="State", exact=True).click()
    page.get_by_role("menuitemcheckbox", name="failed").click()
    expect(_rows(page)).to_have_count(2)
    expect(_rows(page).first).to_contain_text("ValueError: loss is nan at step 12")
    page.get_by_role("button", name="Log of trial 25").click()
    log = page.get_by_role("dialog", name="Trial 25")
    lines = log.get_by_label("the last lines of trial 25", exact=True)
    expect(lines).to_contain_text("Traceback (most recent call last)")
    log.get_by_role("button", name="Close").click()
    expect(log).to_have_count(0)
    page.set_viewport_size({"width": 390, "height": 844})
    expect(_rows(page).first).to_be_visible()
    assert grave_violations(page, "dark") == []
    expect_fits(page)
