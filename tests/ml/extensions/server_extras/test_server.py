"""A server shows its last hour and its log where flags ask for it."""

from __future__ import annotations

import json
import time
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, Start, write_models
from waiting import wait_for

from airflow_hops.extensions.server_extras.serving.logs import newest_lines
from airflow_hops.extensions.server_extras.serving.series import STEPS, RequestSeries, add_routes
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.monitoring.batches import BatchCounts
from airflow_hops.serving.monitoring.stats import RequestStats
from airflow_hops.serving.request_kind import RequestKind
from airflow_hops.serving.routes import HttpRequest, Routes


def test_server_shows_steps_and_log(start_server: Start, saved_models: Path, tmp_path: Path) -> None:
    config = write_models(tmp_path, flights=saved_models / "flights")
    server = start_server(model_config_file=config, request_series=True, log_file=tmp_path / "logs" / "server.log")
    (line,) = server.get("/v1/logs?model=flights&version=3")["lines"]
    assert line["message"].startswith("model flights version 3 loaded in ")
    assert (line["model"], line["version"], line["level"]) == ("flights", 3, "INFO")
    everything = server.get("/v1/logs?lines=1000")["lines"]
    assert [each for each in everything if each["version"] == 3] == [line]
    assert server.get("/v1/logs?lines=1")["lines"] == everything[-1:]
    since = urllib.parse.quote(line["at"])
    assert line not in server.get(f"/v1/logs?since={since}&lines=1000")["lines"][1:]
    assert server.get("/v1/logs?model=trains") == {"lines": []}
    for wrong in ("logs?since=yesterday", "logs?level=LOUD", "logs?lines=-1", "stats/series?since=x"):
        assert server.error(f"/v1/{wrong}")[0] == 400
    series = wait_for(lambda: (answer := server.get("/v1/stats/series"))["at"] and answer, "a step", 60)
    assert series["batching"] is None
    assert len(series["at"]) == len(series["seconds"])


def test_server_without_the_flags_has_no_such_routes(shared_server: ServerProcess) -> None:
    for route in ("logs", "stats/series"):
        assert shared_server.error(f"/v1/{route}") == (400, f"Malformed request: GET /v1/{route}")


def test_records_of_many_lines_and_unknown_levels_are_read(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    assert list(newest_lines(log)) == []
    log.write_text(
        "a line that a rotation has cut\n"
        "2026-11-28 10:00:00,001 INFO of.another: version 2 of servable flights is still being written\n"
        "2026-11-28 10:00:01,002 Level 25 of.another: plain\n"
        "2026-11-28 10:00:02,003 ERROR airflow_hops.serving: model flights version 3 failed\nTraceback:\n  ValueError\n"
    )
    assert [(line.level, line.model, line.version, line.message.count("\n")) for line in newest_lines(log)] == [
        ("ERROR", "flights", 3, 2),
        ("Level 25", "", 0, 0),
        ("INFO", "flights", 2, 0),
    ]


def test_step_counts_only_its_requests_and_one_hour_is_retained() -> None:
    stats, batches = RequestStats(), BatchCounts()
    rest = RequestKind("flights", 2, "Predict", "REST")
    stats.record(rest, 5, 0.5, 0.4)
    series, routes = RequestSeries(stats, batches.totals), Routes()
    add_routes(routes, series)

    def show(**query: object) -> Any:
        _, answer, match = routes.find("GET", "/v1/stats/series")
        texts = {name: str(value) for name, value in query.items()}
        return json.loads(answer(HttpRequest("GET", "/v1/stats/series", query=texts), match).body)

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
