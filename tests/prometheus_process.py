"""Prometheus for tests of both environments: it scrapes what they start, and answers the queries of dashboards."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_for

DASHBOARDS = Path(__file__).resolve().parents[1] / "deploy" / "grafana"
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Prometheus:
    """Debian's Prometheus.

    Args:
        folder: For its data and configuration.
        targets: Addresses to scrape, ``host:port/path``.
        interval: How often.
    """

    def __init__(self, folder: Path, *targets: str, interval: str = "250ms") -> None:
        program = shutil.which("prometheus")
        if program is None:
            pytest.skip("there is no prometheus in PATH (Debian: apt-get install prometheus)")
        jobs = []
        for number, target in enumerate(targets):
            address, _, path = target.partition("/")
            jobs.append(
                {"job_name": str(number), "metrics_path": f"/{path}", "static_configs": [{"targets": [address]}]}
            )
        folder.mkdir(parents=True)
        config = {"global": {"scrape_interval": interval, "scrape_timeout": interval}, "scrape_configs": jobs}
        (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        command = [program, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        self._log = folder / "prometheus.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, f"--web.listen-address={self.url.removeprefix('http://')}"], stdout=log, stderr=log
            )
        wait_for(self._ready, self._log.read_text)

    def _ready(self) -> bool:
        try:
            return bool(_OPENER.open(f"{self.url}/-/ready", timeout=5).status == 200)
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Returns the series of a query in PromQL, those that are no number left out."""
        url = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with _OPENER.open(url, timeout=30) as response:
            result = json.loads(response.read())["data"]["result"]
        return [series for series in result if series["value"][1] != "NaN"]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def dashboard(name: str) -> dict[str, Any]:
    return dict(json.loads((DASHBOARDS / f"{name}.json").read_text()))


def panel_queries(name: str, interval: str) -> Iterator[tuple[str, str]]:
    """Yields title and query of each panel's targets, with all values of variables, and an interval for Grafana's."""
    shown = dashboard(name)
    variables = {variable["name"] for variable in shown["templating"]["list"]}
    for panel in shown["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", interval)
            named = re.findall(r"\$(\w+)", expression)
            assert variables.issuperset(named), expression
            yield panel["title"], re.sub(r"\$\w+", ".*", expression)


def missing_panels(prometheus: Prometheus, name: str, interval: str) -> dict[str, str]:
    """Returns the panels none of whose queries has an answer: one by title."""
    queries = list(panel_queries(name, interval))
    shown = {title for title, query in queries if prometheus.query(query)}
    return {title: query for title, query in queries if title not in shown}
