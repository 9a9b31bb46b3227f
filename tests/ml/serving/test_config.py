"""The functions that write what the server reads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from server_process import runtime_variables

from airflow_hops.core.serving_api import config, traffic_config
from airflow_hops.core.serving_api.config import ConfigError


def test_set_model_changes_only_its_entry_and_returns_the_old_one(tmp_path: Path) -> None:
    file = str(tmp_path / "models.config")
    config.init_config(file)
    config.set_model(file, "flights", "/m/flights", versions=[1], labels={"stable": 1})
    config.set_model(file, "other", "/m/other", versions="all")
    replaced = config.set_model(file, "flights", "/m/flights", versions=[2, 1])
    after = str(config.read_config(file))
    config.restore_model(file, replaced)
    restored = str(config.read_config(file))
    removed = config.remove_model(file, "other").name
    left = len(config.read_config(file).model_config_list.config)
    assert "versions: 1" in after
    assert "versions: 2" in after
    assert 'key: "stable"' in after
    assert "all {" in after
    assert "versions: 2" not in restored
    assert (removed, left) == ("other", 1)


def test_importing_config_and_client_imports_no_tensorflow() -> None:
    modules = "airflow_hops.core.serving_api.client, airflow_hops.core.serving_api.traffic_config"
    program = f"import sys, {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], env=runtime_variables(), capture_output=True, text=True)
    assert "airflow_hops.core.serving_api.client" in done.stdout.split()
    assert {"tensorflow", "pyarrow", "airflow"}.isdisjoint(done.stdout.split())


def test_set_traffic_round_trips_and_returns_the_old_split(tmp_path: Path) -> None:
    file = tmp_path / "traffic.json"
    result = [
        traffic_config.set_traffic(file, "flights", {1: 90, 2: 10}),
        traffic_config.set_traffic(file, "other", {5: 100}),
        traffic_config.set_traffic(file, "flights", {2: 100}),
        traffic_config.read_traffic_config(file),
        traffic_config.set_traffic(file, "flights", None),
    ]
    assert result == [None, None, {1: 90, 2: 10}, {"flights": {2: 100}, "other": {5: 100}}, {2: 100}]
    assert json.loads(file.read_text()) == {"models": {"other": {"5": 100}}}


@pytest.mark.parametrize(
    ("percents", "message"),
    [
        ({1: 50, 2: 40}, "models.flights has percents {1: 50, 2: 40} that sum to 90; expected 100"),
        ({1: 100.0}, "models.flights.1 is 100.0; expected an integer percent from 0 to 100"),
        ({1: 150, 2: -50}, "models.flights.1 is 150; expected an integer percent from 0 to 100"),
        ({0: 100}, "models.flights names version 0; expected a positive integer"),
        ({}, "models.flights has percents {} that sum to 0; expected 100"),
    ],
)
def test_wrong_split_is_refused_and_nothing_is_written(tmp_path: Path, percents: dict[int, Any], message: str) -> None:
    file = tmp_path / "traffic.json"
    with pytest.raises(ConfigError) as refused:
        traffic_config.set_traffic(file, "flights", percents)
    assert str(refused.value) == f"{file}: {message}"
    assert not file.exists()


def test_errors_name_file_field_value_and_expectation(tmp_path: Path) -> None:
    file = tmp_path / "a-file"
    set_model = partial(config.set_model, file)
    parse = partial(traffic_config.parse_traffic, source=str(file))
    for call, message in (
        (partial(set_model, "m", "relative"), "Expected model m to have an absolute path or URI"),
        (partial(set_model, "m", "/m", versions=[]), "versions is []; expected one or more positive integers"),
        (partial(set_model, "m", "/m", versions=[0]), "model m: versions is [0]; expected one or more"),
        (partial(set_model, "m", "/m", versions="newest"), "is 'newest'; expected 'all', 'latest' or numbers"),
        (partial(set_model, "", "/m"), "field 'name' of the model with base_path '/m' is empty"),
        (partial(config.read_config, file), "no such file"),
        (partial(parse, "{"), "is not JSON"),
        (partial(parse, "[]"), 'expected {"models": {MODEL: {VERSION: PERCENT}}}'),
        (partial(parse, '{"models": {"m": 1}}'), "models.m is 1; expected an object of version to percent"),
    ):
        with pytest.raises(ConfigError) as refused:
            call()
        assert str(refused.value).startswith(f"{file}: ")
        assert message in str(refused.value)
        assert not file.exists()


def write_twenty(writer: str, file: Path, traffic_file: Path) -> None:
    for number in range(20):
        name = f"{writer}-{number}"
        config.set_model(file, name, f"/m/{name}")
        traffic_config.set_traffic(traffic_file, name, {1: 100})


@pytest.mark.slow
def test_concurrent_writers_lose_no_change(tmp_path: Path, own_process: Callable[..., None]) -> None:
    file, traffic_file = tmp_path / "models.config", tmp_path / "traffic.json"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(partial(own_process, write_twenty, file=file, traffic_file=traffic_file), "abcd"))
    assert file.read_text().count("base_path") == 80
    assert len(json.loads(traffic_file.read_text())["models"]) == 80
    assert not list(tmp_path.glob("*.tmp")) + list(tmp_path.glob(".*.tmp"))
