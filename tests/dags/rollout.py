"""Rollouts of the deployment in the run's configuration: one waits in the triggerer and asks, one in its worker."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_hops.operators import RolloutOperator


def note_process(context: Any) -> None:
    """Leaves the id of the task's process for the test that kills it."""
    with Path(context["dag_run"].conf["pids"]).open("a") as file:
        file.write(f"{os.getpid()}\n")


for name, arguments in {
    "rollout_deferred": {"deferrable": True, "approval": True, "bake_time": 1.0},
    "rollout_waiting": {"deferrable": False},
}.items():
    with DAG(name, schedule=None, render_template_as_native_obj=True):
        RolloutOperator(
            task_id="rollout",
            deployment="{{ dag_run.conf['deployment'] }}",
            steps=[50, 100],
            min_requests=20,
            retries=3,
            retry_delay=timedelta(0),
            on_execute_callback=note_process,
            **arguments,
        )
