"""Models: how they serve, versions, evaluations, decisions, log; and a promotion that is seen in what is served."""

from __future__ import annotations

import json
import re
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from ui.conftest import OpenPage, Site

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

DAG, MODEL = "flights_training", "flights"
PAGE = f"plugin/hops/models/{MODEL}?dag={DAG}"
API = f"/hops/api/dags/{DAG}/models/{MODEL}"
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def rest_url(site: Site) -> str:
    """The site's model server."""
    extra = json.loads(site.environment["AIRFLOW_CONN_HOPS_DEFAULT"])["extra"]
    return f"http://127.0.0.1:{extra['serving_rest_port']}"


def answering_versions(site: Site, requests: int) -> Counter[str]:
    """How many of some requests that name no version each version answers, as the server counts them."""
    url = f"{rest_url(site)}/v1/models/{MODEL}"
    signature = json.load(_OPENER.open(f"{url}/metadata"))["metadata"]["signature_def"]["signature_def"]
    values = {"DT_STRING": "JFK", "DT_INT64": 1, "DT_FLOAT": 1.0}
    inputs = {name: [values[each["dtype"]]] for name, each in signature["serving_default"]["inputs"].items()}
    counts = _counted(site)
    for _ in range(requests):
        _OPENER.open(urllib.request.Request(f"{url}:predict", json.dumps({"inputs": inputs}).encode())).read()
    return _counted(site) - counts


def _counted(site: Site) -> Counter[str]:
    versions = json.load(_OPENER.open(f"{rest_url(site)}/v1/stats"))["models"][MODEL]["versions"]
    return Counter({version: counts["codes"].get("OK", 0) for version, counts in versions.items()})


def decide(site: Site, action: str, what: Mapping[str, Any]) -> None:
    """Decides by the API: ``promote``, ``traffic`` or ``roll_back``."""
    answer = httpx.post(
        f"{site.url}{API}/{action}",
        json={**what, "reason": "as it was before a test", "request_id": uuid.uuid4().hex},
        headers={"Authorization": f"Bearer {site.token('admin')}"},
        trust_env=False,
        timeout=300,
    )
    assert answer.status_code == 200, answer.text


def promote(site: Site, version: int) -> None:
    """Promotes a version by the API, even one that a test has rolled back."""
    decide(site, "promote", {"version": version, "allow_rolled_back": True})


@pytest.fixture
def champion(site: Site) -> Iterator[int]:
    """The champion; after the test it is that again."""
    version: int = site.get(API)["champion"]["version"]
    yield version
    if site.get(API)["champion"]["version"] != version:
        promote(site, version)


def tiles(page: Page) -> Any:
    return page.get_by_role("region", name="Endpoint")


def panel(page: Page, tab: str) -> Locator:
    """The panel of a tab; that of the tab before may stay a moment longer."""
    return page.get_by_role("tabpanel", name=tab, exact=True)


def test_model_page_shows_the_serving_version(site: Site, open_page: OpenPage) -> None:
    known = site.get(API)
    version = known["champion"]["version"]
    answering_versions(site, 3)
    for _ in range(20):  # among the thousands that the demo has sent
        malformed = httpx.post(f"{rest_url(site)}/v1/models/{MODEL}:predict", json={"instances": [1]}, trust_env=False)
        assert malformed.status_code == 400
    page = open_page(f"plugin/hops/models?dag={DAG}")
    expect(page.locator("h1")).to_have_text(MODEL)  # the only one is opened at once
    expect(tiles(page).get_by_text("answers")).to_be_visible()
    expect(tiles(page).get_by_role("img", name=f"Traffic: version {version} 100%")).to_be_visible()
    for name in ("Requests", "Errors", "Latency p50", "Latency p99"):
        expect(tiles(page).get_by_role("group", name=re.compile(f"^{name}: "))).to_be_visible()
    # A client's mistake is no failure of the server.
    expect(tiles(page).get_by_role("group", name=re.compile(r"^Refused: (?!0%)\d"))).to_be_visible()
    expect(tiles(page).get_by_role("group", name="Errors: 0%")).to_be_visible()
    expect(page.get_by_role("img", name="Requests per second by version", exact=True)).to_be_visible()
    versions = page.get_by_role("table", name="Versions").locator("tbody tr[data-index]")
    expect(versions).to_have_count(len(known["deployed"]))
    expect(versions.filter(has=page.get_by_text("champion", exact=True))).to_contain_text("available")
    page.get_by_role("radio", name="1 h").check(force=True)
    expect(page).to_have_url(re.compile("minutes=60"))
    page.reload()
    expect(page.get_by_role("radio", name="1 h")).to_be_checked()


def test_an_evaluation_is_drilled_into_by_version_split_and_slice(site: Site, open_page: OpenPage) -> None:
    newest = max(site.get(API)["deployed"])
    result = site.get(f"{API}/versions/{newest}/evaluation")["evaluation"]["report"]
    page = open_page(PAGE)
    expect(page.get_by_role("img", name="Requests per second by version", exact=True)).to_be_visible()  # above the rows
    page.get_by_role("table", name="Versions").locator("tbody tr[data-index]").first.click()
    expect(page).to_have_url(re.compile(f"tab=evaluation&version={newest}"))
    evaluation = panel(page, "Evaluation")
    expect(evaluation.get_by_text("blessed", exact=True)).to_be_visible()
    for reason in result["reasons"]:
        expect(evaluation.get_by_text(reason.replace("auc", "AUC").replace("log_loss", "log loss"))).to_be_visible()
    split = next(iter(result["splits"].values()))
    figures = page.get_by_role("table", name="Figures on all rows")
    expect(figures).to_contain_text(f"{split['candidate']['auc']:.4f}".rstrip("0"))
    expect(figures).to_contain_text(f"+{split['gain']['difference']:.3g}")
    expect(page.get_by_role("img", name="Calibration: observed against predicted")).to_be_visible()
    slices = page.get_by_role("table", name="Slices by carrier")
    largest = max(split["slices"]["carrier"], key=lambda each: each["rows"])
    expect(slices.locator("tbody tr[data-index]").first).to_contain_text(largest["value"])
    slices.get_by_role("button", name="Gain").click()
    expect(page).to_have_url(re.compile("slicesort=-gain"))
    gains = {each["value"]: (each["gain"] or {}).get("difference") for each in split["slices"]["carrier"]}
    best = max((value for value, gain in gains.items() if gain is not None), key=lambda value: gains[value])
    expect(slices.locator("tbody tr[data-index]").first).to_contain_text(best)
    page.get_by_placeholder("Search carrier").fill(largest["value"])
    expect(slices.locator("tbody tr[data-index]")).to_have_count(1)
    page.get_by_role("radio", name="origin").check(force=True)
    expect(page.get_by_role("table", name="Slices by origin").locator("tbody tr[data-index]")).to_have_count(3)
    page.get_by_role("radio", name=re.compile("^v1")).check(force=True)
    expect(page.get_by_text("there was no champion to compare it with")).to_be_visible()
    refused = site.get(API)["refused"][0]  # the demo's training of one epoch
    page.get_by_label("Refused candidate").select_option(index=1)
    expect(page.get_by_text(f"compared with version {refused['champion_version']}")).to_be_visible()
    expect(page.get_by_text("not blessed", exact=True)).to_be_visible()
    expect(figures.get_by_role("columnheader", name="candidate")).to_be_visible()
    judged = refused["judged"]
    run = f"/hops/api/dags/{DAG}/runs/{quote(judged['run_id'], safe='')}"
    path = f"{run}/artifacts/{judged['task_id']}/{judged['map_index']}/{judged['kind']}/evaluation"
    split = next(iter(site.get(path)["report"]["splits"].values()))
    expect(figures).to_contain_text(f"{split['candidate']['auc']:.4f}".rstrip("0"))
    page.go_back()
    expect(page.get_by_role("table", name="Versions")).to_be_visible()


def test_rollout_is_shown_step_by_step_and_the_log_is_filtered(site: Site, open_page: OpenPage) -> None:
    decisions = site.get(API)["decisions"]
    steps = [each for each in decisions if each["canary"] is not None]
    page = open_page(f"{PAGE}&tab=decisions")
    expect(page.get_by_text(f"Rollout of version {steps[0]['version']}: promoted")).to_be_visible()
    first = page.get_by_role("button", name=re.compile(f"^passed at {steps[-1]['percent']}%"))
    expect(first).to_contain_text("no errors, ")
    first.click()
    compared = page.get_by_role("table", name=f"What was compared at {steps[-1]['percent']}%")
    for finding in steps[-1]["findings"]:
        row = compared.get_by_role("row").filter(has=page.get_by_text(finding["text"], exact=True))
        unlimited = "ks_statistic" in finding["numbers"] and "max_prediction_distance" not in finding["numbers"]
        expect(row).to_contain_text("for the record" if unlimited else finding["verdict"].replace("_", " "))
    page.get_by_role("tab", name="Performance").click()
    measured = site.get(f"{API}/performance")["report"]
    expect(page.get_by_role("link", name="flights_monitoring.performance")).to_be_visible()
    (first,) = measured["versions"]
    row = panel(page, "Performance").get_by_role("row").filter(has=page.get_by_text("v1", exact=True))
    expect(row).to_contain_text(f"{100 * first['labelled'] / first['rows']:.3g}%")
    value, low, _ = first["figures"]["auc"]
    assert 0.5 < low < value < 0.9
    page.get_by_role("tab", name="Log").click()
    log = page.get_by_role("log")
    expect(log.get_by_text(re.compile(f"model {MODEL} version 1 loaded in")).first).to_be_visible()
    panel(page, "Log").get_by_label("Version", exact=True).select_option("2")
    expect(log.get_by_text("version 1 loaded")).to_have_count(0)
    expect(page).to_have_url(re.compile("of=2"))
    page.get_by_label("Level").select_option("ERROR")
    expect(page.get_by_text("None of the newest lines")).to_be_visible()


def test_decision_on_the_page_changes_serving_where_it_is_allowed(
    site: Site, champion: int, open_page: OpenPage
) -> None:
    viewed = open_page(PAGE, user="viewer")
    expect(viewed.get_by_text("you need permission to trigger")).to_be_visible()
    for name in ("Promote", "Set traffic", "Roll back"):
        expect(viewed.get_by_role("button", name=name)).to_have_count(0)
    other = next(version for version in site.get(API)["deployed"] if version != champion)
    assert answering_versions(site, 20) == {str(champion): 20}
    page = open_page(PAGE, user="op")
    grey = page.get_by_role("button", name=re.compile("^Set traffic ?.Traffic is shared"))
    expect(grey).to_have_attribute("aria-disabled", "true")
    grey.focus()
    expect(page.get_by_role("tooltip")).to_contain_text("there is no challenger")
    back = page.get_by_role("button", name=re.compile("^Promote ?.There is no other version that was not champion"))
    expect(back).to_have_attribute("aria-disabled", "true")
    page.get_by_role("button", name="Roll back").click()
    dialog = page.get_by_role("alertdialog")
    expect(dialog).to_contain_text(f"Roll {MODEL} back to version {other}?")
    expect(dialog).to_contain_text(f"Version {champion}, the champion now, is marked as rolled back, and unloaded.")
    expect(dialog.get_by_role("table", name="Figures on all rows")).to_contain_text("better")
    confirm = dialog.get_by_role("button", name="Roll back")
    expect(confirm).to_be_disabled()
    reason = f"<img src=x onerror=alert(1)> {uuid.uuid4().hex}"
    dialog.get_by_role("textbox", name="Reason").fill(reason)
    confirm.click()
    expect(dialog).to_have_count(0)
    serves = page.get_by_role("main").get_by_text(re.compile(r"^v\d+$")).first
    expect(serves).to_have_text(f"v{other}")
    assert answering_versions(site, 20) == {str(other): 20}
    page.get_by_role("tab", name="Decisions").click()
    expect(panel(page, "Decisions").get_by_text(reason)).to_be_visible()
    expect(panel(page, "Decisions").get_by_text("by op").first).to_be_visible()
    taken_over, taken_back = site.get(API)["decisions"][:2]
    assert (taken_over["event"], taken_over["version"]) == ("promoted", other)
    assert (taken_back["event"], taken_back["version"], taken_back["to"]) == ("rolled_back", champion, other)
    assert taken_over["by"]["user"] == taken_back["by"]["user"] == "op"

    page.get_by_role("button", name="Promote", exact=True).click()
    dialog.get_by_role("textbox", name="Reason").fill("it was a test")
    expect(dialog.get_by_role("button", name="Promote")).to_be_disabled()  # what was rolled back is chosen by a person
    dialog.get_by_label("Version", exact=True).select_option(str(champion))
    expect(dialog).to_contain_text(f"Promote version {champion} of {MODEL}?")
    expect(dialog).to_contain_text(f"Version {champion} was rolled back before")
    dialog.get_by_role("button", name="Promote").click()
    expect(dialog).to_have_count(0)
    expect(serves).to_have_text(f"v{champion}")
    assert answering_versions(site, 20) == {str(champion): 20}
