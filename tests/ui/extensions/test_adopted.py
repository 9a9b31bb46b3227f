"""The model of an endpoint that only its log tells of: which endpoint, and which of its rows were not judged."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import expect

from ui.accessibility import expect_fits
from ui.conftest import OpenPage, Site, follow
from ui.own_dags import run_own_dags

pytestmark = [pytest.mark.runtime]
MODEL, DAG = "adopted_churn", "adopted_churn_monitor"
FIELDS = ("request_id=id", "captured_at=time", "version=version")


def write_log(path: Path) -> None:
    """Writes the requests of five days; in the last, another version has answered 50 of 1,200."""
    end = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    rows = [
        {
            "id": f"{day}-{number}",
            "time": (end - timedelta(days=day) + timedelta(minutes=number)).isoformat(),
            "version": "7" if day == 1 and number < 50 else "v1",
            "age": random.gauss(40, 10),
            "score": random.random(),
        }
        for day in range(5, 0, -1)
        for number in range(1200)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An endpoint that says that it is ready."""
    folder = tmp_path_factory.mktemp("endpoint")
    (folder / "v2" / "health").mkdir(parents=True)
    (folder / "v2" / "health" / "ready").touch()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def site_with_adopted(site: Site, endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An adopted model whose last day was watched, by the real command and steps."""
    folder = tmp_path_factory.mktemp("adopted")
    write_log(folder / "requests.jsonl")
    where = ["--endpoint", endpoint, "--captured", str(folder / "requests.jsonl"), "-o", str(folder), "--yes"]
    names = ["--input", "age=age", "--prediction", "score=score", "--version", "v1", "--schedule", "@daily"]
    fields = [part for field in FIELDS for part in ("--field", field)]
    command = [sys.executable, "-m", "airflow", "hops", "adopt", MODEL, *where, *names, *fields]
    ran = subprocess.run(command, env=site.environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    with run_own_dags(site, tmp_path_factory.mktemp("dags"), DAG, dags=folder) as own:
        own.run(DAG)
        assert own.wait_for(lambda: own.states(DAG)) == ["success"]
    return site


def test_adopted_model_names_its_endpoint_and_the_rows_not_judged(
    site_with_adopted: Site, endpoint: str, open_page: OpenPage
) -> None:
    address = f"plugin/hops/models/{MODEL}?dag={DAG}"
    page = open_page(f"{address}&tab=no+such+tab", width=390, height=844)
    section = page.get_by_role("region", name="Endpoint")
    expect(section).to_contain_text(f"external{endpoint}")
    expect(section).to_contain_text("is served there, outside of this installation: only its log tells")
    expect(page.get_by_role("tab", name="Serving")).to_have_attribute("aria-selected", "true")
    follow(page, f"{site_with_adopted.url}/{address}&tab=decisions")
    expect(page.get_by_role("tab", name="Decisions")).to_be_in_viewport(ratio=0.9)
    expect_fits(page)
    follow(page, f"{site_with_adopted.url}/plugin/hops/skew?dag={DAG}")
    expect(page.get_by_role("link", name="Skew", exact=True)).to_be_in_viewport(ratio=0.9)
    expect(
        page.get_by_text("The ingest left out 50 rows: 50 of version '7', which was not deployed from here")
    ).to_be_visible()
