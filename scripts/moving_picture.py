"""Takes README's moving picture: the pages while the demo goes once through its loop, in headless Chromium.

Run the demo on an empty home, with few requests a second, so that the rollout can be looked at, and beside it, with the
address of Airflow that it prints, this:

    .venv/bin/python -m demo --home /tmp/recorded --rate 30
    .venv/bin/python scripts/moving_picture.py http://127.0.0.1:PORT

Each thing that happens is one picture with a line of text. Needs Debian's ``chromium``; Pillow, which joins the
pictures, is in the runtime environment.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

REPOSITORY = Path(__file__).resolve().parent.parent
PICTURE = REPOSITORY / "docs" / "images" / "loop.webp"
DAG, MODEL, FEATURE = "flights_training", "flights", "dewp"
SIZE = (960, 540)
POLL_S, TIMEOUT_S, SETTLE_MS = 0.2, 1800, 700
SECONDS = 2.0
LARGEST = 1_500_000
CAPTION = """text => {
    document.getElementById("caption")?.remove();
    const line = Object.assign(document.createElement("div"), { id: "caption", textContent: text });
    line.style.cssText = "position:fixed;z-index:99999;left:0;right:0;bottom:0;padding:14px 24px;background:#14213d;"
        + "color:#fff;font:600 26px system-ui,sans-serif;text-align:center";
    document.body.append(line);
}"""


class Recorder:
    """Takes a picture of a page when something has happened.

    Args:
        page: The browser's.
        url: Address of the web UI.
        folder: Where the pictures go, by number.
    """

    def __init__(self, page: Page, url: str, folder: Path) -> None:
        self.page, self.url, self.folder = page, url, folder
        self.seconds: list[float] = []

    def get(self, path: str) -> Any:
        """JSON of Airflow's API or the plugin's; None while there is none."""
        answer = self.page.request.get(f"{self.url}{path}")
        return answer.json() if answer.ok else None

    def wait(self, happened: Callable[[], Any]) -> Any:
        """Returns a result as soon as there is one."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            if found := happened():
                return found
            time.sleep(POLL_S)
        raise TimeoutError("the demo has not come so far; was this started beside it?")

    def open(self, path: str, ready: str = "h1") -> None:
        """Opens a page, and waits until it shows what was asked for."""
        self.page.goto(f"{self.url}/plugin/hops/{path}")
        self.page.locator(ready).first.wait_for(timeout=60_000)

    def take(self, text: str, seconds: float = SECONDS, settle_ms: float = SETTLE_MS) -> None:
        """Takes a picture, with a line of text below, once nothing on the page is on its way any more."""
        self.page.wait_for_timeout(settle_ms)
        self.page.evaluate(CAPTION, text)
        self.page.screenshot(path=self.folder / f"{len(self.seconds):02}.png")
        self.seconds.append(seconds)
        print(f"{text} ({time.strftime('%X')})", flush=True)


def checks(recorder: Recorder, first: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """The monitor's checks, one by one as they are made, until one has found a drift."""
    number, verdict = first, ""
    while verdict != "drift":
        number += 1
        found = recorder.wait(functools.partial(_skew, recorder, number))
        verdict = found["entries"][-1]["verdict"]
        yield number - first, found


def _skew(recorder: Recorder, number: int) -> Any:
    found = recorder.get(f"/hops/api/dags/{DAG}/skew")
    return found if found and found["total_entries"] >= number else None


def _answered(recorder: Recorder) -> Any:
    found = recorder.get(f"/hops/api/dags/{DAG}/validations") or {"entries": []}
    return any((each["question"] or {}).get("state") == "answered" for each in found["entries"])


def record(recorder: Recorder) -> None:
    """The loop, as it happens."""
    count = (recorder.get(f"/hops/api/dags/{DAG}/skew") or {"total_entries": 0})["total_entries"]
    for number, found in checks(recorder, count):
        recorder.open(f"skew?dag={DAG}&feature={FEATURE}&last={number}", "canvas")
        feature = next(each for each in found["features"] if each["name"] == FEATURE)
        distance, allowed = feature["scores"][-1], feature["thresholds"][-1]
        recorder.take(f"Live requests drift: {FEATURE} by {distance:.2f}, {allowed:.2f} is allowed", 1.4)
    recorder.page.get_by_text("Retraining requested", exact=True).wait_for()
    recorder.take("Beyond what is allowed: a retraining is asked for")
    recorder.wait(lambda: _answered(recorder))
    recorder.open(f"schema?dag={DAG}&tab=anomalies", "table[aria-label=Anomalies] tbody tr")
    recorder.take("New airports in the data: the schema's change is approved")
    recorder.open(f"models/{MODEL}?dag={DAG}", "table tbody tr")
    for percent, told in ((20, "is a canary"), (50, "has done well"), (100, "is promoted")):
        share = recorder.page.get_by_role("img", name=re.compile(rf"^Traffic: .*version 2 {percent}%"))
        share.first.wait_for(timeout=1000 * TIMEOUT_S)
        recorder.take(f"The new model {told}: {percent}% of the requests", settle_ms=8000 if percent == 100 else 0)
    recorder.open(f"lineage?dag={DAG}", "[data-node]")
    recorder.take("And every version leads back to its raw data", 3.0)


def join(folder: Path) -> None:
    """Joins the pictures of a folder, each for its seconds; run in the runtime environment."""
    from PIL import Image

    seconds = json.loads((folder / "seconds.json").read_text())
    frames = [Image.open(path).convert("RGB").resize(SIZE, Image.LANCZOS) for path in sorted(folder.glob("*.png"))]
    durations = [round(1000 * each) for each in seconds]
    frames[0].save(PICTURE, save_all=True, append_images=frames[1:], duration=durations, loop=0, quality=90, method=6)
    size = PICTURE.stat().st_size
    print(f"{PICTURE}: {sum(seconds):.0f} s, {size / 1e6:.2f} MB{', which is too large' if size > LARGEST else ''}")


def main() -> None:
    """Records the demo, and joins the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="address of the web UI; or, with --join, a folder of pictures")
    parser.add_argument("--join", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.join:
        join(Path(given.url))
        return
    from playwright.sync_api import sync_playwright

    folder = Path(tempfile.mkdtemp(prefix="moving-picture-"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 720}, reduced_motion="reduce")
        page.add_init_script("localStorage.theme = 'light'")
        recorder = Recorder(page, given.url.rstrip("/"), folder)
        record(recorder)
        browser.close()
    (folder / "seconds.json").write_text(json.dumps(recorder.seconds))
    runtime = REPOSITORY / ".venv-runtime" / "bin" / "python"
    subprocess.run([runtime, __file__, "--join", folder], check=True)


if __name__ == "__main__":
    main()
