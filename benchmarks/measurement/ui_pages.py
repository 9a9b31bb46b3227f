"""The pages of a pipeline of 1,000 features, 1,000 trainings and 200 models: clicks, interactions, requests."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import psutil
from playwright.sync_api import Browser

from benchmarks.measurement.ui_site import DAG, MANY, PagesSite
from benchmarks.measurement.ui_window import Window

SIZE = {"width": 1440, "height": 900}
API = "/hops/api/"
REST_MS = 400
"""After an interaction: its outcome is drawn, and its event has been reported."""
REPEATS = 5
NOWHERE = "document.body?.innerText.includes('Page not found')"
FOLLOW = "history.pushState(null, '', '{path}'); dispatchEvent(new PopStateEvent('popstate'))"
LCP = """new Promise((resolve) => new PerformanceObserver((list) => resolve(list.getEntries().at(-1).startTime))
  .observe({ type: 'largest-contentful-paint', buffered: true }))"""
INTERACTIONS = """
window.slowest = 0;
new PerformanceObserver((list) => list.getEntries().forEach((each) => {
  if (each.interactionId) slowest = Math.max(slowest, each.duration);
})).observe({ type: 'event', durationThreshold: 16, buffered: true });
"""


@dataclass(frozen=True)
class PageView:
    """A page.

    Attributes:
        path: Below the web UI.
        seen: CSS selector of its content, or ``text=`` and a text in it.
        clicks: CSS selectors that are clicked one after the other.
        types: Text that is typed into the page's search field; empty for none.
    """

    path: str
    seen: str
    clicks: tuple[str, ...] = ()
    types: str = ""


def _page(path: str, **query: str | list[str]) -> str:
    return f"/plugin/hops/{path}?{urlencode(query, doseq=True, quote_via=quote)}".replace("/?", "?")


def page_views(runs: Mapping[str, str], trainings: list[str]) -> dict[str, PageView]:
    """The pages by name.

    Args:
        runs: The newest run of each DAG.
        trainings: Ids of trainings that are compared.
    """
    rows = "table tbody tr[data-index]"
    heading = "th button >> nth={}"
    sampled = f"statistics/{DAG}/sampled/-1/{runs[DAG]}"
    drawn, compared = "main canvas", f"skew/{MANY}/skew/0/{runs[MANY]}"
    return {
        "pipelines": PageView(_page(""), rows, (heading.format(1), heading.format(0)), "many_01"),
        "overview": PageView(_page("overview", dag=MANY), "text=Version 200 deployed"),
        "data": PageView(_page("data", dag=MANY), "[data-feature]", (heading.format(2), "[data-feature]"), "_09"),
        "dive": PageView(
            _page("data", dag=DAG, artifact=sampled, tab="dive", split="train"),
            "[data-dive='plot'][data-ready='true']",
            ("main canvas",),
        ),
        "schema": PageView(_page("schema", dag=MANY), rows, (heading.format(1), rows), "_09"),
        "validation": PageView(_page("schema", dag=MANY, tab="anomalies"), rows, (heading.format(0), rows)),
        "runs": PageView(_page("runs", dag=MANY), rows, (heading.format(2), rows)),
        "curves": PageView(_page("runs", dag=MANY, compare=trainings, view="curves"), drawn),
        "differences": PageView(
            _page("runs", dag=MANY, compare=trainings, view="differences"), "table[aria-label^=Differences] td"
        ),
        "parallel": PageView(_page("runs", dag=MANY, view="parallel"), drawn, (heading.format(2),)),
        "experiments": PageView(_page("runs", dag=MANY, view="studies"), "text=hyperparameter searches"),
        "models": PageView(_page("models", dag=MANY), rows),
        "model": PageView(_page("models/many_000", dag=MANY), rows, (heading.format(0),)),
        "decisions": PageView(_page("models/many_000", dag=MANY, tab="decisions"), "text=Version 200 deployed"),
        "skew": PageView(_page("skew", dag=MANY), rows, (heading.format(1), rows), "_09"),
        "lineage": PageView(_page("lineage", dag=MANY, artifact=compared, view="list"), "text=Made from"),
    }


def measure_page(browser: Browser, url: str, view: PageView, asked: dict[str, None]) -> dict[str, float]:
    """One page in a browser that has seen none of its data.

    Returns:
        Seconds: ``click`` from following a link to the content, ``lcp`` the largest contentful paint of a load of the
        address, and ``slowest`` the slowest interaction.
    """
    context = browser.new_context(viewport=SIZE)
    window = Window(context, NOWHERE)
    window.open(f"{url}/plugin/hops/nowhere")
    window.settle()
    found = {"click": window.act(FOLLOW.format(path=view.path), f"{_first(view.seen)}")}
    window.close()
    window = Window(context, _first(view.seen))
    window.page.add_init_script(INTERACTIONS)
    window.open(f"{url}{view.path}")
    window.settle()
    found["lcp"] = float(window.page.evaluate(LCP)) / 1000
    for selector in view.clicks:
        window.page.locator(selector).first.click()
        window.page.wait_for_timeout(REST_MS)
    if view.types:
        window.page.locator("main input[type=search], main input[placeholder^=Search]").first.click()
        window.page.keyboard.type(view.types, delay=80)
        window.page.wait_for_timeout(REST_MS)
    found["slowest"] = float(window.page.evaluate("slowest")) / 1000
    window.settle()
    asked.update(dict.fromkeys(each.url.removeprefix(url) for each in window.answered if API in each.url))
    context.close()
    return found


def _first(seen: str) -> str:
    """Returns the JavaScript expression for whether a page's content is there."""
    if seen.startswith("text="):
        return f"document.querySelector('main')?.innerText.includes('{seen.removeprefix('text=')}')"
    return f'document.querySelector("{seen}")'


def measure_requests(url: str, server: psutil.Process, paths: Sequence[str]) -> dict[str, list[float]]:
    """CPU seconds of each GET at an API server that has just started: the first, and then some more.

    Other programs on the machine do not change them much, as they do the time until the answer.
    """
    processes = [server, *server.children(recursive=True)]

    def cpu_s() -> float:
        return float(sum(sum(each.cpu_times()[:2]) for each in processes))

    took: dict[str, list[float]] = {path: [] for path in paths}
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        for _ in range(1 + REPEATS):
            for path in paths:
                start_cpu_s = cpu_s()
                client.get(path).raise_for_status()
                took[path].append(cpu_s() - start_cpu_s)
    return took


def measure_pages(site: PagesSite, browser: Browser, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measures all pages so many times, and their requests at a server that has just started."""
    api = site.start(DAG, MANY)
    trainings = httpx.get(f"{api.url}/hops/api/dags/{MANY}/training-runs?limit=5", trust_env=False).json()["entries"]
    runs = {dag_id: str(api.runs(dag_id)[-1]["dag_run_id"]) for dag_id in (DAG, MANY)}
    views = page_views(runs, [each["run_id"] for each in trainings])
    asked: dict[str, None] = {}
    measured: list[dict[str, dict[str, float]]] = []
    for number in range(rounds):
        measured.append({})
        for name, view in views.items():
            measured[-1][name] = measure_page(browser, api.url, view, asked)
            say(f"round {number + 1}, {name}: {measured[-1][name]['click']:.3f} s from a click")
    site.stop()
    url = site.start(DAG, MANY).url
    server = psutil.Process(site.services[-1].process.pid)
    return figures_of_pages(measured, measure_requests(url, server, list(asked)))


def measure_first_content(
    site: PagesSite, browser: Browser, pipelines: int, rounds: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measures the list of so many pipelines and the overview of one of them, at a server that has answered before."""
    api = site.start_without_runs(pipelines)
    views = {
        "pipelines": PageView(_page(""), "table tbody tr[data-index]"),
        "overview": PageView(_page("overview", dag=f"{MANY}_001"), "text=Version 3 deployed"),
    }
    measured = []
    for number in range(rounds):
        measured.append({name: measure_page(browser, api.url, view, {}) for name, view in views.items()})
        told = ", ".join(f"{name} {figures['click']:.3f}" for name, figures in measured[-1].items())
        say(f"round {number + 1}, seconds from a click: {told}")
    return figures_of_pages(measured, {})["pages"]


def figures_of_pages(
    rounds: Sequence[Mapping[str, Mapping[str, float]]], requests: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """Medians of the pages, and of each request the first and the median of the others."""
    pages = {
        name: {kind: round(statistics.median(each[name][kind] for each in rounds), 3) for kind in rounds[0][name]}
        for name in rounds[0]
    }
    seconds = {path: (took[0], statistics.median(took[1:])) for path, took in requests.items()}
    return {
        "pages": pages,
        "page_click_s": max(page["click"] for page in pages.values()),
        "page_lcp_s": max(page["lcp"] for page in pages.values()),
        "interaction_s": max(page["slowest"] for page in pages.values()),
        "first_request_s": round(max((first for first, _ in seconds.values()), default=0.0), 3),
        "request_s": round(max((usual for _, usual in seconds.values()), default=0.0), 3),
        "requests": {path: [round(first, 3), round(usual, 3)] for path, (first, usual) in seconds.items()},
    }
