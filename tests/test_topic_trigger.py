"""The trigger of a topic under a real triggerer, which is killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kafka_brokers import Broker
from real_airflow import RealAirflow
from waiting import wait_for

pytestmark = pytest.mark.runtime
NAMES = ("alone", "shared_1", "shared_2")


@pytest.mark.last(1)
def test_topic_starts_dags_of_all_its_assets_and_after_a_killed_triggerer(
    real_airflow: RealAirflow, mock_kafka: Broker
) -> None:
    connection = json.dumps({"conn_type": "kafka", "extra": mock_kafka.config})
    command = [sys.executable, "-m", "airflow", "connections", "add", "kafka_watched", "--conn-json", connection]
    subprocess.run(command, env=real_airflow.airflow_environment(real_airflow.port), check=True, capture_output=True)
    mock_kafka.send("events", [(0, b"before the watch")])
    shutil.copy(Path(__file__).parent / "dags" / "watched_topic.py", real_airflow.home / "dags")
    for name in NAMES:
        real_airflow.api.wait_for_dag(f"watched_{name}")
    time.sleep(20)  # the triggers note the ends

    def seen(name: str) -> list[dict[str, Any]]:
        runs = real_airflow.api.runs(f"watched_{name}")
        done = [run for run in runs if run["state"] == "success"]
        return [each for run in done for each in real_airflow.api.xcom(f"watched_{name}", run["dag_run_id"], "see")]

    def offsets(name: str) -> list[Any]:
        return sorted(payload["offsets"]["0"] for payload in seen(name))

    assert not any(seen(name) for name in NAMES)
    mock_kafka.send("events", [(0, b"new")])
    for name in NAMES:
        wait_for(lambda name=name: offsets(name) == [[1, 2]], f"the run of {name}", 120, 1.0)
    real_airflow.kill("triggerer")
    mock_kafka.send("events", [(0, b"while no triggerer runs")])
    real_airflow.start("triggerer")
    wait_for(lambda: offsets("alone") == [[1, 2], [2, 3]], "the run for the record of the outage", 120, 1.0)
