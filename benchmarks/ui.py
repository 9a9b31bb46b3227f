"""The pages: time to what is seen first, to sort, to a frame of Dive; against Facets Overview and the host's bare page.

Headless Chromium asks a real API server; the windows measure themselves. See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

import argparse  # noqa: E402
import json  # noqa: E402
import shutil  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
from collections.abc import Mapping, Sequence  # noqa: E402
from typing import Any  # noqa: E402
from urllib.parse import quote, urlencode  # noqa: E402

from playwright.sync_api import Browser, sync_playwright  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from airflow_hops.runner.environments.runtime import create_environment  # noqa: E402
from benchmarks.measurement.ui_pages import measure_first_content, measure_pages  # noqa: E402
from benchmarks.measurement.ui_site import DAG, DAGS, WIDE, PagesSite  # noqa: E402
from benchmarks.measurement.ui_window import Window  # noqa: E402

WORK = REPOSITORY / ".hops" / "benchmarks" / "ui"
RUNTIME = REPOSITORY / ".venv-runtime"
FACETS = REPOSITORY / ".hops" / "peers" / "facets"
POLYFILL = "webcomponents.js@0.7.24"
SIZES = (1000, 5000)
PEER_SIZE = 1000
SIZE = {"width": 1440, "height": 900}
MARKS = {
    "page_click_s": 1.0,
    "request_s": 0.3,
    "first_request_s": 0.3,
    "from_pipelines_s": 1.0,
    "features_1000_s": 1.0,
    "features_1000_sort_s": 0.1,
    "features_5000_sort_s": 0.1,
    "features_1000_payload_mb": 1.0,
    "features_5000_payload_mb": 1.0,
    "skew_5000_sort_s": 0.1,
    "skew_5000_payload_mb": 1.0,
    "schema_5000_sort_s": 0.1,
    "schema_5000_payload_mb": 1.0,
    "points_payload_mb": 1.0,
    "bundle_payload_mb": 1.0,
}
"""What is to stay below: seconds, and megabytes as they are sent."""
HEADINGS = ("Mean", "Missing", "Max", "Feature")
"""What is sorted by, one after the other: each brings another row to the top."""
WIDE_PAGES = {
    "skew": ("Features", ("Distance", "Feature", "Drifted for", "Change")),
    "schema": ("Features of the schema", ("Domain", "Type", "Presence", "Feature")),
}
"""Pages of 5,000 features: their table, and what it is sorted by."""
TITLES = {
    "bare": "a page of the app with nothing on it (the host's part)",
    "from_pipelines": "statistics of 1,000 features, two data sets, by a click in the list of pipelines",
    "features_1000": "statistics of 1,000 features, two data sets",
    "features_5000": "statistics of 5,000 features, two data sets",
    "skew_5000": "skew of 5,000 features, 30 comparisons",
    "schema_5000": "a schema of 5,000 features",
    "points": "20,000 points in Dive",
    "pan_frame": "a frame while they are moved",
    "facets": "Facets Overview, the same 1,000 features, from a local file",
}
PIPELINE = f"""document.querySelector('a[href*="/plugin/hops/data?dag={DAG}"]')"""
"""The first link of the list of pipelines to a Data page, which shows the run's first statistics: 1,000 features."""
BARE = "document.body?.innerText.includes('Page not found')"
ROWS = """(() => { const rows = document.querySelectorAll('table[aria-label="Features"] tbody tr[data-index]');
  return rows.length >= 8 && [...rows[7].cells].slice(2).some((cell) => /[0-9]/.test(cell.textContent)); })()"""
POINTS = "document.querySelector('[data-dive=\"plot\"][data-ready=\"true\"]')?.dataset.points === '20000'"
FIRST_OF = """document.querySelector('table[aria-label="{table}"] tr[data-index="0"]')?.textContent"""
FIRST = "document.querySelector('tr[data-index=\"0\"] [data-feature]')?.dataset.feature"
FACETS_REST_MS = 3000
FACETS_ROWS = """(() => { const rows = document.querySelectorAll('facets-overview-row-stats');
  return rows.length >= 8 && /[0-9]/.test(rows[7].textContent); })()"""
FACETS_FIRST = "document.querySelector('facets-overview-row-stats').textContent"

Seconds = dict[str, list[float]]


def address_of(url: str, run_id: str, task: str, kind: str, **query: str) -> str:
    """The Data page, with an artifact of a task."""
    query = {"dag": DAG, "artifact": f"{kind}/{DAG}/{task}/-1/{run_id}", **query}
    return f"{url}/plugin/hops/data?{urlencode(query, quote_via=quote)}"


def measure_site(browser: Browser, url: str, run_id: str, received: dict[str, int]) -> Seconds:
    """One round, of a browser that has been in this Airflow, but saw none of these data.

    Args:
        browser: The browser.
        url: Address of the API server.
        run_id: The run that has made the artifacts.
        received: Gets the bytes that came, by what was asked for.
    """
    found: Seconds = {}
    context = browser.new_context(viewport=SIZE)
    first = Window(context, BARE)
    first.open(f"{url}/plugin/hops/nowhere")
    first.settle()
    received["bundle"] = first.payload("hops.umd.js")
    first.close()
    bare = Window(context, BARE)
    found["bare"] = [bare.open(f"{url}/plugin/hops/nowhere")]
    bare.close()
    found["from_pipelines"] = [measure_inside(browser, url)]
    for size in SIZES:
        window = Window(context, ROWS)
        found[f"features_{size}"] = [window.open(address_of(url, run_id, f"features_{size}", "statistics"))]
        window.settle()
        received[f"features_{size}"] = window.payload("/hops/api/")
        found[f"features_{size}_sort"] = [sort(window, heading) for heading in HEADINGS]
        window.close()
    for page, (table, headings) in WIDE_PAGES.items():
        name, first = f"{page}_5000", FIRST_OF.format(table=table)
        window = Window(context, first)
        found[name] = [window.open(f"{url}/plugin/hops/{page}?dag={WIDE}")]
        window.settle()
        received[name] = window.payload("/hops/api/")
        found[f"{name}_sort"] = [sort(window, heading, first) for heading in headings]
        window.close()
    window = Window(context, POINTS)
    found["points"] = [window.open(address_of(url, run_id, "sampled", "statistics", tab="dive", split="train"))]
    window.settle()
    received["points"] = window.payload("/hops/api/")
    found["pan_frame"] = [milliseconds / 1000 for milliseconds in window.pan()]
    window.close()
    context.close()
    return found


def measure_inside(browser: Browser, url: str) -> float:
    """Seconds from a click in the list of pipelines, which is at rest, in a browser that saw none of these data."""
    context = browser.new_context(viewport=SIZE)
    window = Window(context, PIPELINE)
    window.open(f"{url}/plugin/hops")
    window.settle()
    took = window.act(f"{PIPELINE}.click()", ROWS)
    context.close()
    return took


def sort(window: Window, heading: str, first: str = FIRST) -> float:
    """Seconds from a click on a heading of the table to other rows at its top."""
    button = f"[...document.querySelectorAll('th button')].find((each) => each.textContent === '{heading}')"
    return window.act(
        f"const before = {first}; {button}.click()", f"{button}.closest('th').ariaSort && {first} !== before"
    )


def measure_facets(browser: Browser, page: Path) -> Seconds:
    """One round of the peer: its first rows, and its own order by non-uniformity."""
    context = browser.new_context(viewport=SIZE)
    window = Window(context, FACETS_ROWS)
    found = {"facets": [window.open(page.as_uri())]}
    # Its window is never found idle: time to come to rest instead.
    window.page.wait_for_timeout(FACETS_REST_MS)
    item = "[...document.querySelectorAll('paper-item')].find((each) => each.textContent.trim() === 'Non-uniformity')"
    seen = f"{FACETS_FIRST} !== before"
    found["facets_sort"] = [window.act(f"const before = {FACETS_FIRST}; {item}.click()", seen)]
    context.close()
    return found


def make_facets(console: Console) -> Path:
    """The peer's page of the same statistics, with its element from PyPI and what browsers have no more from npm."""
    pins = REPOSITORY / "benchmarks" / "peers" / "facets.txt"
    create_environment(FACETS, pins, uv=str(REPOSITORY / ".uv" / "bin" / "uv"), say=console.print)
    (element,) = FACETS.glob("lib/*/site-packages/facets/facets-dist/facets-jupyter.html")
    polyfill = FACETS / "package" / "webcomponents-lite.min.js"
    if not polyfill.exists():
        packed = subprocess.run(["npm", "pack", "--silent", POLYFILL], cwd=FACETS, check=True, capture_output=True)
        shutil.unpack_archive(FACETS / packed.stdout.decode().split()[-1], FACETS)
    (folder,) = (WORK / "store" / DAG).glob(f"*/features_{PEER_SIZE}/statistics")
    page = WORK / "facets.html"
    arguments = [folder, element, polyfill, page]
    command = [str(RUNTIME / "bin" / "python"), "-m", "benchmarks.measurement.facets", *map(str, arguments)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    return page


def figures_of(first: Seconds, rounds: Sequence[Seconds], received: Mapping[str, int]) -> dict[str, Any]:
    """Medians, what was the first time that anybody asked, and all that lies behind them."""
    names = {name: None for each in rounds for name in each}
    every = {name: [second for each in rounds for second in each.get(name, ())] for name in names}
    frames = sorted(every["pan_frame"])
    return {
        **{f"{name}_s": round(statistics.median(seconds), 4) for name, seconds in every.items()},
        "pan_frame_p95_s": round(frames[int(0.95 * len(frames))], 4),
        **{f"{name}_payload_mb": round(size / 1e6, 3) for name, size in received.items()},
        "first_s": {
            name: round(first[name][0], 4) for name in first if not name.endswith("_sort") and name != "pan_frame"
        },
        "runs": {name: [round(s, 4) for s in seconds] for name, seconds in every.items() if name != "pan_frame"},
    }


def ratios_of(figures: Mapping[str, Any]) -> dict[str, float]:
    """Returns the time of the host and the peer over that of the pages; the marks over the measured values."""
    names = ("features_1000_s", "features_5000_s", "skew_5000_s", "schema_5000_s", "points_s")
    opened = [name for name in names if name in figures]
    ratios = {f"bare_page_over_{name.removesuffix('_s')}": figures["bare_s"] / figures[name] for name in opened}
    if "facets_s" in figures:
        ratios["facets_over_features_1000"] = figures["facets_s"] / figures["features_1000_s"]
        ratios["facets_sort_over_features_1000_sort"] = figures["facets_sort_s"] / figures["features_1000_sort_s"]
    ratios |= {f"mark_over_{name}": mark / figures[name] for name, mark in MARKS.items()}
    return {name: round(ratio, 3) for name, ratio in ratios.items()}


def print_figures(figures: Mapping[str, Any], ratios: Mapping[str, float], console: Console) -> None:
    """The tables."""
    table = Table(title="Pages in headless Chromium", title_justify="left")
    for column in ("what", "seen after, s", "sorted after, s", "sent, MB"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, title in TITLES.items():
        if f"{name}_s" in figures:
            keys = (f"{name}_s", f"{name}_sort_s", f"{name}_payload_mb")
            table.add_row(title, *(f"{figures[key]:.3f}" if key in figures else "" for key in keys))
    console.print(table)
    for name, ratio in ratios.items():
        console.print(f"{name}: {ratio}")


def print_pages(figures: Mapping[str, Any], console: Console) -> None:
    """The tables of all pages, and of the slowest requests."""
    table = Table(title="Pages of 1,000 features, 1,000 trainings, 200 models", title_justify="left")
    for column in ("page", "content after a click, s", "largest contentful paint, s", "slowest interaction, s"):
        table.add_column(column, justify="left" if column == "page" else "right")
    for name, figures_of_page in figures["pages"].items():
        table.add_row(name, *(f"{figures_of_page[kind]:.3f}" for kind in ("click", "lcp", "slowest")))
    console.print(table)
    table = Table(title="Requests", title_justify="left")
    for column in ("request", "first after the server's start, CPU s", "usually, CPU s"):
        table.add_column(column, justify="left" if column == "request" else "right")
    for path, (first, usual) in sorted(figures["requests"].items(), key=lambda each: -max(each[1])):
        table.add_row(path, f"{first:.3f}", f"{usual:.3f}")
    console.print(table)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured; medians are reported")
    parser.add_argument("--pages", action="store_true", help="only all pages at 1,000 features, trainings, 200 models")
    parser.add_argument(
        "--pipelines", type=int, metavar="N", help="only list and overview, with N pipelines without runs"
    )
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="without Facets")
    given = parser.parse_args()
    log = Console(stderr=True, highlight=False)
    received: dict[str, int] = {}
    home = WORK if given.pipelines is None else WORK.with_name(f"ui_{given.pipelines}_pipelines")
    site = PagesSite(home, RUNTIME, DAGS, say=log.print)
    with site, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        if given.pipelines is not None:
            first_content = measure_first_content(site, browser, given.pipelines, given.rounds, log.print)
            print(json.dumps({"benchmark": "ui_pipelines", "figures": first_content}))
            return 0
        pages = measure_pages(site, browser, given.rounds, log.print)
        print_pages(pages, Console(width=150, highlight=False))
        if given.pages:
            print(json.dumps({"benchmark": "ui_pages", "figures": pages}))
            return 0
        site.stop()
        api = site.start(DAG, WIDE)
        run_id = str(api.runs(DAG)[-1]["dag_run_id"])
        facets = make_facets(log) if given.peers else None
        first = measure_site(browser, api.url, run_id, received)
        rounds: list[Seconds] = []
        for number in range(given.rounds):
            rounds.append(measure_site(browser, api.url, run_id, received))
            if facets is not None:
                rounds[-1] |= measure_facets(browser, facets)
            told = ", ".join(f"{name} {statistics.median(seconds):.3f}" for name, seconds in rounds[-1].items())
            log.print(f"round {number + 1}, seconds: {told}")
        browser.close()
    figures = figures_of(first, rounds, received) | pages
    ratios = ratios_of(figures)
    print_figures(figures, ratios, Console(width=150, highlight=False))
    print(json.dumps({"benchmark": "ui", "ratios": ratios, "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
