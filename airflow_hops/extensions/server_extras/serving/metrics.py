"""Metrics in Prometheus' text format: TensorFlow Serving's metrics with their names, and further ones by version.

Metrics of requests do not slow requests down: they are derived from ``RequestStats`` when they are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from airflow_hops.core.serving_api.config import ConfigError, read_message
from airflow_hops.core.serving_api.protocol import MonitoringConfig
from airflow_hops.serving.access import Right
from airflow_hops.serving.monitoring.stats import BUCKETS_PER_BOUND, LATENCY_BOUNDS_US, LatencyHistogram, add_to
from airflow_hops.serving.parts import Counted
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes

DEFAULT_PATH = "/monitoring/prometheus/metrics"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_COUNT = ":tensorflow:serving:request_count"
_ROWS = ("captured", "dropped", "written", "failed")
_LABELS = ("captured", "dropped", "written")

# TensorFlow Serving's name of a session.
_RUNTIME = "TF1"

Shares = Callable[[], Mapping[str, Mapping[int, float]]]


def prometheus_path(monitoring_config_file: str) -> str | None:
    """Returns the path of the metrics in the REST API, or None if TensorFlow Serving's file does not enable them.

    Raises:
        ConfigError: The file is missing, cannot be parsed, or its path does not begin with /.
    """
    config = read_message(monitoring_config_file, MonitoringConfig()).prometheus_config
    if config.path and not config.path.startswith("/"):
        raise ConfigError(f"{monitoring_config_file}: path is {config.path!r}; expected one that begins with /")
    return (config.path or DEFAULT_PATH) if config.enable else None


def add_route(routes: Routes, path: str, registry: CollectorRegistry) -> None:
    """Adds the route of the metrics."""

    def show(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        return HttpResponse(exposition(registry), content_type=CONTENT_TYPE)

    routes.add(f"GET {re.escape(path)}", show, right=Right.CONTROL)


class ServerMetrics(Collector):
    """Metrics of requests and their capture, and the traffic shares of available versions in percent."""

    def __init__(self, counted: Counted, shares: Shares) -> None:
        self._counted, self._shares = counted, shares

    def collect(self) -> Iterable[Metric]:
        """Yields the current metrics."""
        yield from self._requests()
        yield from _captured(self._counted.capture.status())

    def _requests(self) -> Iterable[Metric]:
        requests = Metric(REQUEST_COUNT, "The total number of requests.", "counter")
        latency = Metric(
            ":tensorflow:serving:request_latency",
            "Distribution of the request latencies (in microseconds).",
            "histogram",
        )
        runtime = Metric(
            ":tensorflow:serving:runtime_latency",
            "Distribution of the time that the model took of a request (in microseconds).",
            "histogram",
        )
        rows = Metric(":tensorflow:serving:request_example_count", "The total number of rows.", "counter")
        runs: dict[tuple[str, int, str], LatencyHistogram] = {}
        for kind, counts in self._counted.stats.counts().items():
            by_version = {"model_name": kind.model, "version": str(kind.version or "")}
            for code, count in sorted(counts.by_code.items()):
                labels = {**by_version, "API": kind.method, "entrypoint": kind.api, "status": code}
                requests.add_sample(requests.name, labels, count)
            if counts.by_code.get("OK"):
                labels = {**by_version, **{"API": kind.method, "entrypoint": kind.api}}
                rows.add_sample(f"{rows.name}_total", labels, counts.rows)
                _add_histogram(latency, labels, counts.latency)
                add_to(runs, (kind.model, kind.version, kind.method), counts.run)
        for (model, version, method), run in runs.items():
            labels = {"model_name": model, "version": str(version), "API": method, "runtime": _RUNTIME}
            _add_histogram(runtime, labels, run)
        yield from (requests, rows, latency, runtime)
        traffic = GaugeMetricFamily(
            "hops_serving_traffic_percent",
            "Share of an available version in the requests that name none, percent.",
            labels=["model_name", "version"],
        )
        for model, shares in self._shares().items():
            for version, percent in shares.items():
                traffic.add_metric([model, str(version)], percent)
        yield traffic


def _captured(status: Mapping[str, Any]) -> Iterable[Metric]:
    """Yields the metrics of request capture from ``GET /v1/capture``."""
    by_outcome = ["model_name", "outcome"]
    rows = CounterMetricFamily("hops_serving_capture_rows", "Rows of requests by outcome.", None, by_outcome)
    labels = CounterMetricFamily("hops_serving_capture_labels", "Labels by outcome.", None, by_outcome)
    files = CounterMetricFamily("hops_serving_capture_files", "Files written.", None, ["model_name"])
    for model, counts in status["models"].items():
        for outcome in _ROWS:
            rows.add_metric([model, outcome], counts[f"{outcome}_rows"])
        for outcome in _LABELS:
            labels.add_metric([model, outcome], counts[f"{outcome}_labels"])
        files.add_metric([model], counts["files"])
    yield from (rows, labels, files)
    if "spool_bytes" in status:
        yield GaugeMetricFamily(
            "hops_serving_capture_spool_bytes", "Bytes of the spool on the disk.", status["spool_bytes"]
        )
        yield GaugeMetricFamily(
            "hops_serving_capture_lag_seconds",
            "Age of the oldest captured row that is in no file yet.",
            status["lag_seconds"],
        )


def _add_histogram(metric: Metric, labels: dict[str, str], histogram: LatencyHistogram) -> None:
    below = list(accumulate(histogram.buckets))
    for index, bound in enumerate(LATENCY_BOUNDS_US):
        count = below[(index + 4) * BUCKETS_PER_BOUND]
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": floatToGoString(bound)}, count)
    metric.add_sample(f"{metric.name}_bucket", {**labels, "le": "+Inf"}, below[-1])
    metric.add_sample(f"{metric.name}_sum", labels, histogram.sum_s * 1e6)
    metric.add_sample(f"{metric.name}_count", labels, below[-1])


def exposition(registry: CollectorRegistry) -> bytes:
    """Returns all metrics in Prometheus' text format."""
    # prometheus-client 0.26 (prometheus/client_python#677): announces all counters with _total, which TensorFlow
    # Serving's request_count lacks.
    name = f" {REQUEST_COUNT} ".encode()
    text: bytes = generate_latest(registry)
    return text.replace(name.replace(b"_count ", b"_count_total "), name)
