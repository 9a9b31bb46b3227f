"""The pages in a real browser, over a real Airflow that a real run of the demo has filled, below a path.

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
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from example_extensions import example_pages
from playwright.sync_api import Browser, BrowserContext, FloatRect, Locator, Page, expect, sync_playwright
from waiting import wait_for

import set_up
from demo.services import free_port
from ui.slow_pages import slow_page

if TYPE_CHECKING:
    from ui.own_dags import OwnDags

ROLES = {"admin": "admin", "op": "op", "user": "user", "viewer": "viewer"}
"""Roles by user."""
PASSWORDS = {user: f"{user}'s" for user in ROLES}
TIMEOUT_MS = 300_000
STARTUP_TIMEOUT_S = 240.0
OpenPage = Callable[..., Page]
FOLLOW = "url => { history.pushState(null, '', url); dispatchEvent(new PopStateEvent('popstate')) }"
STILL = """
const still = new CSSStyleSheet();
still.replaceSync("*, *::before, *::after { animation: none !important; transition: none !important }");
document.adoptedStyleSheets.push(still);
"""
"""Nothing fades or turns: without a GPU, that is much of what a page costs, and what has been closed is gone."""
DRAWN = "canvases => canvases.map(canvas => canvas.toDataURL()).join()"
BLANK = f"""canvases => ({DRAWN})(canvases.map(({{ width, height }}) =>
  Object.assign(document.createElement("canvas"), {{ width, height }})))"""
NOWHERE = "nowhere/at/all"
"""A path that no page has."""
USERS = ",".join(f"{user}:{role}" for user, role in ROLES.items())
"""As Airflow's simple auth manager takes them."""
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


def follow(page: Page, url: str) -> None:
    """Goes to an address of the web UI that is loaded, as a link does: a tenth of the work of loading it.

    The page before is gone by then, so that nothing of it is taken for what the new one shows.
    """
    leave(page)
    page.evaluate(FOLLOW, url)
    expect(_nowhere(page)).to_have_count(0)


def leave(page: Page) -> None:
    """Goes where nothing of the page that was shown is left."""
    page.evaluate(FOLLOW, NOWHERE)
    expect(_nowhere(page)).to_be_visible()


def _nowhere(page: Page) -> Locator:
    return page.get_by_role("heading", name="404", exact=True)


def expect_at_rest(page: Page) -> None:
    """Expects that the page waits for no answer any more: nothing moves under the mouse, nothing more comes."""
    expect(page.locator("[aria-busy=true]")).to_have_count(0)


def place_at_rest(element: Locator) -> FloatRect:
    """Returns the place of an element that nothing moves or covers any more: for the mouse, which looks for nothing."""
    expect_at_rest(element.page)
    element.hover(trial=True)
    place = element.bounding_box()
    assert place is not None
    return place


def next_frame(page: Page) -> None:
    """Waits until the page has drawn what the last move of the mouse has changed."""
    page.evaluate("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")


def expect_redrawn(canvases: Locator) -> None:
    """Takes the pictures of canvases, as the end of the GPU's process does, and expects them again."""
    seen = [""]

    def is_still() -> bool:  # some are drawn in steps
        seen.append(canvases.evaluate_all(DRAWN))
        return len({*seen[-4:]}) == 1 and seen[-1] != canvases.evaluate_all(BLANK)

    wait_for(is_still, "pictures that no longer change", poll_s=0.6)
    lose = "canvases => canvases.forEach(canvas => { canvas.width = canvas.width })"
    restore = "canvases => canvases.forEach(canvas => canvas.dispatchEvent(new Event('contextrestored')))"
    assert canvases.evaluate_all(f"canvases => {{ ({lose})(canvases); return ({DRAWN})(canvases) }}") != seen[-1]
    canvases.evaluate_all(restore)
    wait_for(lambda: canvases.evaluate_all(DRAWN) == seen[-1], "the pictures as before")


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser: Debian's, installed where that needs nobody's password."""
    result = shutil.which("chromium")
    if result is None and set_up.install_debian_packages(["chromium"]):
        result = shutil.which("chromium")
    if result is None:
        pytest.skip("Debian's chromium was not found and cannot be installed here: apt-get install chromium")
    return result


@pytest.fixture(scope="session")
def site(request: pytest.FixtureRequest, chromium: str) -> Iterator[Site]:
    """The demo's web UI, by an API server of its Airflow's at which users log in."""
    if known := os.environ.get("HOPS_TEST_SITE"):
        named = json.loads(Path(known).read_text())
        yield Site(**{**named, "home": Path(named["home"])})
        return
    request.getfixturevalue("pages_built")
    shown = request.getfixturevalue("shown_demo")
    passwords = shown.home / "passwords.json"
    passwords.write_text(json.dumps(PASSWORDS))
    port = free_port()
    url = f"http://127.0.0.1:{port}/behind/a-proxy"
    settings = {
        **shown.airflow_settings(),
        "PYTHONPATH": str(example_pages(shown.home / "example_pages")),
        "AIRFLOW__METRICS__STATSD_ON": "False",  # the metrics and events are the demo's
        "AIRFLOW__OPENLINEAGE__DISABLED": "True",
        **users(url, passwords),
    }
    with serving(port, settings, shown.home / "logs" / "users.log"):
        yield Site(url, shown.home, PASSWORDS, settings)


def users(url: str, passwords: Path) -> dict[str, str]:
    """Returns the settings of an API server at an address, at which users log in."""
    return {
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": USERS,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
    }


@contextlib.contextmanager
def serving(port: int, settings: dict[str, str], log: Path) -> Iterator[None]:
    """Runs an API server of an Airflow, once it answers."""
    command = [sys.executable, "-m", "airflow", "api-server", "--apps", "core", "--port", str(port)]
    with log.open("wb") as stream:
        process = subprocess.Popen(command, env=settings, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
    try:
        wait_for(
            lambda: process.poll() is not None or answers(settings["AIRFLOW__API__BASE_URL"]),
            lambda: log.read_text()[-3000:],
            STARTUP_TIMEOUT_S,
            poll_s=0.2,
        )
        assert process.poll() is None, log.read_text()[-3000:]
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    """Headless Chromium. It ends with the tests of this folder: asyncio cannot be used beside it."""
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


class Window:
    """A page of the browser, and what goes wrong in it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.begin(problems_expected=False)
        page.on("request", lambda sent: self.unanswered.append(sent.url))
        page.on("requestfinished", lambda sent: self._answered(sent.url))
        page.on("requestfailed", lambda sent: self._answered(sent.url))
        page.on("console", lambda message: self._problem(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self._problem(str(error)))
        page.on("response", lambda got: self._problem(f"{got.status} {got.url}") if got.status >= 400 else None)

    def begin(self, *, problems_expected: bool) -> None:
        """Forgets what was, for another test."""
        self.problems: list[str] = []
        self.unanswered: list[str] = []
        self.problems_expected = problems_expected

    def load(self, url: str, theme: str) -> None:
        """Loads an address as one who was never there."""
        fresh = f"sessionStorage.opened = 1; localStorage.clear(); localStorage.theme = {json.dumps(theme)}"
        self.page.add_init_script(f"if (!sessionStorage.opened) {{ {fresh} }}")
        self.page.goto(url)

    def follow(self, url: str, theme: str) -> None:
        """Goes to an address as a link does, as one who was never there."""
        self.page.evaluate(
            """theme => {
                localStorage.clear();
                localStorage.theme = theme;
                const storageArea = localStorage;
                dispatchEvent(new StorageEvent("storage", { key: "theme", newValue: theme, storageArea }));
            }""",
            theme,
        )
        follow(self.page, url)

    def leave(self) -> None:
        """Ends what a test has done in it."""
        self.page.unroute_all(behavior="ignoreErrors")
        self.problems_expected = True
        leave(self.page)

    def _answered(self, url: str) -> None:
        if url in self.unanswered:
            self.unanswered.remove(url)

    def _problem(self, text: str) -> None:
        if not self.problems_expected:
            self.problems.append(text)


@dataclass
class Windows:
    """The windows of a user.

    Attributes:
        context: What they share; Airflow's own 7 MB are fetched once.
        token: By which the user is logged in.
        left: Windows that a test has left, which the next one goes on in.
    """

    context: BrowserContext
    token: str
    left: list[Window] = field(default_factory=list)


@pytest.fixture(scope="package")
def windows(browser: Browser) -> dict[str, Windows]:
    """The browser's windows by user."""
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
    browser: Browser,
    windows: dict[str, Windows],
    site: Site,
) -> Iterator[OpenPage]:
    """Shows a page: ``open_page("plugin/hops", theme="dark", user="viewer")``, by a link or, at first, by loading it.

    At the end of the test nothing may have gone wrong in any of them: an error in the console, an exception, an answer
    of 400 or more; except in those that were opened with ``problems_expected``. A test that changes more of a window
    than a link resets says ``own=True``. Where the test has failed, what the windows showed is printed, with the
    requests that were not answered yet.
    """
    opened: list[tuple[Window, Windows | None]] = []
    slow: int | None = request.config.getoption("slow_pages")

    def open_page(
        path: str = "",
        *,
        theme: str = "light",
        user: str = "admin",
        problems_expected: bool = False,
        width: int = 1600,
        height: int = 1000,
        own: bool = False,
    ) -> Page:
        if user not in windows:
            context = browser.new_context(timezone_id="UTC", reduced_motion="reduce")
            context.set_default_timeout(TIMEOUT_MS)
            context.add_init_script(STILL)
            windows[user] = Windows(context, site.token(user))
        kind, url = windows[user], f"{site.url}/{path}"
        kind.context.add_cookies([{"name": "_token", "value": kind.token, "url": site.url}])
        is_new = not kind.left or own
        if not is_new:
            window = kind.left.pop()
        else:
            window = Window(kind.context.new_page() if slow is None else slow_page(kind.context, slow + len(opened)))
        window.begin(problems_expected=problems_expected)
        window.page.bring_to_front()  # one that is behind another draws a frame in seconds
        window.page.set_viewport_size({"width": width, "height": height})
        if not is_new:
            window.follow(url, theme)
        else:
            window.load(url, theme)
        opened.append((window, None if own else kind))
        return window.page

    yield open_page
    problems = []
    for number, (window, kind) in enumerate(opened):
        page = window.page
        problems += window.problems
        if request.node.stash.get(FAILED, False):
            page.screenshot(path=tmp_path / f"window-{number}.png")
            print(f"{page.url} ({tmp_path}/window-{number}.png)\n{page.locator('body').inner_text()[:2000]}")
            print("not answered yet:", window.unanswered, "problems:", window.problems)
        if kind is None or window.problems or request.node.stash.get(FAILED, False):
            page.close()
            continue
        expected = window.problems_expected
        window.leave()
        if expected and window.unanswered:  # a problem that comes yet would be taken for the next test's
            page.close()
        else:
            kind.left.append(window)
    assert problems == []


@pytest.fixture(scope="package")
def own(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnDags]:
    """DAGs of the site whose runs wait for what a test does."""
    from ui.own_dags import run_own_dags  # which takes from here

    with run_own_dags(site, tmp_path_factory.mktemp("own"), "pages_progress", "pages_schema", "pages_features") as own:
        yield own


def answers(url: str) -> bool:
    """Whether there is an Airflow."""
    try:
        return httpx.get(f"{url}/api/v2/version", trust_env=False, timeout=10).is_success
    except httpx.TransportError:
        return False
