"""The page of schemas and anomalies: of the demo, and of a pipeline that asks what to do about its data."""

from __future__ import annotations

import functools
import re
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from airflow_hops.operators.validation import APPROVE
from ui.accessibility import grave_violations
from ui.conftest import OpenPage, Site
from ui.own_dags import OwnDags

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

DEMO = "plugin/hops/schema?dag=flights_training"
PAGE = "plugin/hops/schema?dag=pages_schema"
HOSTILE = "<img src=x onerror=alert(1)>"
SCRIPT = "<script>alert(2)</script>"


class Asking:
    """The DAG ``pages_schema``, which runs and waits for answers."""

    def __init__(self, own: OwnDags) -> None:
        self.site, self.wait_for = own.site, own.wait_for
        self.states = functools.partial(own.states, "pages_schema")

    def waiting(self) -> dict[str, Any] | None:
        """The validation that waits for an answer; None before the first run is over."""
        if not self.states():
            return None
        result = self.site.get("/hops/api/dags/pages_schema/validations")["entries"]
        return next((each for each in result if (each["question"] or {}).get("state") == "waiting"), None)

    def answer(self, validation: dict[str, Any], choice: str, user: str) -> int:
        """Answers elsewhere than on the page; the status."""
        address = validation["address"]
        run = quote(address["run_id"], safe="")
        path = f"/api/v2/dags/pages_schema/dagRuns/{run}/taskInstances/{address['task_id']}/-1/hitlDetails"
        answer = httpx.patch(
            f"{self.site.url}{path}",
            json={"chosen_options": [choice], "params_input": {"note": "not like this"}},
            headers={"Authorization": f"Bearer {self.site.token(user)}"},
            trust_env=False,
        )
        return answer.status_code


@pytest.fixture(scope="module")
def asking(own: OwnDags) -> Asking:
    """The DAG with its first data, and with data that has changed."""
    for changed in ("", "yes"):
        own.run("pages_schema", changed=changed)
    return Asking(own)


def _rows(page: Page | Locator, label: str) -> Locator:
    return page.get_by_role("table", name=label, exact=True).locator("tbody tr[data-index]")


def _tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=re.compile(f"^{name}")).click()


def test_the_schema_is_sorted_filtered_and_opened(open_page: OpenPage) -> None:
    page = open_page(DEMO)
    rows = _rows(page, "Features of the schema")
    expect(page.get_by_text("22 features").last).to_be_visible()
    expect(page.get_by_text("version 2", exact=True)).to_be_visible()
    expect(rows.filter(has_text="late").first).to_contain_text("TRAINING only")
    page.get_by_role("button", name="Domain", exact=True).click()
    expect(page).to_have_url(re.compile("sort=-domain"))
    expect(rows.first).to_contain_text("dest")  # has the largest
    page.get_by_role("button", name="Type", exact=True).first.click()
    page.get_by_role("menuitemcheckbox", name="string").click()
    page.keyboard.press("Escape")
    expect(rows).to_have_count(4)
    rows.filter(has_text="origin").click()
    panel = page.get_by_role("complementary", name="Feature origin")
    expect(panel.get_by_text("3 values", exact=True)).to_be_visible()
    expect(panel.locator("pre")).to_contain_text('name: "origin"')
    page.reload()  # all of it is in the address
    expect(rows).to_have_count(4)
    expect(panel.get_by_text("LGA", exact=True)).to_be_visible()
    page.get_by_text("Text", exact=True).click()
    expect(page.locator("pre")).to_contain_text("default_environment")
    expect(page.get_by_role("button", name="Copy")).to_be_visible()
    _tab(page, "Versions")
    expect(_rows(page, "Versions of the schema").last).to_contain_text("inferred by run")


def test_anomalies_are_shown_across_runs_with_values_and_rows(site: Site, open_page: OpenPage) -> None:
    api = "/hops/api/dags/flights_training"
    result = site.get(f"{api}/validations")["entries"]
    index = next(
        index for index, each in enumerate(result) if "dest" in [feature["feature"] for feature in each["features"]]
    )
    address = result[index]["address"]
    run = quote(address["run_id"], safe="")
    report = site.get(f"{api}/runs/{run}/artifacts/{address['task_id']}/-1/anomalies/anomalies")
    reports = next(each for each in report["anomalies"] if (each["feature"], each["split"]) == ("dest", "train"))
    names = ("kind", "dag_id", "task_id", "map_index", "run_id")
    artifact = quote("/".join(str(address[name]) for name in names), safe="")
    page = open_page(f"{DEMO}&artifact={artifact}", theme="dark")
    timeline = page.get_by_role("table", name="Anomalies across runs")
    expect(timeline.get_by_role("button")).to_have_count(len(result))
    rows = _rows(page, "Anomalies")
    expect(rows).to_have_count(len(result[index]["features"]))
    page.get_by_role("button", name="Rows of train").click()
    of_dest = rows.filter(has_text="ABQ")
    expect(of_dest).to_contain_text("dest")
    of_dest.click()
    panel = page.get_by_role("complementary", name="Anomalies of dest")
    expect(panel.get_by_role("region", name="Split train")).to_contain_text(f"{reports['reasons'][0]['rows']} of ")
    expect(panel.get_by_role("link", name="Data of this feature")).to_have_attribute(
        "href", re.compile("/data.*feature=dest")
    )
    proposal = page.get_by_role("table", name="From version 1 to proposed")
    expect(proposal.get_by_text("+ ABQ")).to_be_visible()
    expect(page.get_by_role("region", name="Decision")).to_contain_text(result[index]["question"]["note"])
    timeline.locator("[aria-current] button").press("ArrowLeft")
    expect(page).to_have_url(re.compile(quote(result[index + 1]["address"]["run_id"][:18])))
    expect(of_dest).to_have_count(0)
    page.go_back()
    expect(of_dest).to_be_visible()


def test_proposal_is_approved_and_used_by_the_run(asking: Asking, open_page: OpenPage) -> None:
    validation = asking.wait_for(asking.waiting)
    viewed = open_page(PAGE, user="viewer", theme="dark")
    viewed.get_by_role("button", name="Review").click()
    decision = viewed.get_by_role("region", name="Decision")
    expect(decision.get_by_text("You do not have permission to answer.")).to_be_visible()
    expect(decision.get_by_role("button")).to_have_count(0)
    assert asking.answer(validation, APPROVE, "viewer") == 403
    page = open_page(PAGE, own=True, problems_expected=True)
    page.on("dialog", lambda dialog: pytest.fail(f"something of the data was run: {dialog.message}"))
    page.get_by_role("button", name="Review").click()
    expect(_rows(page, "Anomalies").filter(has_text=HOSTILE)).to_contain_text(SCRIPT)
    expect(page.get_by_role("table", name="From version 1 to proposed").get_by_text(f"+ {SCRIPT}")).to_be_visible()
    expect(_rows(page, "Rows in quarantine").first).to_contain_text("not in the domain")
    expect(page.locator("img[src=x]")).to_have_count(0)
    dialog = page.get_by_role("alertdialog")
    page.get_by_role("region", name="Decision").get_by_role("button", name=APPROVE).click()
    expect(dialog).to_be_visible()
    assert grave_violations(page) == []
    approve = dialog.get_by_role("button", name=APPROVE)
    expect(approve).to_be_disabled()  # without a reason
    dialog.get_by_label("Reason").fill("new suppliers")
    approve.click()
    decision = page.get_by_role("region", name="Decision")
    expect(decision).to_contain_text("by admin")
    expect(decision).to_contain_text("new suppliers")
    asking.wait_for(lambda: len(asking.states()) > 1)
    assert asking.states() == ["success", "success"]
    _tab(page, "Versions")
    versions = _rows(page, "Versions of the schema")
    expect(versions).to_have_count(2)
    expect(versions.first).to_contain_text("in force")
    expect(versions.first).to_contain_text("admin")
    expect(versions.first).to_contain_text("new suppliers")
    changes = page.get_by_role("table", name="From version 1 to version 2")
    expect(changes.get_by_text(f"+ {SCRIPT}")).to_be_visible()
