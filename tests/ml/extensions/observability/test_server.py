"""A server shows its last hour and its log where flags ask for it."""

from __future__ import annotations

import urllib.parse
from pathlib import Path

import pytest
from server_process import ServerProcess, Start, write_models
from waiting import wait_for

from airflow_hops.extensions.observability.serving.logs import newest_lines
from airflow_hops.testing.server_parts import ServerPartContract


class TestContract(ServerPartContract):
    name = "observability"

    @pytest.fixture
    def arguments(self) -> list[str]:
        return ["--request_series"]


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
