"""Reports counts and shadow traffic over REST, and shadow traffic as metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from airflow_hops.extensions.gateway.serving.shadow import ReadShadow, shadow_report
from airflow_hops.serving.models.catalog import Catalog
from airflow_hops.serving.monitoring.stats import EMPTY, RequestStats
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes, json_response, read_percents


def add_routes(routes: Routes, stats: RequestStats, catalog: Catalog, read_shadow: ReadShadow) -> None:
    """Adds ``GET /v1/stats``, whose ``histograms=1`` adds ``latency_ms_histogram``, and ``/v1/models/M:shadow``."""

    def show_counts(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        counted = stats.snapshot(histograms=request.query.get("histograms") == "1")
        shadowed = read_shadow()
        models: dict[str, object] = {}
        for model in sorted(counted.keys() | catalog.views.keys()):
            shares = catalog.traffic_percent(model)
            versions = counted.get(model, {})
            copies = shadow_report(shadowed.get(model))
            models[model] = {
                **({"shadow": copies} if copies else {}),
                "versions": {
                    str(version): {**versions.get(version, EMPTY), "traffic_percent": shares.get(version, 0.0)}
                    for version in sorted(versions.keys() | shares.keys())
                },
            }
        return json_response({"since": stats.started_at, "models": models})

    def answer(model: str) -> HttpResponse:
        percents = catalog.traffic.shadow.get(model)
        document = {
            "model": model,
            "percents": None if percents is None else {str(target): percent for target, percent in percents.items()},
            "persisted": catalog.traffic.file is not None,
            "versions": shadow_report(read_shadow().get(model)),
        }
        return json_response(document)

    def show(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        catalog.statuses(match["model"])
        return answer(match["model"])

    def change(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        catalog.statuses(match["model"])
        percents = read_percents(request.json(), "shadow", '{"percents": {"3": 50, "canary": 10}}')
        catalog.set_shadow(match["model"], percents)
        return answer(match["model"])

    routes.add("GET /v1/stats", show_counts)
    routes.add("GET /v1/models/MODEL:shadow", show)
    routes.add("POST /v1/models/MODEL:shadow", change)


class ShadowCollector(Collector):
    """Metrics of shadow traffic, by model, version and output."""

    def __init__(self, read_shadow: ReadShadow) -> None:
        self._read_shadow = read_shadow

    def collect(self) -> Iterable[Metric]:
        """Returns the current metrics."""
        labels = ["model_name", "version"]
        requests = CounterMetricFamily(
            "hops_serving_shadow_requests", "Copies of requests, by how they ended.", labels=[*labels, "status"]
        )
        dropped = CounterMetricFamily("hops_serving_shadow_dropped", "Copies that found the queue full.", labels=labels)
        latency = GaugeMetricFamily(
            "hops_serving_shadow_latency_ms", "Latency of the copies, milliseconds.", labels=[*labels, "quantile"]
        )
        labels = [*labels, "output"]
        rows = CounterMetricFamily("hops_serving_shadow_rows", "Rows that were compared.", labels=labels)
        differing = CounterMetricFamily(
            "hops_serving_shadow_rows_differing", "Rows that differ by more than the tolerance.", labels=labels
        )
        largest = GaugeMetricFamily("hops_serving_shadow_max_difference", "Largest absolute difference.", labels=labels)
        for model, versions in sorted(self._read_shadow().items()):
            for version, counts in shadow_report(versions).items():
                for code, count in counts["codes"].items():
                    requests.add_metric([model, version, code], count)
                dropped.add_metric([model, version], counts["dropped"])
                for quantile in ("50", "99"):
                    if counts[f"latency_ms_p{quantile}"] is not None:
                        latency.add_metric([model, version, f"0.{quantile}"], counts[f"latency_ms_p{quantile}"])
                for output, differences in counts["outputs"].items():
                    rows.add_metric([model, version, output], differences["rows"])
                    differing.add_metric([model, version, output], differences["rows_differing"])
                    if differences["max_difference"] is not None:
                        largest.add_metric([model, version, output], differences["max_difference"])
        return requests, dropped, latency, rows, differing, largest
