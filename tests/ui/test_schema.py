"""The page of schemas and anomalies: of the demo, and of a pipeline that asks what to do about its data."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect
from shown_demo import REPOSITORY

from airflow_hops.operators.validation import APPROVE, CONTINUE, REJECT
from demo.services import free_port
from ui.conftest import PASSWORDS, OpenPage, Site

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

DEMO = "plugin/hops/schema?dag=flights_training"
PAGE = "plugin/hops/schema?dag=pages_schema"
HOSTILE = "<img src=x onerror=alert(1)>"
SCRIPT = "<script>alert(2)</script>"
WAIT_S = 180.0


class AskingSite:
    """A web UI, and a process in which the DAG ``pages_schema`` runs and waits for answers."""

    def __init__(self, site: Site, process: subprocess.Popen[str]) -> None:
        self.site = site
        self._lines: list[str] = []
        threading.Thread(target=self._read, args=[process], daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.append(line.rstrip())

    def states(self) -> list[str]:
        """The states of the runs that are over."""
        return [line.removeprefix("over: ") for line in self._lines if line.startswith("over: ")]

    def wait_for(self, what: Callable[[], Any]) -> Any:
        """What there is to be, as soon as it is there."""
        deadline = time.monotonic() + WAIT_S
        while not (found := what()):
            assert time.monotonic() < deadline, "\n".join(self._lines[-40:])
            time.sleep(0.3)
        return found

    def is_ready(self) -> bool:
        """Whether there is a database."""
        return "ready" in self._lines

    def waiting(self) -> dict[str, Any] | None:
        """The validation that waits for an answer; None before the first run is over."""
        if not self.states():
            return None
        found = self.site.get("/hops/api/dags/pages_schema/validations")["validations"]
        return next((each for each in found if (each["question"] or {}).get("state") == "waiting"), None)

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


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/api/v2/version", trust_env=False, timeout=10).is_success
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory, runtime: Path, pages_built: None) -> Iterator[AskingSite]:
    """An Airflow of its own, so that nobody's scheduler and no other test has to do with its runs."""
    home, port = tmp_path_factory.mktemp("asking"), free_port()
    (home / "passwords.json").write_text(json.dumps(PASSWORDS))
    (home / "dags").mkdir()
    shutil.copy(REPOSITORY / "tests" / "dags" / "pages_schema.py", home / "dags")
    url = f"http://127.0.0.1:{port}"
    extra = {"store": str(home / "store"), "runtime": str(runtime), "tracking_uri": f"sqlite:///{home}/mlflow.db"}
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{name}" for name in PASSWORDS),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of these tests " * 3,
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW_CONN_HOPS_DEFAULT": json.dumps({"conn_type": "hops", "extra": extra}),
    }
    processes: list[subprocess.Popen[str]] = []

    def start(*command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        return process

    try:
        site = Site(url, home, PASSWORDS, environment)
        asking = AskingSite(site, start(str(Path(__file__).with_name("ask_about_schema.py"))))
        asking.wait_for(asking.is_ready)
        server = AskingSite(site, start("-m", "airflow", "api-server", "--port", str(port)))
        server.wait_for(lambda: _is_up(url))
        yield asking
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a DAG that waits for an answer takes no other signal
        for process in processes:
            process.wait(30)


def _rows(page: Page | Locator, label: str) -> Locator:
    return page.get_by_role("table", name=label, exact=True).locator("tbody tr[data-index]")


def _tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=re.compile(f"^{name}")).click()


def test_the_schema_is_sorted_filtered_and_opened(open_page: OpenPage) -> None:
    page = open_page(DEMO)
    rows = _rows(page, "Features of the schema")
    expect(page.get_by_text("22 features").last).to_be_visible()
    expect(page.get_by_text("version 1", exact=True)).to_be_visible()
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
    expect(_rows(page, "Versions of the schema")).to_contain_text("inferred by run")


def test_anomalies_are_told_across_runs_with_values_and_rows(site: Site, open_page: OpenPage) -> None:
    api = "/hops/api/dags/flights_training"
    found = site.get(f"{api}/validations")["validations"]
    at = next(at for at, each in enumerate(found) if "dest" in [feature["feature"] for feature in each["features"]])
    address = found[at]["address"]
    run = quote(address["run_id"], safe="")
    report = site.get(f"{api}/runs/{run}/artifacts/{address['task_id']}/-1/anomalies/anomalies")
    told = next(each for each in report["anomalies"] if (each["feature"], each["split"]) == ("dest", "train"))
    names = ("kind", "dag_id", "task_id", "map_index", "run_id")
    artifact = quote("/".join(str(address[name]) for name in names), safe="")
    page = open_page(f"{DEMO}&artifact={artifact}", theme="dark")
    timeline = page.get_by_role("table", name="Anomalies across runs")
    expect(timeline.get_by_role("button")).to_have_count(len(found))
    rows = _rows(page, "Anomalies")
    expect(rows).to_have_count(len(found[at]["features"]))
    page.get_by_role("button", name="Rows of train").click()
    expect(rows.first).to_contain_text("dest")
    expect(rows.first).to_contain_text("ABQ")
    rows.first.click()
    panel = page.get_by_role("complementary", name="Anomalies of dest")
    expect(panel.get_by_role("region", name="Split train")).to_contain_text(f"{told['reasons'][0]['rows']} of ")
    expect(panel.get_by_role("link", name="Its data")).to_have_attribute("href", re.compile("/data.*feature=dest"))
    proposal = page.get_by_role("table", name="From version 1 to proposed")
    expect(proposal.get_by_text("+ ABQ")).to_be_visible()
    expect(page.get_by_text('on_anomaly="ask"')).to_be_visible()
    timeline.locator("[aria-current] button").press("ArrowLeft")
    expect(page).to_have_url(re.compile(quote(found[at + 1]["address"]["run_id"][:18])))
    expect(rows).to_have_count(len(found[at + 1]["features"]))
    page.go_back()
    expect(rows).to_have_count(len(found[at]["features"]))


def test_a_proposal_is_approved_on_the_page_and_the_run_goes_on_with_it(
    asking: AskingSite, open_page: OpenPage
) -> None:
    validation = asking.wait_for(asking.waiting)
    viewed = open_page(PAGE, site=asking.site, user="viewer", theme="dark")
    viewed.get_by_role("button", name="Look at it").click()
    decision = viewed.get_by_role("region", name="Decision")
    expect(decision.get_by_text("You may see this, but not answer it.")).to_be_visible()
    expect(decision.get_by_role("button")).to_have_count(0)
    assert asking.answer(validation, APPROVE, "viewer") == 403
    page = open_page(PAGE, site=asking.site)
    page.on("dialog", lambda dialog: pytest.fail(f"something of the data was run: {dialog.message}"))
    page.get_by_role("button", name="Look at it").click()
    expect(_rows(page, "Anomalies").filter(has_text=HOSTILE)).to_contain_text(SCRIPT)
    expect(page.get_by_role("table", name="From version 1 to proposed").get_by_text(f"+ {SCRIPT}")).to_be_visible()
    expect(_rows(page, "Rows in quarantine").first).to_contain_text("not in the domain")
    expect(page.locator("img[src=x]")).to_have_count(0)
    page.get_by_role("region", name="Decision").get_by_role("button", name=APPROVE).click()
    dialog = page.get_by_role("alertdialog")
    expect(dialog.get_by_role("button", name=APPROVE)).to_be_disabled()  # without a reason
    dialog.get_by_role("textbox").fill("new suppliers")
    dialog.get_by_role("button", name=APPROVE).click()
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
    expect(page.get_by_role("table", name="From version 1 to version 2").get_by_text(f"+ {SCRIPT}")).to_be_visible()


def test_an_answer_that_comes_too_late_is_told_who_was_first(asking: AskingSite, open_page: OpenPage) -> None:
    validation = asking.wait_for(asking.waiting)
    page = open_page(f"{PAGE}&tab=anomalies", site=asking.site, problems_expected=True)
    page.get_by_role("region", name="Decision").get_by_role("button", name=CONTINUE).click()
    dialog = page.get_by_role("alertdialog")
    dialog.get_by_role("textbox").fill("once")
    assert asking.answer(validation, REJECT, "op") == 200
    dialog.get_by_role("button", name=CONTINUE).click()
    decision = page.get_by_role("region", name="Decision")
    expect(decision).to_contain_text("Somebody has answered meanwhile")
    expect(decision).to_contain_text(f"{REJECT} by op")
    expect(decision).to_contain_text("not like this")
    asking.wait_for(lambda: len(asking.states()) > 2)
    assert asking.states()[2] == "failed"
