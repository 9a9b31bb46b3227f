"""Takes the pictures of the documentation: the flights DAG in Airflow's grid and graph, in headless Chromium.

Run ``make demo``, and beside it, with the address that it prints:

    .uv/bin/uv run --no-project --with playwright python scripts/screenshots.py http://127.0.0.1:PORT

Needs Debian's ``chromium``.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
VIEWS = {
    "flights-training-grid": ("grid", {"width": 1600, "height": 900}, "body"),
    # As wide as the chain of tasks, and no higher.
    "flights-training-graph": ("graph", {"width": 2600, "height": 520}, ".react-flow"),
}
"""By picture: the DAG's view, the window's size in pixels, and the element to take."""
SETTLE_MS = 4000


def main() -> None:
    """Opens each view and takes its picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="address of the web UI")
    given = parser.parse_args()
    IMAGES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (view, size, part) in VIEWS.items():
            page = browser.new_page(viewport=size)
            page.add_init_script(f"localStorage.setItem('default_dag_view', JSON.stringify('{view}'))")
            runs = page.request.get(f"{given.url}/api/v2/dags/flights_training/dagRuns?order_by=-run_after").json()
            page.goto(f"{given.url}/dags/flights_training/runs/{quote(runs['dag_runs'][0]['dag_run_id'])}")
            page.wait_for_timeout(SETTLE_MS)
            page.locator(part).first.screenshot(path=IMAGES / f"{name}.png")
            print(IMAGES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
