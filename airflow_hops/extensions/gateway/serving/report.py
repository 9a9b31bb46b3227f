"""Reports shadow traffic over REST and as metrics."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from airflow_hops.extensions.gateway.serving.shadow import ShadowTotals
from airflow_hops.serving.access import Right
from airflow_hops.serving.models.catalog import Catalog
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes, json_response, read_percents


def add_routes(routes: Routes, catalog: Catalog, read_counts: Callable[[], ShadowTotals]) -> None:
    """Adds ``/v1/models/M:shadow``."""

    def answer(model: str) -> HttpResponse:
        percents = catalog.traffic.shadow.get(model)
        document = {
            "model": model,
            "percents": None if percents is None else {str(target): percent for target, percent in percents.items()},
            "persisted": catalog.traffic.file is not None,
            "versions": read_counts().versions(model),
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

    routes.add("GET /v1/models/MODEL:shadow", show, right=Right.CONTROL)
    routes.add("POST /v1/models/MODEL:shadow", change, right=Right.CONTROL)


class ShadowCollector(Collector):
    """Metrics of shadow traffic, by model, version and output."""

    def __init__(self, read_counts: Callable[[], ShadowTotals]) -> None:
        self._read_counts = read_counts

    def collect(self) -> Iterable[Metric]:
        """Returns the current metrics."""
        labels = ["model_name", "version"]
        requests = CounterMetricFamily(
            "hops_serving_shadow_requests", "Copies of requests, by how they ended.", labels=[*labels, "status"]
        )
        dropped = CounterMetricFamily("hops_serving_shadow_dropped", "Copies that found the queue full.", labels=labels)
        latency = GaugeMetricFamily(
            "hops_serving_shadow_latency_seconds", "Latency of the copies.", labels=[*labels, "quantile"]
        )
        labels = [*labels, "output"]
        rows = CounterMetricFamily("hops_serving_shadow_rows", "Rows that were compared.", labels=labels)
        differing = CounterMetricFamily(
            "hops_serving_shadow_rows_differing", "Rows that differ by more than the tolerance.", labels=labels
        )
        largest = GaugeMetricFamily("hops_serving_shadow_max_difference", "Largest absolute difference.", labels=labels)
        totals = self._read_counts()
        for model in sorted(totals.models):
            for version, counts in totals.versions(model).items():
                for code, count in counts["codes"].items():
                    requests.add_metric([model, version, code], count)
                dropped.add_metric([model, version], counts["dropped"])
                for quantile in ("50", "99"):
                    if (latency_ms := counts[f"latency_ms_p{quantile}"]) is not None:
                        latency.add_metric([model, version, f"0.{quantile}"], latency_ms / 1000)
                for output, differences in counts["outputs"].items():
                    rows.add_metric([model, version, output], differences["rows"])
                    differing.add_metric([model, version, output], differences["rows_differing"])
                    if differences["max_difference"] is not None:
                        largest.add_metric([model, version, output], differences["max_difference"])
        return requests, dropped, latency, rows, differing, largest
