"""The last hour in steps: what a step counts, how much is kept, and that a server tells it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from server_process import ServerProcess
from waiting import wait_for

from airflow_hops.serving.monitoring.series import STEPS, BatchCounts, RequestSeries
from airflow_hops.serving.monitoring.stats import RequestStats
from airflow_hops.serving.request_kind import RequestKind


def test_step_counts_only_its_requests_and_one_hour_is_retained() -> None:

    stats, batches = RequestStats(), BatchCounts()
    rest = RequestKind("flights", 2, "Predict", "REST")
    stats.record(rest, 5, 0.5, 0.4)
    series = RequestSeries(stats, batches.totals)
    for latency_ms in range(1, 101):
        stats.record(rest._replace(api="GRPC"), 2, latency_ms / 1000, 0.0)
    stats.record_error(rest, "INVALID_ARGUMENT")
    stats.record_error(rest, "UNAVAILABLE")
    stats.record_error(rest, "RESOURCE_EXHAUSTED")
    stats.record_error(rest._replace(version=0), "NOT_FOUND")
    series.add_step()
    time.sleep(0.01)
    batches.observe("pool", 64, [0.001, 0.003])
    batches.observe("pool", 20000, [0.0])
    stats.record(RequestKind("other", 1, "Predict", "GRPC"), 1, 0.001, 0.001)
    series.add_step()
    first = series.report()
    later = series.report(model="flights", since_s=first["at"][0])
    for _ in range(STEPS + 5):
        series.add_step()
    retained = series.report()
    first, later, retained, left = [first, later, len(retained["at"]), retained["models"]]
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
    assert (retained, left) == (360, {}), "older steps are gone"


def test_server_counts_every_request_in_one_step(shared_server: ServerProcess) -> None:
    server = shared_server
    before = server.call("/v1/stats/series?model=flights")[1]
    assert server.call("/v1/models/flights/versions/2:predict", {"instances": ["nothing"]})[0] == 400
    counted = server.call("/v1/stats")[1]["models"]["flights"]["versions"]["2"]

    def asked_of(result: dict[str, Any]) -> dict[str, Any]:
        return dict(result["models"].get("flights", {"versions": {}})["versions"].get("2", {}))

    def read() -> Any:
        result = server.get("/v1/stats/series?model=flights")
        return sum(asked_of(result).get("requests", [])) == counted["requests"] and result

    result = wait_for(read, str(counted), 60)
    asked = asked_of(result)
    for name in ("errors", "client_errors", "rows"):
        assert sum(asked[name]) == counted[name], name
    assert result["batching"] is None
    assert result["at"] == sorted(result["at"])
    assert len(result["at"]) > len(before["at"])
    assert {len(column) for column in asked.values()} == {len(result["at"]), len(result["seconds"])}
    nothing = server.call(f"/v1/stats/series?since={time.time() + 60}")[1]
    assert (nothing["at"], nothing["models"]) == ([], {})
    refused = server.error("/v1/stats/series?since=yesterday")
    assert refused == (400, "since is 'yesterday'; expected seconds since 1970")
