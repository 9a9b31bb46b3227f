"""``GET /v1/stats``: counts, latencies and the traffic in effect."""

from __future__ import annotations

import re

from airflow_hops.serving.gateway.shadow import ReadShadow, shadow_report
from airflow_hops.serving.models.catalog import Catalog
from airflow_hops.serving.monitoring.stats import EMPTY, RequestStats
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes, json_response


def add_route(routes: Routes, stats: RequestStats, catalog: Catalog, read_shadow: ReadShadow) -> None:
    """Adds ``GET /v1/stats``; ``histograms=1`` adds ``latency_ms_histogram`` to each version."""

    def show(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
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

    routes.add("GET /v1/stats", show)
