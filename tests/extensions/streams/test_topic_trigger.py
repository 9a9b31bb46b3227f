"""The trigger of a topic under a real triggerer, which is killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from real_airflow import RealAirflow
from waiting import wait_for

from tests.extensions.streams.kafka_brokers import Broker

pytestmark = [pytest.mark.runtime, pytest.mark.scheduled(part="clusters")]
NAMES = ("alone", "shared_1", "shared_2")


@pytest.mark.last(2)
def test_topic_starts_dags_of_all_assets_also_after_triggerer_kill(
    real_airflow: RealAirflow, mock_kafka: Broker
) -> None:
    connection = json.dumps({"conn_type": "kafka", "extra": mock_kafka.config})
    command = [sys.executable, "-m", "airflow", "connections", "add", "kafka_watched", "--conn-json", connection]
    subprocess.run(command, env=real_airflow.airflow_environment(real_airflow.port), check=True, capture_output=True)
    end = 1
    mock_kafka.send("events", [(0, b"before the watch")])
    shutil.copy(Path(__file__).parent / "dags" / "watched_topic.py", real_airflow.home / "dags")
    for name in NAMES:
        real_airflow.api.wait_for_dag(f"watched_{name}")

    def offsets(name: str) -> list[list[int]]:
        runs = real_airflow.api.runs(f"watched_{name}")
        done = [run for run in runs if run["state"] == "success"]
        events = [each for run in done for each in real_airflow.api.xcom(f"watched_{name}", run["dag_run_id"], "see")]
        return sorted(event["offsets"]["0"] for event in events)

    def each_has_run() -> bool:  # only records after a trigger's first poll fire it
        nonlocal end
        mock_kafka.send("events", [(0, b"new")])
        end += 1
        return all(map(offsets, NAMES))

    def alone_has_seen_all() -> bool:
        ranges = offsets("alone")
        assert ranges[0][0] > 0 and all(one[1] == other[0] for one, other in pairwise(ranges)), ranges
        return ranges[-1][1] == end

    wait_for(each_has_run, "a run for each asset", 240, 5.0)
    wait_for(alone_has_seen_all, "runs for all records", 120, 1.0)
    real_airflow.kill("triggerer")
    mock_kafka.send("events", [(0, b"while no triggerer runs")])
    end += 1
    real_airflow.start("triggerer")
    wait_for(alone_has_seen_all, "the run for the record of the outage", 120, 1.0)
    real_airflow.stop()  # idle, it would take a sixth of a core until the last test of this worker
