"""The last hour in steps: what a step counts, how much is kept, and that a server tells it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from airflow_hops.extensions.observability.serving.series import STEPS, RequestSeries, add_routes
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.monitoring.batches import BatchCounts
from airflow_hops.serving.monitoring.stats import RequestStats
from airflow_hops.serving.request_kind import RequestKind
from airflow_hops.serving.routes import HttpRequest, Routes


def test_step_counts_only_its_requests_and_one_hour_is_retained() -> None:
    stats, batches = RequestStats(), BatchCounts()
    rest = RequestKind("flights", 2, "Predict", "REST")
    stats.record(rest, 5, 0.5, 0.4)
    series, routes = RequestSeries(stats, batches.totals), Routes()
    add_routes(routes, series)

    def show(**query: object) -> Any:
        route = routes.find("GET", "/v1/stats/series")
        texts = {name: str(value) for name, value in query.items()}
        return json.loads(route.answer(HttpRequest("GET", "/v1/stats/series", query=texts), route.match).body)

    for latency_ms in range(1, 101):
        stats.record(rest._replace(api="GRPC"), 2, latency_ms / 1000, 0.0)
    stats.record_error(rest, "INVALID_ARGUMENT")
    stats.record_error(rest, "UNAVAILABLE")
    stats.record_error(rest, "RESOURCE_EXHAUSTED")
    stats.record_error(rest._replace(version=0), "NOT_FOUND")
    series.add_step(1000.0)
    batches.observe("pool", 64, [0.001, 0.003])
    batches.observe("pool", 20000, [0.0])
    stats.record(RequestKind("other", 1, "Predict", "GRPC"), 1, 0.001, 0.001)
    series.add_step(1010.0)
    first = show()
    later = show(model="flights", since=first["at"][0])
    nothing = show(since=time.time() + 60)
    with pytest.raises(ServingError, match="since is 'yesterday'; expected seconds since 1970"):
        show(since="yesterday")
    for _ in range(STEPS + 5):
        series.add_step()
    retained = show()
    flights = first["models"]["flights"]["versions"]
    assert list(flights) == ["2"], "what named no version is nobody's"
    assert (flights["2"]["requests"], flights["2"]["rows"]) == ([103, 0], [200, 0])
    assert (flights["2"]["errors"], flights["2"]["client_errors"]) == ([2, 0], [1, 0])
    assert flights["2"]["latency_ms_p50"] == [pytest.approx(50, rel=0.03), None], "the slow one of before is left out"
    assert flights["2"]["latency_ms_p99"] == [pytest.approx(99, rel=0.03), None]
    assert first["models"]["other"]["versions"]["1"]["requests"] == [0, 1]
    assert first["batching"]["sizes"] == [[64, 1], [None, 1]]
    assert (first["batching"]["batches"], first["batching"]["rows"]) == ([0, 2], [0, 20064])
    assert first["batching"]["requests"] == [0, 3]
    assert first["batching"]["wait_s"] == [0, pytest.approx(0.004)]
    assert (later["at"], later["models"]) == (first["at"][1:], {}), "flights were not asked in the second step"
    assert (nothing["at"], nothing["models"]) == ([], {})
    assert (len(retained["at"]), retained["models"]) == (360, {}), "older steps are gone"
    assert retained["at"] == sorted(retained["at"])
