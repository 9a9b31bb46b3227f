"""The pages in a real browser, over a real Airflow that a real run of the demo has filled.

``HOPS_TEST_SITE`` names a JSON file that leads to a site that is up already, by the attributes of :class:`Site`. It
saves a developer the demo, and shows what is built; a test that changes what is served changes it there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from rich.console import Console
from shown_demo import REPOSITORY
from waiting import wait_for

import build_ui
import set_up
from demo.__main__ import Replay
from demo.services import Stack, free_port

PASSWORDS = {"admin": "admin's", "op": "op's", "user": "user's", "viewer": "viewer's"}
"""By user; each has the role of this name."""
WEEK = ("2013-09-01", "2013-09-08")
TIMEOUT_MS = 30_000
STARTUP_TIMEOUT_S = 240.0
OpenPage = Callable[..., Page]
Windows = dict[tuple[Any, ...], BrowserContext]
FAILED = pytest.StashKey[bool]()


@dataclass(frozen=True)
class Site:
    """A web UI with data.

    Attributes:
        url: Its address.
        home: The demo's folder: ``store``, ``serving``, ``airflow``.
        passwords: By user.
        environment: Airflow's settings, as environment variables.
    """

    url: str
    home: Path
    passwords: dict[str, str]
    environment: dict[str, str]

    def token(self, user: str) -> str:
        """Logs a user in."""
        login = {"username": user, "password": self.passwords[user]}
        answer = httpx.post(f"{self.url}/auth/token", json=login, trust_env=False, timeout=30)
        answer.raise_for_status()
        return str(answer.json()["access_token"])

    def get(self, path: str, user: str = "admin") -> Any:
        """JSON of a GET, of Airflow's API (``/api/v2/…``) or the plugin's (``/hops/api/…``)."""
        headers = {"Authorization": f"Bearer {self.token(user)}"}
        answer = httpx.get(f"{self.url}{path}", headers=headers, trust_env=False, timeout=60)
        answer.raise_for_status()
        return answer.json()


class SiteStack(Stack):
    """The demo's services, with users who have to log in.

    Attributes:
        data: Folder of the raw tables.
    """

    data: Path

    def airflow_environment(self, port: int) -> dict[str, str]:
        """Airflow's settings."""
        passwords = self.home / "passwords.json"
        passwords.write_text(json.dumps(PASSWORDS))
        return {
            **super().airflow_environment(port),
            "FLIGHTS_DATA": str(self.data),
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",  # few tests run a DAG, and none waits for long
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{user}:{user}" for user in PASSWORDS),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        }


@pytest.fixture(scope="session")
def pages_built() -> None:
    """Sees to it that the pages are built from the present sources."""
    if not build_ui.fresh() and (missing := build_ui.node_missing()) is not None:
        pytest.skip(f"the pages are not built: {missing}")
    build_ui.build()


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser: Debian's, installed where that needs nobody's password."""
    found = shutil.which("chromium")
    if found is None and set_up.install_debian_packages(["chromium"]):
        found = shutil.which("chromium")
    if found is None:
        pytest.skip("Debian's chromium was not found and cannot be installed here: apt-get install chromium")
    return found


@pytest.fixture(scope="session")
def site(request: pytest.FixtureRequest, chromium: str) -> Iterator[Site]:
    """The web UI after the demo, its model server asked for a week of flights since it was started."""
    if known := os.environ.get("HOPS_TEST_SITE"):
        named = json.loads(Path(known).read_text())
        yield Site(**{**named, "home": Path(named["home"])})
        return
    request.getfixturevalue("pages_built")
    shown = request.getfixturevalue("shown_demo")
    assert shown.code == 130, shown.printed[-5000:]
    runtime, raw = request.getfixturevalue("runtime"), request.getfixturevalue("some_flights")
    with SiteStack(shown.home, runtime, REPOSITORY / "dags") as stack:
        stack.data = raw
        api = stack.start()
        Replay(stack, raw, WEEK).finish(Console(quiet=True))
        port = urlsplit(api.url).port
        assert port is not None
        yield Site(api.url, shown.home, PASSWORDS, stack.airflow_environment(port))


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    """Headless Chromium. It ends with the tests of this folder: asyncio cannot be used beside it."""
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def windows(browser: Browser) -> Windows:
    """The browser's contexts, by user and what else they differ in: loaded once, Airflow's own 7 MB are kept."""
    return {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Lets a fixture know that its test has failed."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture
def open_page(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    site: Site,
    browser: Browser,
    windows: Windows,
) -> Iterator[OpenPage]:
    """Opens a window: ``open_page("plugin/hops", theme="dark", user="viewer")``. Nothing is left of earlier ones.

    At the end of the test nothing may have gone wrong in any of them: an error in the console, an exception, an answer
    of 400 or more; except in those that were opened with ``problems_expected``. ``site`` is for another than the usual.
    Where the test has failed, what the windows showed is printed, with the requests that were not answered yet.
    """
    problems: list[str] = []
    pages: list[Page] = []
    unanswered: list[str] = []

    def open_page(
        path: str = "",
        *,
        site: Site = site,
        theme: str = "light",
        user: str = "admin",
        zone: str = "UTC",
        problems_expected: bool = False,
        width: int = 1600,
        height: int = 1000,
    ) -> Page:
        key = (site.url, user, zone, width, height)
        if key not in windows:
            windows[key] = browser.new_context(viewport={"width": width, "height": height}, timezone_id=zone)
            windows[key].set_default_timeout(TIMEOUT_MS)
        windows[key].add_cookies([{"name": "_token", "value": site.token(user), "url": site.url}])
        page = windows[key].new_page()
        pages.append(page)
        page.on("request", lambda sent: unanswered.append(sent.url))
        page.on("requestfinished", lambda sent: unanswered.remove(sent.url))
        page.on("requestfailed", lambda sent: unanswered.remove(sent.url))
        fresh = f"sessionStorage.opened = 1; localStorage.clear(); localStorage.theme = {json.dumps(theme)}"
        page.add_init_script(f"if (!sessionStorage.opened) {{ {fresh} }}")
        if not problems_expected:
            page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("response", lambda got: problems.append(f"{got.status} {got.url}") if got.status >= 400 else None)
        page.goto(f"{site.url}/{path}")
        return page

    yield open_page
    for number, page in enumerate(pages):
        if request.node.stash.get(FAILED, False):
            page.screenshot(path=tmp_path / f"window-{number}.png")
            print(f"{page.url} ({tmp_path}/window-{number}.png)\n{page.locator('body').inner_text()[:2000]}")
            print("not answered yet:", unanswered, "problems:", problems)
        page.close()
    assert problems == []


@pytest.fixture(scope="session")
def site_below_a_path(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The same site by another API server, whose ``base_url`` has a path."""
    with another_server(site, tmp_path_factory.mktemp("below") / "log", path="/behind/a-proxy") as below:
        yield below


@contextlib.contextmanager
def another_server(site: Site, log: Path, *, path: str = "", environment: Mapping[str, str] = {}) -> Iterator[Site]:
    """Another API server of a site.

    Args:
        site: The site.
        log: File for what it says.
        path: Of its ``base_url``.
        environment: Settings beside the site's.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}{path}"
    settings = {**site.environment, "AIRFLOW__API__BASE_URL": url, **environment}
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow", "api-server", "--port", str(port)],
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )
    try:
        wait_for(
            lambda: process.poll() is not None or answers(url),
            lambda: log.read_text()[-3000:],
            STARTUP_TIMEOUT_S,
            poll_s=0.2,
        )
        assert process.poll() is None, log.read_text()[-3000:]
        yield replace(site, url=url, environment=settings)
    finally:
        process.terminate()
        process.wait(20)


def answers(url: str) -> bool:
    """Whether there is an Airflow."""
    try:
        return httpx.get(f"{url}/api/v2/version", trust_env=False, timeout=10).is_success
    except httpx.TransportError:
        return False
