"""The way to the pages, and what they have in common."""

from __future__ import annotations

import contextlib
import re
from urllib.parse import quote

import pytest
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Locator, Page, expect
from waiting import wait_for

from ui.accessibility import COLOURS, OPENED, grave_violations
from ui.conftest import NOWHERE, OpenPage, Site, follow

pytestmark = [pytest.mark.runtime, pytest.mark.spark]

DAG = "flights_training"
MONITOR = "flights_monitoring"
DRAWN = "canvases => canvases.map(canvas => canvas.toDataURL()).join()"
BLANK = f"""canvases => ({DRAWN})(canvases.map(({{ width, height }}) =>
  Object.assign(document.createElement("canvas"), {{ width, height }})))"""
OF_A_PIPELINE = (
    "overview?",
    "data?",
    "data?feature=origin",
    "data?tab=dive",
    "schema?",
    "schema?feature=origin",
    "schema?tab=anomalies",
    "schema?tab=versions",
    "runs?",
    "runs?view=curves",
    "models?",
    "models/flights?",
    "models/flights?tab=evaluation",
    "models/flights?tab=backtests",
    "models/flights?tab=decisions",
    "skew?feature=origin",
    "lineage?",
    "lineage?view=list",
)
BUTTONS = (
    ("overview?", "Views"),
    ("overview?", f"{DAG}: choose a pipeline"),
    ("data?", "Add data"),
    ("data?", "Choose columns"),
    ("runs?", "Examples"),
    ("runs?view=parallel", re.compile("^Axes: ")),
    ("models/flights?", "Promote"),
    ("models/flights?", "Roll back"),
    ("models/flights?", "Change owners"),
)
"""Dialogs and menus: the page, and the button that opens each."""
PAGES = ["Overview", "Data", "Schema", "Runs", "Models", "Skew", "Lineage"]


def test_navigation_leads_to_pipelines_and_their_pages(open_page: OpenPage) -> None:
    page = open_page()
    entry = page.get_by_role("link", name="Pipelines", exact=True)
    cut_off = entry.evaluate(
        "link => [...link.querySelectorAll('*')].some(each => each.scrollWidth > each.clientWidth)"
    )
    assert not cut_off
    entry.click()
    expect(page).to_have_url(re.compile("/plugin/hops$"))
    expect(page.locator("h1")).to_have_text("ML Pipelines")
    page.get_by_role("link", name=DAG, exact=True).click()
    for label in PAGES:
        page.get_by_role("navigation", name="Pages of the pipeline").get_by_role("link", name=label).click()
        expect(page).to_have_url(re.compile(f"/plugin/hops/{label.lower()}[?]dag={DAG}"))
        expect(page).to_have_title(f"{label} · {DAG} · ML Pipelines · Airflow")
    page.reload()
    expect(page.locator("h1")).to_have_text(PAGES[-1])


def _choose_theme(page: Page, theme: str) -> None:
    """As the choice in the user's menu does."""
    changed = f"new StorageEvent('storage', {{key: 'theme', newValue: '{theme}'}})"
    page.evaluate(f"localStorage.theme = '{theme}'; dispatchEvent({changed})")
    expect(page.locator("html")).to_have_class(theme)


def test_pages_follow_the_colour_mode_of_airflow(open_page: OpenPage) -> None:
    page = open_page(f"plugin/hops/lineage?dag={DAG}", theme="light")
    colors = []
    for theme in ("light", "dark"):
        _choose_theme(page, theme)
        colors.append(page.locator("h1").evaluate("element => getComputedStyle(element).color"))
    assert colors[0] != colors[1]


def test_axe_finds_nothing_serious_on_any_page_light_and_dark(site: Site, open_page: OpenPage) -> None:
    newest = {
        dag: quote(site.get(f"/api/v2/dags/{dag}/dagRuns?order_by=-run_after&limit=1")["dag_runs"][0]["dag_run_id"], "")
        for dag in (DAG, MONITOR)
    }
    training = site.get(f"/hops/api/dags/{DAG}/training-runs")["runs"][0]["run_id"]
    paths = [f"plugin/hops/{path}&dag={DAG}" for path in (*OF_A_PIPELINE, f"runs?run={training}")]
    paths += [
        f"dags/{DAG}/runs/{newest[DAG]}/tasks/{task}/plugin/hops-task" for task in ("train", "evaluate", "validate")
    ]
    paths += [f"dags/{MONITOR}/runs/{newest[MONITOR]}/tasks/skew/plugin/hops-task"]
    paths += [f"dags/{DAG}/runs/{newest[DAG]}/plugin/hops-run"]
    opened = [(f"plugin/hops/{path}&dag={DAG}", button) for path, button in BUTTONS]
    themes = ["light", "dark"]
    page = open_page("plugin/hops", theme=themes[0])
    results = []
    for path, button in [(path, None) for path in ("plugin/hops", *paths)] + [("plugin/hops", "Skew"), *opened]:
        follow(page, f"/{NOWHERE}")
        expect(page.get_by_text("404", exact=True)).to_be_visible()
        follow(page, f"/{path}")
        expect(page.locator("main h1")).to_be_attached()
        expect(page.locator("[aria-busy=true]")).to_have_count(0)
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
        if button is not None:
            page.keyboard.press("Escape")
            expect(portal.filter(visible=True)).to_have_count(0)
    assert results == []


def _drawn_at_last(canvases: Locator) -> str:
    """The pictures, once they no longer change: some are drawn in steps."""
    seen = [""]

    def is_still() -> bool:
        seen.append(canvases.evaluate_all(DRAWN))
        return len({*seen[-4:]}) == 1 and seen[-1] != canvases.evaluate_all(BLANK)

    wait_for(is_still, "pictures that no longer change", poll_s=0.6)
    return seen[-1]


def test_lost_canvas_is_drawn_again(open_page: OpenPage) -> None:
    # As when the GPU's process ends: the picture goes, and the canvas is told when it can be drawn on again.
    lose = "canvases => canvases.forEach(canvas => { canvas.width = canvas.width })"
    restore = "canvases => canvases.forEach(canvas => canvas.dispatchEvent(new Event('contextrestored')))"
    for path, result in (("runs?view=curves", "main [role=img] canvas"), ("data?tab=dive", "[data-ready=true] canvas")):
        page = open_page(f"plugin/hops/{path}&dag={DAG}")
        canvases = page.locator(result)
        expect(canvases.first).to_be_visible()
        before = _drawn_at_last(canvases)
        lost = canvases.evaluate_all(f"canvases => {{ ({lose})(canvases); return ({DRAWN})(canvases) }}")
        assert lost != before
        canvases.evaluate_all(restore)
        wait_for(lambda canvases=canvases, before=before: canvases.evaluate_all(DRAWN) == before, f"{path}, as before")


def test_a_page_without_a_pipeline_asks_for_one_and_another_is_chosen_in_the_breadcrumbs(open_page: OpenPage) -> None:
    page = open_page("plugin/hops/skew")
    page.get_by_role("link", name=DAG, exact=True).click()
    expect(page).to_have_url(re.compile(f"/plugin/hops/skew[?]dag={DAG}$"))
    page.get_by_role("button", name=f"{DAG}: choose a pipeline").click()
    page.get_by_role("menuitemradio", name="fashion_mnist").click()
    expect(page).to_have_url(re.compile("/plugin/hops/skew[?]dag=fashion_mnist$"))
    page.go_back()
    expect(page).to_have_url(re.compile(f"dag={DAG}$"))


def test_unknown_address_is_reported(open_page: OpenPage) -> None:
    page = open_page("plugin/hops/nowhere")
    expect(page.get_by_text("Page not found")).to_be_visible()
    page.get_by_role("link", name="all pipelines").click()
    expect(page.get_by_role("link", name=DAG, exact=True)).to_be_visible()


def test_a_run_and_a_task_have_a_tab(site: Site, open_page: OpenPage) -> None:
    runs = site.get(f"/api/v2/dags/{DAG}/dagRuns?order_by=-run_after&limit=1")["dag_runs"]
    run = quote(runs[0]["dag_run_id"], safe="")
    page = open_page(f"dags/{DAG}/runs/{run}")
    page.get_by_role("link", name="ML Artifacts").click()
    expect(page).to_have_url(re.compile("/plugin/hops-run$"))
    expect(page.get_by_text("This part of the page failed")).to_have_count(0)
    page = open_page(f"dags/{DAG}/runs/{run}/tasks/train")
    page.get_by_role("link", name="ML Results").click()
    expect(page).to_have_url(re.compile("/plugin/hops-task$"))
    expect(page.get_by_text("This part of the page failed")).to_have_count(0)


def test_login_returns_to_the_page(site: Site, open_page: OpenPage) -> None:
    page = open_page("plugin/hops", problems_expected=True, own=True)
    expect(page.get_by_role("link", name=DAG, exact=True)).to_be_visible()
    page.context.clear_cookies()
    page.get_by_role("link", name=DAG, exact=True).click()
    with contextlib.suppress(PlaywrightError):  # the page may be on its way there already
        page.reload()
    expect(page).to_have_url(re.compile("/auth/login[?]next="))


def test_first_address_change_does_not_reload_the_page(open_page: OpenPage) -> None:
    page = open_page(f"plugin/hops/data?dag={DAG}")
    search = page.get_by_role("textbox", name=re.compile("^Search, or"))
    search.evaluate("input => { input.sameAsBefore = true }")
    search.press_sequentially("te", delay=400)
    expect(page).to_have_url(re.compile("search=te"))
    page.wait_for_load_state("networkidle")
    expect(search).to_be_focused()
    assert search.evaluate("input => input.sameAsBefore === true")


def test_a_slow_browser_keeps_what_was_typed(open_page: OpenPage) -> None:
    page = open_page(f"plugin/hops/data?dag={DAG}&search=te", own=True)
    search = page.get_by_role("textbox", name=re.compile("^Search, or"))
    expect(search).to_have_value("te")
    page.context.new_cdp_session(page).send("Emulation.setCPUThrottlingRate", {"rate": 8})
    for text in ("di", "te"):  # what was there is on its way out of the address while the next is typed
        search.fill("")
        page.wait_for_timeout(1500)
        search.press_sequentially(text, delay=400)
        expect(page).to_have_url(re.compile(f"search={text}$"))
        expect(search).to_have_value(text)


def test_page_settings_are_saved_by_name(open_page: OpenPage) -> None:
    page = open_page(f"plugin/hops/runs?dag={DAG}&filter=metrics.auc+%3E+0.1&sort=-metrics.auc")
    page.get_by_role("button", name="Views").click()
    views = page.get_by_role("dialog", name="Saved views of")
    views.get_by_label("Save the current view as").fill("Best <img src=x>")
    views.get_by_role("button", name="Save").click()
    expect(views.get_by_text("runs · yours")).to_be_visible()
    viewer = open_page(f"plugin/hops/skew?dag={DAG}", user="viewer")
    viewer.get_by_role("button", name="Views").click()
    expect(viewer.get_by_text("To save a view, you need permission")).to_be_visible()
    expect(viewer.get_by_role("link", name="Best <img src=x>")).to_have_count(0)
    views.get_by_role("button", name="Close").click()
    expect(views).to_have_count(0)
    page.get_by_role("link", name="Lineage", exact=True).click()
    expect(page.locator("h1")).to_have_text("Lineage")
    page.get_by_role("button", name="Views").click()
    views.get_by_role("link", name="Best <img src=x>").click()
    expect(page).to_have_url(
        re.compile(f"/plugin/hops/runs[?].*filter=metrics.auc.*dag={DAG}|/runs[?]dag={DAG}&filter")
    )
    expect(page.locator("h1")).to_have_text("Runs")
    expect(views).to_have_count(0)
    page.get_by_role("button", name="Views").click()
    views.get_by_role("button", name="Delete Best <img src=x>").click()
    expect(views.get_by_text("None yet.")).to_be_visible()


def test_notes_and_reports_of_a_run_are_shown(site: Site, open_page: OpenPage) -> None:
    run = site.get(f"/hops/api/dags/{DAG}/training-runs")["runs"][0]
    page = open_page(f"plugin/hops/runs?dag={DAG}&run={run['run_id']}")
    page.get_by_role("button", name="Add a note or tags").click()
    page.get_by_label("Note", exact=True).fill("seen <b>twice</b>")
    page.get_by_label("Tags, one per line").fill("team: delays")
    page.get_by_role("button", name="Save").click()
    notes = page.get_by_role("group", name="Note and tags")
    expect(notes).to_contain_text("seen <b>twice</b>")
    expect(notes).to_contain_text("team: delays")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download report").click()
    assert "seen &lt;b&gt;twice&lt;/b&gt;" in download.value.path().read_text()
    page.get_by_role("button", name="Edit note and tags").click()
    page.get_by_label("Note", exact=True).fill("")
    page.get_by_label("Tags, one per line").fill("")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("button", name="Add a note or tags")).to_be_visible()
