"""Prometheus' metrics tell what was asked, and each panel of Grafana's dashboard has data in a real Prometheus."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from prometheus_client.utils import floatToGoString
from prometheus_process import Prometheus, missing_panels
from server_process import ServerProcess, Start, versions, write_models

import airflow_hops
from airflow_hops.core.serving_api.answers import ModelServerError
from airflow_hops.core.serving_api.client import ModelServerClient

INPUTS = {"carrier": ["AA", "UA"], "distance": [[733.0], [1.0]], "hour": [5, 6]}
ROW = {"instances": [{"carrier": "AA", "distance": [733.0], "hour": 5}]}


def exposed(text: str) -> dict[str, float]:
    """Every sample of Prometheus' text format by its name and sorted labels."""
    samples = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            assert name not in samples
            samples[name] = float(value)
    return samples


def named(name: str, **labels: str) -> str:
    pairs = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    return f"{name}{{{pairs}}}" if pairs else name


def metrics(server: ServerProcess, path: str = "/monitoring/prometheus/metrics") -> tuple[str, dict[str, float]]:
    with urllib.request.urlopen(server.url + path, timeout=60) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        text = response.read().decode()
    return text, exposed(text)


def labels(version: int | str, entrypoint: str, method: str = "Predict", model: str = "flights") -> dict[str, str]:
    return {"model_name": model, "version": str(version), "API": method, "entrypoint": entrypoint}


@pytest.fixture
def server(start_server: Start, saved_models: Path, tmp_path: Path) -> ServerProcess:
    (tmp_path / "monitoring.config").write_text("prometheus_config { enable: true }")
    config = write_models(tmp_path, flights=(saved_models / "flights", versions(1, 2)))
    return start_server(model_config_file=config, monitoring_config_file=tmp_path / "monitoring.config")


def test_metrics_match_requests(server: ServerProcess) -> None:
    with ModelServerClient(server.address) as client:
        for number in range(10):
            client.predict("flights", INPUTS, version=1, request_id=f"r-{number}")
        for version, code in ((1, grpc.StatusCode.INVALID_ARGUMENT), (9, grpc.StatusCode.NOT_FOUND)):
            with pytest.raises(ModelServerError) as refused:
                client.predict("flights", {}, version=version, request_id="refused")
            assert refused.value.code is code
    for _ in range(4):
        server.predict("flights", ROW)
    assert server.error("/v1/models/trains:predict", ROW)[0] == 404

    text, samples = metrics(server)
    count = ":tensorflow:serving:request_count"
    assert f"# TYPE {count} counter\n" in text
    assert {name: value for name, value in samples.items() if name.startswith(count)} == {
        named(count, **labels(1, "GRPC"), status="OK"): 10,
        named(count, **labels(1, "GRPC"), status="INVALID_ARGUMENT"): 1,
        named(count, **labels("", "GRPC", ""), status="NOT_FOUND"): 1,
        named(count, **labels(2, "REST"), status="OK"): 4,
        named(count, **labels("", "REST", "", ""), status="NOT_FOUND"): 1,
    }
    assert samples[named(":tensorflow:serving:request_example_count_total", **labels(1, "GRPC"))] == 20
    assert samples['hops_serving_traffic_percent{model_name="flights",version="2"}'] == 100
    assert samples["process_resident_memory_bytes"] > 1e7
    for name, version, entrypoint in (("request", 1, "GRPC"), ("request", 2, "REST")):
        latency = f":tensorflow:serving:{name}_latency"
        assert f"# TYPE {latency} histogram\n" in text
        by_version = labels(version, entrypoint)
        total = samples[named(f"{latency}_count", **by_version)]
        # TensorFlow Serving's bounds: 10 microseconds times 1.8 to the power of 0 to 32, and infinity.
        bounds = [*(floatToGoString(10 * 1.8**power) for power in range(33)), "+Inf"]
        buckets = [samples[named(f"{latency}_bucket", **by_version, le=bound)] for bound in bounds]
        prefix = f'{latency}_bucket{{API="Predict",entrypoint="{entrypoint}",le='
        assert sum(name.startswith(prefix) and f'version="{version}"' in name for name in samples) == len(buckets)
        assert (len(buckets), buckets[-1], sorted(buckets)) == (34, total, buckets)
        assert total == {1: 10, 2: 4}[version]
        mean_us = samples[named(f"{latency}_sum", **by_version)] / total
        assert 10 < mean_us < 60e6
    by_runtime = {"model_name": "flights", "version": "1", "API": "Predict", "runtime": "TF1"}
    assert samples[named(":tensorflow:serving:runtime_latency_count", **by_runtime)] == 10
    shown = server.call("/v1/stats")[1]["models"]["flights"]["versions"]["1"]
    assert (shown["requests"], shown["rows"], shown["errors"], shown["client_errors"]) == (11, 20, 0, 1)
    assert shown["codes"] == {"INVALID_ARGUMENT": 1, "OK": 10}


def test_names_have_the_base_units_of_prometheus() -> None:
    package = Path(airflow_hops.__file__).parent
    sources = [path.read_text() for path in package.rglob("serving/**/*.py")]
    names = {name for text in sources for name in re.findall(r'"(hops_serving_\w+)"', text)}
    assert "hops_serving_traffic_percent" in names and len(names) > 8
    assert [
        name for name in names if re.search(r"_(ms|us|ns|min|minutes|hours|days|kb|mb|gb|kib|mib)(_|$)", name)
    ] == []


@pytest.fixture
def busy_server(start_server: Start, saved_models: Path, tmp_path: Path) -> ServerProcess:
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
def prometheus(busy_server: ServerProcess, tmp_path: Path) -> Iterator[Prometheus]:
    address = busy_server.url.removeprefix("http://")
    process = Prometheus(tmp_path / "prometheus", f"{address}/monitoring/prometheus/metrics")
    yield process
    process.stop()


def test_each_model_server_panel_has_data(busy_server: ServerProcess, prometheus: Prometheus) -> None:
    deadline = time.monotonic() + 240
    while missing := missing_panels(prometheus, "model_server", "10s"):
        assert time.monotonic() < deadline, missing
        for number in range(20):
            request_id = f"{time.monotonic_ns()}"
            busy_server.predict("flights", ROW, headers={"x-request-id": request_id})
            if number == 0:
                assert busy_server.call("/v1/models/flights:predict", {"instances": [{}]})[0] == 400
                busy_server.post("/v1/feedback", {"model": "flights", "request_id": request_id, "label": 1})
    by_version = prometheus.query(
        'sum by (version) (:tensorflow:serving:request_count{model_name="flights", status="OK"})'
    )
    assert {series["metric"]["version"] for series in by_version} == {"1", "2"}
