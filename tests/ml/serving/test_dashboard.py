"""Grafana's dashboard of the model server: each of its queries has an answer in a real Prometheus."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_process import Prometheus, missing_panels
from server_process import ServerProcess, Start, versions, write_models

ROW = {"instances": [{"carrier": "AA", "distance": [733.0], "hour": 5}]}


@pytest.fixture
def server(start_server: Start, saved_models: Path, tmp_path: Path) -> ServerProcess:
    (tmp_path / "monitoring.config").write_text("prometheus_config { enable: true }")
    traffic = {"models": {"flights": {"1": 50, "2": 50}}}
    (tmp_path / "traffic.json").write_text(json.dumps(traffic))
    return start_server(
        model_config_file=write_models(tmp_path, flights=(saved_models / "flights", versions(1, 2))),
        traffic_config_file=tmp_path / "traffic.json",
        monitoring_config_file=tmp_path / "monitoring.config",
        capture_base_path=tmp_path / "captured",
        enable_batching=True,
    )


@pytest.fixture
def prometheus(server: ServerProcess, tmp_path: Path) -> Iterator[Prometheus]:
    address = server.url.removeprefix("http://")
    process = Prometheus(tmp_path / "prometheus", f"{address}/monitoring/prometheus/metrics")
    yield process
    process.stop()


def test_each_model_server_panel_has_data(server: ServerProcess, prometheus: Prometheus) -> None:
    deadline = time.monotonic() + 240
    while missing := missing_panels(prometheus, "model_server", "10s"):
        assert time.monotonic() < deadline, missing
        for number in range(20):
            request_id = f"{time.monotonic_ns()}"
            server.predict("flights", ROW, headers={"x-request-id": request_id})
            if number == 0:
                assert server.call("/v1/models/flights:predict", {"instances": [{}]})[0] == 400
                server.post("/v1/feedback", {"model": "flights", "request_id": request_id, "label": 1})
    by_version = prometheus.query(
        'sum by (version) (:tensorflow:serving:request_count{model_name="flights", status="OK"})'
    )
    assert {series["metric"]["version"] for series in by_version} == {"1", "2"}
