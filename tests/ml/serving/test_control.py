"""Config, traffic and log at run time; who may change what is tested in ``test_access.py``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from server_process import ServerProcess, Start, versions, write_models

from airflow_hops.core.serving_api.answers import ModelServerError, TrafficSplit
from airflow_hops.core.serving_api.client import ModelServerClient
from airflow_hops.core.serving_api.config import parse_config, read_config

TRAFFIC = "/v1/models/flights:traffic"
ROW = {"instances": [{"carrier": "AA", "distance": [733.0], "hour": 5}]}


def answered_by(server: ServerProcess) -> dict[int, int]:
    """Which version answered how many of a hundred requests in a row."""
    counts: dict[int, int] = {}
    with ModelServerClient(server.address) as client:
        inputs = {"carrier": ["AA"], "distance": [[733.0]], "hour": [5]}
        for _ in range(100):
            version = client.predict("flights", inputs).version
            counts[version] = counts.get(version, 0) + 1
    return counts


@pytest.fixture
def files(tmp_path: Path, saved_models: Path) -> dict[str, object]:
    """Flags of a server of flights, versions 1 and 2, and of the files that control it."""
    config = write_models(tmp_path, flights=(saved_models / "flights", versions(1, 2)))
    return {
        "model_config_file": config,
        "traffic_config_file": tmp_path / "traffic.json",
        "log_file": tmp_path / "logs" / "server.log",
    }


def test_traffic_set_by_rest_and_grpc_survives_restart(
    start_server: Start, files: dict[str, object], tmp_path: Path
) -> None:
    server = start_server(**files)
    latest = {"model": "flights", "percents": None, "in_effect": {"1": 0.0, "2": 100.0}, "persisted": True}
    assert server.call(TRAFFIC) == (200, latest)
    body = {"percents": {"1": 90, "2": 10}}
    split = {**latest, **body, "in_effect": {"1": 90.0, "2": 10.0}}
    assert server.call(TRAFFIC, body) == (200, split)
    assert answered_by(server) == {1: 90, 2: 10}
    assert json.loads((tmp_path / "traffic.json").read_text()) == {"models": {"flights": {"1": 90, "2": 10}}}

    for wrong, code, message in (
        ({"percents": {"1": 90, "3": 10}}, 404, "Could not find version 3 of model flights"),
        ({"percents": {"1": 90, "2": 20}}, 400, "that sum to 110; expected 100"),
        ({"percents": [100]}, 400, "percents is of type list"),
        ({"percent": {"1": 100}}, 400, "is not of its form"),
        (b"{", 400, "JSON Parse error"),
    ):
        status, error = server.error(TRAFFIC, wrong)
        assert (status, message in error) == (code, True), (wrong, error)
    unknown = server.error("/v1/models/trains:traffic", body)
    assert unknown == (404, "Could not find any versions of model trains")

    with ModelServerClient(server.address) as client:
        after = client.set_traffic("flights", {1: 25, 2: 75})
        assert after == client.traffic("flights") == TrafficSplit({1: 25, 2: 75}, {1: 25, 2: 75}, persisted=True)
        with pytest.raises(ModelServerError, match="Could not find version 9 of model flights"):
            client.set_traffic("flights", {9: 100})
    server.process.kill()
    server.process.wait()

    again = start_server(**files)
    assert again.call(TRAFFIC)[1]["in_effect"] == {"1": 25.0, "2": 75.0}
    assert answered_by(again) == {1: 25, 2: 75}
    assert again.call(TRAFFIC, {"percents": None})[1]["in_effect"] == {"1": 0.0, "2": 100.0}
    assert answered_by(again) == {2: 100}


def test_current_config_is_shown_and_replaced_by_authorized_users(
    start_server: Start, files: dict[str, object], saved_models: Path, tmp_path: Path
) -> None:
    server = start_server(**{**files, "traffic_config_file": None})
    status, shown = server.call("/v1/config")
    assert (status, shown["source"]) == (200, str(tmp_path / "models.config"))
    assert parse_config(shown["text"], "shown") == read_config(tmp_path / "models.config")
    model = shown["config"]["model_config_list"]["config"][0]
    assert model["model_version_policy"] == {"specific": {"versions": ["1", "2"]}}

    (tmp_path / "other").mkdir()
    config = read_config(write_models(tmp_path / "other", flights=(saved_models / "flights", versions(2, 3))))
    with ModelServerClient(server.address, timeout_s=60) as client:
        client.reload_config(config)
        server.wait_for_versions("flights", {3: "AVAILABLE", 2: "AVAILABLE", 1: "END"})
        with pytest.raises(ModelServerError, match="version 1 of model flights, which is not currently available"):
            client.set_traffic("flights", {1: 10, 2: 90})
        # Without a traffic file the split is in memory alone, and the answer says so.
        assert client.set_traffic("flights", {1: 0, 2: 90, 3: 10}).persisted is False
    assert answered_by(server) == {2: 90, 3: 10}
    after = server.call("/v1/config")[1]
    assert after["source"] == "HandleReloadConfigRequest"
    assert after["applied_at"] > shown["applied_at"]
    assert parse_config(after["text"], "shown") == config
    assert "model flights version 3 loaded" in (tmp_path / "logs" / "server.log").read_text()
