"""Asset events with a window as partition key, under a real Airflow."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from real_airflow import RealAirflow
from waiting import wait_for

from demo.airflow_api import AirflowApi

pytestmark = [pytest.mark.runtime, pytest.mark.scheduled(part="campaigns")]  # test_ingest.py has the event
FINISHED = ("success", "failed")


def has_run(api: AirflowApi, dag_id: str) -> bool:
    return any(run["state"] in FINISHED for run in api.runs(dag_id))


def test_dags_are_started_with_the_window_as_partition_key(real_airflow: RealAirflow, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("at,x\n2013-01-05T00:00:00Z,1\n2013-02-01T00:00:00Z,2\n2013-03-01T00:00:00Z,3\n")
    api, window = real_airflow.api, ["2013-01-01T00:00:00+00:00", "2013-02-01T12:30:00+00:00"]
    keys = {"partitions_window": "2013-01-01T00:00:00|2013-02-01T12:30:00", "partitions_month": "2013-01|2013-02-01"}
    for dag_id in ("partitions", *keys):
        api.wait_for_dag(dag_id)
    run_id = api.trigger("partitions", {"table": str(table)})
    for dag_id, key in keys.items():
        wait_for(partial(has_run, api, dag_id), f"{dag_id} has run", 120)
        (run,) = api.runs(dag_id)
        assert (run["state"], run["partition_key"]) == ("success", key)
        assert api.xcom(dag_id, run["dag_run_id"], "see") == [key, window]

    # Without a window there is no key, and no DAG would be started.
    wait_for(lambda: api.run("partitions", run_id)["state"] in FINISHED, "the tasks are over", 120)
    states = {each["task_id"]: each["state"] for each in api.task_instances("partitions", run_id)}
    assert states == {"ingest": "success", "whole": "failed"}
    log = "\n".join(api.log("partitions", run_id, "whole", 1))
    assert "has no window; expected data of an IngestOperator with window_start or window_end" in log


def test_assets_of_other_dags_start_dags_with_their_partition(real_airflow: RealAirflow) -> None:
    """In a backfill, too, as of the DAG of Cosmos in the documentation."""
    days, api = ("2013-01-02", "2013-01-03"), real_airflow.api
    table = real_airflow.home / "dags" / "orders.csv"
    table.write_text("at,x\n2013-01-01T23:59:59Z,0\n2013-01-02T00:00:00Z,1\n2013-01-03T12:00:00Z,2\n2013-01-03,3\n")
    for dag_id in ("orders_models", "orders_training"):
        api.wait_for_dag(dag_id)
    command = [sys.executable, "-m", "airflow", "backfill", "create", "--dag-id", "orders_models"]
    command += ["--from-date", days[0], "--to-date", days[1]]
    environment = real_airflow.airflow_environment(real_airflow.port)
    subprocess.run(command, env=environment, check=True, capture_output=True)

    def finished() -> list[dict[str, Any]]:
        return [run for run in api.runs("orders_training") if run["state"] in FINISHED]

    wait_for(lambda: len(finished()) == len(days), "a run for each day is over", 240)
    rows = {
        run["partition_key"]: api.xcom("orders_training", run["dag_run_id"], "ingest")["rows"]["orders"]["rows_out"]
        for run in finished()
    }
    assert rows == {f"{day}T00:00:00": count for count, day in enumerate(days, 1)}
