"""Takes the pictures of the documentation in headless Chromium: the pages, light and dark, and the flights DAG.

Run ``make demo``, and beside it, with the address that it prints:

    .venv/bin/python scripts/screenshots.py http://127.0.0.1:PORT            # all of them
    .venv/bin/python scripts/screenshots.py http://127.0.0.1:PORT skew dive  # those whose names have one of these

Needs Debian's ``chromium``, and a demo that has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from playwright.sync_api import Browser, Page, TimeoutError, sync_playwright

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
DAG, MONITOR = "flights_training", "flights_monitoring"
WINDOW = {"width": 1440, "height": 900}
THEMES = ("light", "dark")
SETTLE_MS = 1500
TIMEOUT_MS = 60_000
LARGEST = 250_000
"""Bytes of a picture, beyond which one is told of."""


@dataclass(frozen=True)
class View:
    """What is taken a picture of.

    Attributes:
        path: Address below the web UI.
        ready: CSS selector of what has to be there.
        size: Of the window, in pixels.
        part: CSS selector of what is taken.
        graph: The host's own choice for a DAG: ``grid`` or ``graph``.
        themes: Light, dark, or both; the dark one's name ends in ``-dark``.
    """

    path: str
    ready: str = "h1"
    size: Mapping[str, int] | None = None
    part: str = "body"
    graph: str = "grid"
    themes: tuple[str, ...] = THEMES


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
        "pages/models": View(_page("models", dag=DAG), "table tbody tr"),
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


READY_DIVE = '[data-dive="plot"][data-ready="true"]'


def _page(path: str, **query: str | list[str]) -> str:
    return f"plugin/hops/{path}?{urlencode(query, doseq=True)}".replace("/?", "?")


def take(browser: Browser, url: str, view: View, theme: str, picture: Path) -> None:
    """Takes one picture."""
    page = browser.new_page(viewport=view.size or WINDOW, timezone_id="America/New_York", reduced_motion="reduce")
    kept = {"theme": theme, "default_dag_view": f'"{view.graph}"'}
    page.add_init_script("".join(f"localStorage.setItem({name!r}, {value!r});" for name, value in kept.items()))
    page.goto(f"{url}/{view.path}")
    try:
        page.locator(view.ready).first.wait_for(timeout=TIMEOUT_MS)
    except TimeoutError:
        print(f"{picture.name}: nothing is there that {view.ready!r} means")
    _settle(page)
    page.locator(view.part).first.screenshot(path=picture)
    page.close()
    size = picture.stat().st_size
    print(picture, f"{size / 1000:.0f} kB{', which is large' if size > LARGEST else ''}", flush=True)


def _settle(page: Page) -> None:
    """Waits for what moves and loads; a page that asks again and again is never idle."""
    with contextlib.suppress(TimeoutError):
        page.wait_for_load_state("networkidle", timeout=5000)
    page.wait_for_timeout(SETTLE_MS)


def _newest(page: Page, url: str, dag_id: str) -> str:
    answer: dict[str, Any] = page.request.get(f"{url}/api/v2/dags/{dag_id}/dagRuns?order_by=-run_after&limit=1").json()
    return str(answer["dag_runs"][0]["dag_run_id"])


def main() -> None:
    """Opens each view and takes its picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="address of the web UI")
    parser.add_argument("names", nargs="*", help="parts of the names of the pictures to be taken (default: all)")
    given = parser.parse_args()
    (IMAGES / "pages").mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(given.url)
        runs = {dag_id: _newest(page, given.url, dag_id) for dag_id in (DAG, MONITOR)}
        answer = page.request.get(f"{given.url}/hops/api/dags/{DAG}/training-runs").json()
        views = views_of(runs, [each["run_id"] for each in answer["runs"]][:3])
        for name, view in views.items():
            for theme in view.themes if not given.names or any(part in name for part in given.names) else ():
                take(browser, given.url, view, theme, IMAGES / f"{name}{'-dark' if theme == 'dark' else ''}.png")
        browser.close()


if __name__ == "__main__":
    main()
