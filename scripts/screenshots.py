"""Takes the pictures of the documentation in headless Chromium: the pages, light and dark, and the flights DAG.

Run ``make demo``, and beside it, with the address that it prints:

    .venv/bin/python scripts/screenshots.py http://127.0.0.1:PORT            # all of them
    .venv/bin/python scripts/screenshots.py http://127.0.0.1:PORT skew dive  # those whose names have one of these
    .venv/bin/python scripts/screenshots.py http://127.0.0.1:PORT --sheets /tmp/sheets  # all there is to see

``--sheets`` takes every page, tab and drawer in three widths, light and dark, and all of a kind on one sheet,
to look them over. Needs Debian's ``chromium``, and a demo that has ended.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import itertools
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from playwright.sync_api import Browser, Page, TimeoutError, ViewportSize, sync_playwright

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
DAG, MONITOR = "flights_training", "flights_monitoring"
WINDOW: ViewportSize = {"width": 1440, "height": 900}
THEMES = ("light", "dark")
SETTLE_MS = 1500
TIMEOUT_MS = 60_000
SHEET_WIDTHS = {1440: 1000, 900: 1400, 390: 2000}
"""Heights of the windows of sheets, by their width."""
FOLLOW = "path => { history.pushState(null, '', path); dispatchEvent(new PopStateEvent('popstate')) }"
SHEET_COLUMNS = {1440: 5, 900: 7, 390: 12}
LARGEST = 250_000
"""Bytes of a picture, beyond which one is told of."""


@dataclass(frozen=True)
class View:
    """The subject of a picture.

    Attributes:
        path: Address below the web UI.
        ready: CSS selector of what has to be there.
        size: Of the window, in pixels.
        part: CSS selector of what is taken.
        graph: The host's own choice for a DAG: ``grid`` or ``graph``.
        themes: Light, dark, or both; the dark one's name ends in ``-dark``.
        press: CSS selector of what is clicked first.
    """

    path: str
    ready: str = "h1"
    size: ViewportSize | None = None
    part: str = "body"
    graph: str = "grid"
    themes: tuple[str, ...] = THEMES
    press: str | None = None


def views_of(runs: Mapping[str, str], training_runs: list[str]) -> dict[str, View]:
    """The views by their pictures' names.

    Args:
        runs: The newest run of each of the demo's DAGs.
        training_runs: MLflow's ids of the training runs.
    """
    run = f"dags/{DAG}/runs/{quote(runs[DAG])}"
    skew = f"skew/{MONITOR}/skew/-1/{runs[MONITOR]}"
    return {
        "pages/pipelines": View(_page(""), "table a"),
        "pages/overview": View(_page("overview", dag=DAG), "section[aria-label=Decisions] a"),
        "pages/data": View(_page("data", dag=DAG), "[data-feature]"),
        "pages/data-feature": View(_page("data", dag=DAG, artifact=skew, feature="origin"), "[data-feature]"),
        "pages/dive": View(
            _page("data", dag=DAG, tab="dive", x="scheduled_minute", y="distance", color="late"), READY_DIVE
        ),
        "pages/schema": View(_page("schema", dag=DAG), "table tbody tr"),
        "pages/anomalies": View(_page("schema", dag=DAG, tab="anomalies")),
        "pages/runs": View(_page("runs", dag=DAG), "table tbody tr"),
        "pages/runs-compare": View(_page("runs", dag=DAG, compare=training_runs, view="curves"), "canvas"),
        "pages/model": View(_page("models/flights", dag=DAG), "table tbody tr"),
        "pages/evaluation": View(_page("models/flights", dag=DAG, tab="evaluation"), "table tbody tr"),
        "pages/skew": View(_page("skew", dag=DAG), "table tbody tr"),
        "pages/skew-comparison": View(_page("skew", dag=DAG, artifact=skew, feature="origin"), "canvas"),
        "pages/lineage": View(_page("lineage", dag=DAG), "svg path"),
        "pages/run-tab": View(f"{run}/plugin/hops-run", "table tbody tr"),
        "pages/task-tab": View(f"{run}/tasks/train/plugin/hops-task", "canvas"),
        "flights-training-grid": View(
            run, "text=infra_validate", size={"width": 1600, "height": 900}, themes=("light",)
        ),
        # As wide as the chain of tasks, and no higher.
        "flights-training-graph": View(
            run,
            "text=infra_validate",
            size={"width": 2600, "height": 520},
            part=".react-flow",
            graph="graph",
            themes=("light",),
        ),
    }


def further_views(runs: Mapping[str, str], training_runs: list[str]) -> dict[str, View]:
    """Yields the views that the documentation has no picture of, for the sheets."""
    monitored = quote(runs[MONITOR], safe="")
    rows = "table tbody tr"
    return {
        "dive-table": View(_page("data", dag=DAG, tab="dive"), READY_DIVE, press="text=Table"),
        "schema-feature": View(_page("schema", dag=DAG, feature="origin"), rows),
        "schema-versions": View(_page("schema", dag=DAG, tab="versions")),
        "runs-differences": View(_page("runs", dag=DAG, compare=training_runs, view="differences"), rows),
        "run-drawer": View(_page("runs", dag=DAG, run=training_runs[0]), rows),
        "decisions": View(_page("models/flights", dag=DAG, tab="decisions")),
        "log": View(_page("models/flights", dag=DAG, tab="log")),
        "roll_back": View(_page("models/flights", dag=DAG), rows, press="button:has-text('Roll back')"),
        "add-data": View(_page("data", dag=DAG), "[data-feature]", press="button:has-text('Add data')"),
        "skew-feature": View(_page("skew", dag=DAG, feature="temp"), "canvas"),
        "lineage-list": View(_page("lineage", dag=DAG, view="list")),
        "monitoring-overview": View(_page("overview", dag=MONITOR), "section[aria-label=Decisions]"),
        "evaluation-tab": View(f"dags/{DAG}/runs/{quote(runs[DAG])}/tasks/evaluate/plugin/hops-task", rows),
        "validation-tab": View(f"dags/{DAG}/runs/{quote(runs[DAG])}/tasks/validate/plugin/hops-task", "h2"),
        "skew-tab": View(f"dags/{MONITOR}/runs/{monitored}/tasks/skew/plugin/hops-task", rows),
    }


READY_DIVE = '[data-dive="plot"][data-ready="true"]'


def _page(path: str, **query: str | list[str]) -> str:
    return f"plugin/hops/{path}?{urlencode(query, doseq=True)}".replace("/?", "?")


def take(browser: Browser, url: str, view: View, theme: str, picture: Path) -> None:
    """Takes one picture."""
    page = _window(browser, theme, view.size or WINDOW, view.graph)
    page.goto(f"{url}/{view.path}")
    _picture(page, view, picture)
    page.close()
    size = picture.stat().st_size
    print(picture, f"{size / 1000:.0f} kB{', which is large' if size > LARGEST else ''}", flush=True)


def _window(browser: Browser, theme: str, size: ViewportSize, graph: str = "grid") -> Page:
    page = browser.new_page(viewport=size, timezone_id="America/New_York", reduced_motion="reduce")
    kept = {"theme": theme, "default_dag_view": f'"{graph}"'}
    page.add_init_script("".join(f"localStorage.setItem({name!r}, {value!r});" for name, value in kept.items()))
    return page


def _picture(page: Page, view: View, picture: Path) -> None:
    try:
        page.locator(view.ready).first.wait_for(timeout=TIMEOUT_MS)
        if view.press is not None:
            page.locator(view.press).first.click(timeout=TIMEOUT_MS)
    except TimeoutError:
        print(f"{picture.name}: nothing is there that {view.ready!r} or {view.press!r} means")
    _settle(page)
    page.locator(view.part).first.screenshot(path=picture)
    if view.press is not None:
        page.keyboard.press("Escape")


def _settle(page: Page) -> None:
    """Waits for what moves and loads; a page that asks again and again is never idle."""
    with contextlib.suppress(TimeoutError):
        page.wait_for_load_state("networkidle", timeout=3000)
    page.wait_for_timeout(SETTLE_MS)


def _newest(page: Page, url: str, dag_id: str) -> str:
    answer: dict[str, Any] = page.request.get(f"{url}/api/v2/dags/{dag_id}/dagRuns?order_by=-run_after&limit=1").json()
    return str(answer["dag_runs"][0]["dag_run_id"])


def take_sheets(browser: Browser, url: str, views: Mapping[str, View], folder: Path, width: int, theme: str) -> None:
    """Takes each view in one width and mode, and all of them together, small."""
    taken = folder / f"{width}-{theme}"
    taken.mkdir(parents=True, exist_ok=True)
    page = _window(browser, theme, {"width": width, "height": SHEET_WIDTHS[width]})
    page.goto(f"{url}/plugin/hops")
    for name, view in views.items():
        page.evaluate(FOLLOW, f"/{view.path}")
        _picture(page, view, taken / f"{name.rpartition('/')[2]}.png")
    page.close()
    page = browser.new_page(viewport={"width": 1800, "height": 900})
    grid = f"display: grid; grid-template-columns: repeat({SHEET_COLUMNS[width]}, 1fr); gap: 8px; margin: 8px"
    fit = f"width: 100%; aspect-ratio: {width} / {SHEET_WIDTHS[width]}; object-fit: contain; object-position: top"
    shown = "".join(f'<img src="{name.rpartition("/")[2]}.png" style="{fit}">' for name in views)
    page_of_all = taken / "all.html"
    page_of_all.write_text(f'<body style="{grid}">{shown}')
    page.goto(page_of_all.as_uri())
    # Playwright itself writes PNG and JPEG only.
    cdp = page.context.new_cdp_session(page)
    asked = {"format": "webp", "quality": 55, "captureBeyondViewport": True}
    height = page.evaluate("document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": 1800, "height": height, "scale": 1}
    sheet = folder / f"{width}-{theme}.webp"
    sheet.write_bytes(base64.b64decode(cdp.send("Page.captureScreenshot", {**asked, "clip": clip})["data"]))
    page.close()
    print(sheet, f"{sheet.stat().st_size / 1000:.0f} kB", flush=True)


def main() -> None:
    """Opens each view and takes its picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="address of the web UI")
    parser.add_argument("names", nargs="*", help="parts of the names of the pictures to be taken (default: all)")
    parser.add_argument(
        "--sheets", type=Path, metavar="FOLDER", help="take every page, in three widths, and join them to sheets there"
    )
    given = parser.parse_args()
    (IMAGES / "pages").mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(given.url)
        runs = {dag_id: _newest(page, given.url, dag_id) for dag_id in (DAG, MONITOR)}
        answer = page.request.get(f"{given.url}/hops/api/dags/{DAG}/training-runs").json()
        trainings = [each["run_id"] for each in answer["entries"]][:3]
        views = views_of(runs, trainings)
        if given.sheets is not None:
            views = {name: view for name, view in views.items() if name.startswith("pages/")}
            views |= further_views(runs, trainings)
        views = {name: view for name, view in views.items() if not given.names or any(n in name for n in given.names)}
        for width, theme in itertools.product(SHEET_WIDTHS, THEMES) if given.sheets is not None else ():
            take_sheets(browser, given.url, views, given.sheets, width, theme)
        for name, view in views.items() if given.sheets is None else ():
            for theme in view.themes:
                take(browser, given.url, view, theme, IMAGES / f"{name}{'-dark' if theme == 'dark' else ''}.png")
        browser.close()


if __name__ == "__main__":
    main()
