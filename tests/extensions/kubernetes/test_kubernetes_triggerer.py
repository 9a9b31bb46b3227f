"""Pods of an Airflow with one worker slot, whose triggerer is killed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from real_airflow import RealAirflow
from waiting import wait_for

from demo.services import Stack
from tests.extensions.kubernetes.kubernetes_pods import Pods

pytestmark = [pytest.mark.runtime, pytest.mark.scheduled(part="kubernetes")]

DAGS = """
from airflow.sdk import DAG, task

with DAG("pods", schedule=None, render_template_as_native_obj=True):

    @task.hops(deferrable=True)
    def count(end):
        import time
        from pathlib import Path

        number = 0
        while not Path(end).exists():
            print(f"line {number}", flush=True)
            number += 1
            time.sleep(0.5)
        return number

    count("{{ dag_run.conf['end'] }}")

with DAG("short", schedule=None):
    task(lambda: "done", task_id="short")()
"""


@dataclass
class OneSlot(RealAirflow):
    """An Airflow with one worker slot, whose steps are pods.

    Attributes:
        settings: More of its environment.
    """

    settings: dict[str, str] = field(default_factory=dict)

    def airflow_environment(self, port: int) -> dict[str, str]:
        self.port = port
        return {**Stack.airflow_environment(self, port), "AIRFLOW__CORE__PARALLELISM": "1", **self.settings}

    def wait_for_state(self, state: str, dag_id: str, run_id: str, try_number: int = 1) -> None:
        """Waits until the task of a run is in a state, in one of its tries."""

        def reached() -> bool:
            (task,) = self.api.task_instances(dag_id, run_id)
            if task["state"] == "failed" != state:
                raise AssertionError("\n".join(self.api.log(dag_id, run_id, task["task_id"], task["try_number"])))
            return bool(task["state"] == state and task["try_number"] == try_number)

        wait_for(reached, lambda: str(self.api.task_instances(dag_id, run_id)), 120, 1)

    def lines(self, run_id: str, try_number: int = 1) -> list[int]:
        """Returns the numbers of the lines in the log of a try."""
        log = "\n".join(self.api.log("pods", run_id, "count", try_number))
        return [int(number) for number in re.findall(r"\bline (\d+)", log)]

    def wait_for_lines(self, run_id: str, try_number: int = 1) -> None:
        """Waits until the triggerer follows the pod of a try: Airflow asks no other trigger to delete its pod."""
        wait_for(
            lambda: len(self.lines(run_id, try_number)) > 3,
            lambda: str(self.api.log("pods", run_id, "count", try_number)),
            60,
            1,
        )


@pytest.fixture
def airflow(pods: Pods, runtime: Path, tmp_path: Path) -> Iterator[OneSlot]:
    home = tmp_path / "airflow-home"
    for folder in ("logs", "dags", "tmp"):
        (home / folder).mkdir(parents=True)
    (home / "dags" / "pods.py").write_text(DAGS)
    extra = {"store": str(tmp_path / "store"), "runtime": str(runtime), "launcher": "kubernetes"}
    kubernetes = {"kube_config_path": str(pods.cluster.kubeconfig), "namespace": pods.namespace}
    settings = {
        "AIRFLOW_CONN_HOPS_DEFAULT": json.dumps(
            {"conn_type": "hops", "extra": {**extra, "launcher_options": pods.options}}
        ),
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps({"conn_type": "kubernetes", "extra": kubernetes}),
        "AIRFLOW__HOPS__ORPHAN_TIMEOUT": "120",
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "15",
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        "PYTHONPATH": ":".join(path for path in sys.path if path),
    }
    with OneSlot(home, runtime, home / "dags", settings=settings) as airflow:
        service, airflow.api = airflow.launch_airflow()
        airflow.wait_for_airflow(service, airflow.api)
        for dag_id in ("pods", "short"):
            airflow.api.wait_for_dag(dag_id)
        yield airflow


@pytest.mark.timeout(1500)
def test_slot_is_free_while_a_pod_runs(airflow: OneSlot, pods: Pods, tmp_path: Path) -> None:
    api, end = airflow.api, tmp_path / "store" / "end"
    run = api.trigger("pods", {"end": str(end)})
    airflow.wait_for_state("deferred", "pods", run)
    airflow.wait_for_state("success", "short", api.trigger("short"))
    airflow.wait_for_lines(run)
    airflow.wait_for_state("deferred", "pods", run)

    airflow.kill_and_start("triggerer")
    last_line = max(airflow.lines(run))
    wait_for(lambda: max(airflow.lines(run)) > last_line + 20, lambda: str(airflow.lines(run)), 120, 1)
    end.write_text("now")
    airflow.wait_for_state("success", "pods", run)
    assert sorted(set(airflow.lines(run))) == list(range(api.xcom("pods", run, "count")))
    pods.wait_until_gone()

    end.unlink()
    run = api.trigger("pods", {"end": str(end)})
    airflow.wait_for_state("deferred", "pods", run)
    airflow.wait_for_lines(run)
    body: dict[str, Any] = {"dry_run": False, "dag_run_id": run, "task_ids": ["count"], "only_failed": False}
    api._request("POST", "/dags/pods/clearTaskInstances", json=body)
    airflow.wait_for_state("deferred", "pods", run, try_number=2)
    airflow.wait_for_lines(run, try_number=2)
    api._request("PATCH", f"/dags/pods/dagRuns/{run}/taskInstances/count", json={"new_state": "failed"})
    pods.wait_until_gone()
