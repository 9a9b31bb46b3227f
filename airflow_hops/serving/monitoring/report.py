"""Reports the counts of requests over REST."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_hops.serving.monitoring.stats import EMPTY, RequestStats
from airflow_hops.serving.routes import HttpRequest, HttpResponse, Routes, json_response

if TYPE_CHECKING:
    from airflow_hops.serving.models.catalog import Catalog


def add_routes(routes: Routes, stats: RequestStats, catalog: Catalog) -> None:
    """Adds ``GET /v1/stats``, whose ``histograms=1`` adds ``latency_ms_histogram``."""

    def show(request: HttpRequest, match: re.Match[str]) -> HttpResponse:
        counted = stats.snapshot(histograms=request.query.get("histograms") == "1")
        models: dict[str, object] = {}
        for model in sorted(counted.keys() | catalog.views.keys()):
            shares = catalog.traffic_percent(model)
            versions = counted.get(model, {})
            models[model] = {
                "versions": {
                    str(version): {**versions.get(version, EMPTY), "traffic_percent": shares.get(version, 0.0)}
                    for version in sorted(versions.keys() | shares.keys())
                },
            }
        return json_response({"since": stats.started_at, "models": models})

    routes.add("GET /v1/stats", show)
