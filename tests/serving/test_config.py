"""The functions that write what the server reads."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.runtime


def test_set_model_changes_its_own_entry_alone_and_returns_what_it_replaced(
    in_runtime: Callable[..., Any], tmp_path: Path
) -> None:
    result = in_runtime(
        """
        from airflow_hops.serving_api import config
        config.init_config(file)
        config.set_model(file, "flights", "/m/flights", versions=[1], labels={"stable": 1})
        config.set_model(file, "other", "/m/other", versions="all")
        replaced = config.set_model(file, "flights", "/m/flights", versions=[2, 1])
        after = str(config.read_config(file))
        config.restore_model(file, replaced)
        restored = str(config.read_config(file))
        removed = config.remove_model(file, "other").name
        result = [after, restored, removed, len(config.read_config(file).model_config_list.config)]
        """,
        file=tmp_path / "models.config",
    )
    after, restored, removed, left = result
    assert "versions: 1" in after
    assert "versions: 2" in after
    assert 'key: "stable"' in after
    assert "all {" in after
    assert "versions: 2" not in restored
    assert (removed, left) == ("other", 1)


def test_importing_config_and_client_imports_no_tensorflow(in_runtime: Callable[..., Any]) -> None:
    assert (
        in_runtime(
            """
        import airflow_hops.serving_api.client, airflow_hops.serving_api.config
        result = [name for name in ("tensorflow", "pyarrow", "airflow") if name in sys.modules]
        """
        )
        == []
    )


def test_set_traffic_round_trips_and_returns_what_it_replaced(in_runtime: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "traffic.json"
    result = in_runtime(
        """
        from airflow_hops.serving_api import config
        result = [
            config.set_traffic(file, "flights", {1: 90, 2: 10}),
            config.set_traffic(file, "other", {5: 100}),
            config.set_traffic(file, "flights", {2: 100}),
            {name: sorted(split.items()) for name, split in config.read_traffic(file).items()},
            config.set_traffic(file, "flights", None),
        ]
        """,
        file=file,
    )
    assert result == [None, None, {"1": 90, "2": 10}, {"flights": [[2, 100]], "other": [[5, 100]]}, {"2": 100}]
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
def test_wrong_split_is_refused_and_nothing_is_written(
    in_runtime: Callable[..., Any], tmp_path: Path, percents: dict[int, Any], message: str
) -> None:
    file = tmp_path / "traffic.json"
    result = in_runtime(
        """
        from airflow_hops.serving_api import config
        config.set_traffic(file, "flights", dict(percents))
        """,
        file=file,
        percents=list(percents.items()),
    )
    assert result == {"error": f"ConfigError: {file}: {message}"}
    assert not file.exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("set_model(file, 'm', 'relative')", "Expected model m to have an absolute path or URI"),
        ("set_model(file, 'm', '/m', versions=[])", "model m: versions is []; expected one or more positive integers"),
        ("set_model(file, 'm', '/m', versions=[0])", "model m: versions is [0]; expected one or more"),
        ("set_model(file, 'm', '/m', versions='newest')", "versions is 'newest'; expected 'all', 'latest' or numbers"),
        ("set_model(file, '', '/m')", "field 'name' of the model with base_path '/m' is empty"),
        ("read_config(file)", "no such file"),
        ("parse_traffic('{', file)", "is not JSON"),
        ("parse_traffic('[]', file)", 'expected {"models": {MODEL: {VERSION: PERCENT}}, "shadow"'),
        ('parse_traffic(\'{"models": {"m": 1}}\', file)', "models.m is 1; expected an object of version to percent"),
    ],
)
def test_errors_name_file_field_value_and_what_was_expected(
    in_runtime: Callable[..., Any], tmp_path: Path, call: str, message: str
) -> None:
    file = tmp_path / "a-file"
    result = in_runtime(f"from airflow_hops.serving_api.config import *\n{call}", file=file)
    assert result["error"].startswith(f"ConfigError: {file}: ")
    assert message in result["error"]
    assert not file.exists()


def test_writers_at_once_never_lose_each_others_change(runtime_python: Path, tmp_path: Path) -> None:
    file, traffic_file = tmp_path / "models.config", tmp_path / "traffic.json"
    program = (
        "import sys; from airflow_hops.serving_api import config\n"
        "for n in range(20):\n"
        "    name = f'{sys.argv[1]}-{n}'\n"
        "    config.set_model(sys.argv[2], name, '/m/' + name)\n"
        "    config.set_traffic(sys.argv[3], name, {1: 100})\n"
    )
    repository = Path(__file__).resolve().parents[2]
    writers = [
        subprocess.Popen([str(runtime_python), "-c", program, writer, str(file), str(traffic_file)], cwd=repository)
        for writer in "abcd"
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0, 0]
    assert file.read_text().count("base_path") == 80
    assert len(json.loads(traffic_file.read_text())["models"]) == 80
    assert not list(tmp_path.glob("*.tmp")) + list(tmp_path.glob(".*.tmp"))
