"""The way to the pages, and what they have in common."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from ui.accessibility import COLOURS, OPENED, UNMARKED, grave_violations
from ui.conftest import TIMEOUT_MS, OpenPage, Site, expect_at_rest, follow

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

DAG = "flights_training"
MONITOR = "flights_monitoring"
OF_A_PIPELINE = {
    "data": (
        "data?", "data?feature=origin", "data?tab=dive", "schema?", "schema?feature=origin", "schema?tab=anomalies",
        "schema?tab=versions",
    ),
    "models": (
        "runs?", "runs?view=curves", "runs?run={training}", "models?", "models/flights?",
        "models/flights?tab=evaluation", "models/flights?tab=decisions",
    ),
    "tabs": ("overview?", "skew?feature=origin", "lineage?", "lineage?view=list"),
}  # fmt: skip
TABS = {DAG: ("/tasks/train", "/tasks/evaluate", "/tasks/validate", ""), MONITOR: ("/tasks/skew",)}
"""The tabs on a run and on its tasks, by DAG, which are looked at with the part ``tabs``."""
BUTTONS = (
    ("?", "Choose columns"),
    ("overview?", f"{DAG}: choose a pipeline"),
    ("data?", "Add data"),
    ("data?", "Choose columns"),
    ("models/flights?", "Replace champion"),
    ("models/flights?", "Roll back"),
    ("models/flights?", "Change owners"),
)
"""Dialogs and menus: the page, and the button that opens each."""
PAGES = ["Overview", "Data", "Schema", "Runs", "Models", "Skew", "Lineage"]
MISSING = {
    f"data?dag={DAG}&tab=dive&artifact=examples/{DAG}/transform/-1/no-run": "Not found",
    f"data?dag={DAG}&tab=dive&artifact=nonsense": "expected kind/dag/task/index/run",
    f"lineage?dag={DAG}&version=999": "Version 999 was not found",
    f"data?dag={DAG}&artifact=statistics/{DAG}/statistics/-1/no-run": "Not found",
    f"runs?dag={DAG}&view=studies&study=browsed/-1/never": f"task 'browsed' of DAG '{DAG}' has no study 'never'",
    "data?dag=fashion_mnist": "This pipeline computes no statistics",
    "data?dag=fashion_mnist&tab=dive": "No rows yet",
    "runs?dag=fashion_mnist": "No training runs yet",
    "skew?dag=fashion_mnist": "This pipeline is not monitored",
    "lineage?dag=fashion_mnist": "No artifacts yet",
}
"""Addresses of the pages, and what they say there."""


def test_navigation_leads_to_pipelines_and_their_pages(open_page: OpenPage) -> None:
    page = open_page("plugin/hops/skew")  # without a pipeline, it asks for one
    page.get_by_role("link", name=DAG, exact=True).click()
    expect(page).to_have_url(re.compile(f"/plugin/hops/skew[?]dag={DAG}$"))
    page.get_by_role("button", name=f"{DAG}: choose a pipeline").click()
    page.get_by_role("menuitemradio", name="fashion_mnist").click()
    expect(page).to_have_url(re.compile("/plugin/hops/skew[?]dag=fashion_mnist$"))
    page.go_back()
    expect(page).to_have_url(re.compile(f"dag={DAG}$"))
    entry = page.get_by_role("link", name="Pipelines", exact=True).first
    cut_off = "link => [...link.querySelectorAll('*')].some(each => each.scrollWidth > each.clientWidth)"
    assert not entry.evaluate(cut_off)
    entry.click()
    expect(page.locator("h1")).to_have_text("ML Pipelines")
    page.get_by_role("link", name=DAG, exact=True).click()
    for label in PAGES:
        page.get_by_role("navigation", name="Pages of the pipeline").get_by_role("link", name=label).click()
        path, title = ("models/flights", "flights") if label == "Models" else (label.lower(), label)
        expect(page).to_have_url(re.compile(f"/behind/a-proxy/plugin/hops/{path}[?]dag={DAG}"))
        expect(page).to_have_title(f"{title} · {DAG} · ML Pipelines · Airflow")
    page.reload()
    expect(page.locator("h1")).to_have_text(PAGES[-1])


def test_navigation_leads_to_a_page_that_is_asked_for_while_the_only_model_opens(
    site: Site, open_page: OpenPage
) -> None:
    page = open_page("plugin/hops", own=True)
    skew = f"{site.url}/plugin/hops/skew?dag={DAG}"

    def answer(route: Route) -> None:
        page.evaluate("url => history.pushState(null, '', url)", skew)  # as a link does, before its page is drawn
        route.continue_()

    page.route(re.compile(f"/hops/api/dags/{DAG}/models$"), answer, times=1)
    follow(page, f"{site.url}/plugin/hops/models?dag={DAG}")
    expect(page).to_have_url(skew)
    expect_at_rest(page)
    page.evaluate("dispatchEvent(new PopStateEvent('popstate'))")
    expect(page.locator("main h1")).to_have_text("Skew")
    page.go_back()
    expect(page.locator("main h1")).to_have_text("flights")


def test_empty_pages_explain_how_to_start_and_an_ended_session_leads_to_the_login(
    site: Site, open_page: OpenPage
) -> None:
    page = open_page("plugin/hops/nowhere", problems_expected=True, own=True)
    expect(page.get_by_text("Page not found")).to_be_visible()
    run = site.get(f"/hops/api/dags/{DAG}/runs?with=statistics")["entries"][0]["run_id"]
    blessing = f"data?dag={DAG}&tab=dive&artifact=infra_blessing/{DAG}/infra_validate/-1/{quote(run)}"
    for path, text in {blessing: "No rows in this artifact", **MISSING}.items():
        follow(page, f"{site.url}/plugin/hops/{path}")
        expect(page.get_by_text(text)).to_be_visible()
    page.context.clear_cookies()
    page.get_by_role("navigation", name="Pages of the pipeline").get_by_role("link", name="Schema").click()
    expect(page).to_have_url(re.compile("/auth/login[?]next="))


def _choose_theme(page: Page, theme: str) -> None:
    """As the choice in the user's menu does."""
    changed = f"new StorageEvent('storage', {{key: 'theme', newValue: '{theme}'}})"
    page.evaluate(f"localStorage.theme = '{theme}'; dispatchEvent({changed})")
    expect(page.locator("html")).to_have_class(theme)


def _looked_at(site: Site, part: str) -> list[tuple[str, Any]]:
    """The addresses of a part of the pages, each with the button that is pressed there, or None."""
    if part == "dialogs":
        return [(f"plugin/hops/{path}&dag={DAG}".replace("hops/?&", "hops?"), button) for path, button in BUTTONS]
    training = site.get(f"/hops/api/dags/{DAG}/training-runs")["entries"][0]["run_id"]
    result = [f"plugin/hops/{path.format(training=training)}&dag={DAG}" for path in OF_A_PIPELINE[part]]
    if part == "tabs":
        result.append("plugin/hops")
        for dag, tabs in TABS.items():
            (run,) = site.get(f"/api/v2/dags/{dag}/dagRuns?order_by=-run_after&limit=1")["dag_runs"]
            path = f"dags/{dag}/runs/{quote(run['dag_run_id'], safe='')}"
            result += [f"{path}{tab}/plugin/hops-{'task' if tab else 'run'}" for tab in tabs]
    return [(path, None) for path in result]


@pytest.mark.parametrize("part", [*OF_A_PIPELINE, "dialogs"])
def test_axe_finds_nothing_serious_on_any_page_light_and_dark(site: Site, open_page: OpenPage, part: str) -> None:
    themes = ["light", "dark"]
    page = open_page("plugin/hops", theme=themes[0])
    results: list[str] = []
    colours: dict[str, set[str]] = {theme: set() for theme in themes}
    for path, button in _looked_at(site, part):
        follow(page, f"{site.url}/{path}")
        expect(page.locator("main h1")).to_be_attached()
        expect_at_rest(page)
        expect(page.get_by_text("This part of the page failed")).to_have_count(0)
        portal = page.locator(OPENED)
        scope = {} if button is None else {"within": OPENED}  # the page below has been looked at without it
        if button is not None:
            page.get_by_role("button", name=button, exact=True).first.click()
            expect(portal.filter(visible=True)).to_have_count(1)
        results += grave_violations(page, themes[0], **scope)
        themes.reverse()
        _choose_theme(page, themes[0])
        results += grave_violations(page, themes[0], COLOURS, **scope)
        colours[themes[0]].add(page.locator("main h1").evaluate("element => getComputedStyle(element).color"))
        if button is not None:
            page.keyboard.press("Escape")
            expect(portal.filter(visible=True)).to_have_count(0)
    assert results == []
    assert colours["light"].isdisjoint(colours["dark"])  # the pages follow Airflow's mode


def test_typing_is_kept_while_the_address_follows_slowly(open_page: OpenPage) -> None:
    page = open_page(f"plugin/hops/data?dag={DAG}", own=True)
    search = page.get_by_role("textbox", name=re.compile("^Search, or"))
    search.evaluate("input => { input.sameAsBefore = true }")
    search.press_sequentially("te")
    expect(page).to_have_url(re.compile("search=te$"))
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": 8})
    for text in ("di", "te"):
        search.fill("")
        # What was there has left the address, and the page is not drawn anew yet.
        page.wait_for_function("!location.search.includes('search=')", polling=20)
        search.press_sequentially(text, delay=400)
        expect(page).to_have_url(re.compile(f"search={text}$"))
        expect(search).to_have_value(text)
    expect(search).to_be_focused()
    assert search.evaluate("input => input.sameAsBefore === true")  # the page was never loaded anew


def enlarged(answer: str) -> str:
    """Returns an answer of the API with versions, counts and durations of a long-lived pipeline."""
    for pattern, value in (
        (r'"version":([12])\b', r'"version":40\1'),
        (r'"traffic":\{"2":100\}', '"traffic":{"402":92,"401":8}'),
        (r'"(duration_s|seconds|watched_s)":[\d.]+', r'"\1":86399.0'),
        (r'"(requests|rows|rows_in|rows_out|rows_current|rows_reference)":\d+', r'"\1":123456789'),
    ):
        answer = re.sub(pattern, value, answer)
    return answer


def test_no_number_is_cut_beside_visible_scroll_bars(browser: Browser, chromium: str, site: Site) -> None:
    def answer(route: Route) -> None:
        response = route.fetch(timeout=TIMEOUT_MS)
        route.fulfill(response=response, body=enlarged(response.text()))

    shown = browser.browser_type.launch(
        executable_path=chromium, args=["--no-sandbox"], ignore_default_args=["--hide-scrollbars"]
    )
    with shown, shown.new_context() as context:
        context.add_cookies([{"name": "_token", "value": site.token("admin"), "url": site.url}])
        page = context.new_page()
        page.route(re.compile(r"/hops/api/"), answer)
        unmarked = {}
        for path in ("?", "overview?", "schema?tab=anomalies", "runs?", "models/flights?", "skew?"):
            page.goto(f"{site.url}/plugin/hops/{path}&dag={DAG}")
            expect(page.locator("main")).to_contain_text(re.compile(r"\d"), timeout=TIMEOUT_MS)
            for width in (1280, 390):
                page.set_viewport_size({"width": width, "height": 800})
                expect_at_rest(page)
                unmarked[path, width] = page.evaluate(UNMARKED)
    assert {place: cut for place, cut in unmarked.items() if cut} == {}
