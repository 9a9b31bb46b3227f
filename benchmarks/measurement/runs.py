"""Runs a DAG, and splits the seconds of its run into Airflow's overhead, start-up and work, stage by stage."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import Console

from demo.airflow_api import FINISHED, AirflowApi
from demo.follow import follow

_POLL_S = 0.25
RUN_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class StageSeconds:
    """Seconds of one stage.

    Attributes:
        overhead: Airflow's: from the end of the stage before (for the first, from the trigger) to this stage's end,
            less what the step itself took. The time in the scheduler's queue, the task's process and its calls to the
            API server are in it.
        start_up: From the step's launch to its first line of work, and from its last to its process's end: interpreter,
            imports, the JVM.
        work: The step's own.
        cached: Whether an earlier run's artifact was taken.
        queueing: Of the overhead, until the scheduler has queued the task.
        starting: Of the overhead, from there until the task's process begins. The rest is that process's.
    """

    overhead: float
    start_up: float
    work: float
    cached: bool = False
    queueing: float = 0.0
    starting: float = 0.0

    @property
    def total(self) -> float:
        """All three."""
        return self.overhead + self.start_up + self.work


@dataclass(frozen=True)
class Run:
    """A DAG run.

    Attributes:
        total: Wall-clock seconds from just before the trigger to the run's end.
        stages: By task id in the order in which they ended; ``run's end``: until Airflow sees that all is done.
        values: What the tasks returned.
    """

    total: float
    stages: Mapping[str, StageSeconds]
    values: Mapping[str, Any]


def run_dag(
    api: AirflowApi,
    dag_id: str,
    conf: Mapping[str, Any],
    *,
    expect_cached: bool = False,
    timeout_s: float = RUN_TIMEOUT_S,
) -> Run:
    """Triggers a DAG and waits for its end.

    Args:
        api: Airflow.
        dag_id: The DAG, a chain of tasks.
        conf: The run's parameters.
        expect_cached: Whether every step with an artifact of its own must come from the cache, but for deployments.
        timeout_s: Seconds after which the run should have ended.

    Raises:
        demo.follow.RunFailed: the run failed; the message carries the failing task's log.
        TimeoutError: the run does not end.
        RuntimeError: a step was not cached that should have been.
    """
    triggered = time.time()
    run_id = api.trigger(dag_id, conf)
    while (run := api.run(dag_id, run_id))["state"] not in FINISHED:
        if time.time() - triggered > timeout_s:
            raise TimeoutError(f"run {run_id} of {dag_id} has not ended after {timeout_s:.0f} s")
        time.sleep(_POLL_S)
    if run["state"] == "failed":
        follow(api, dag_id, run_id, Console(stderr=True))  # raises, with the failing task's log
    instances = sorted(api.task_instances(dag_id, run_id), key=lambda instance: _seconds(instance["end_date"]))
    values = {i["task_id"]: api.xcom(dag_id, run_id, i["task_id"]) for i in instances}
    stages: dict[str, StageSeconds] = {}
    previous_end = triggered
    for instance in instances:
        task_id, end = instance["task_id"], _seconds(instance["end_date"])
        value = values[task_id] if isinstance(values[task_id], Mapping) else {}
        seconds = value.get("seconds", {})
        start_up, work = seconds.get("start_up", 0.0), seconds.get("work", 0.0)
        start = _seconds(instance["start_date"] or instance["end_date"])
        queued = _seconds(instance["queued_when"]) if instance["queued_when"] else start  # a skipped one was not
        stages[task_id] = StageSeconds(
            end - previous_end - start_up - work,
            start_up,
            work,
            bool(value.get("cached")),
            queued - previous_end,
            start - queued,
        )
        previous_end = end
    ended = _seconds(run["end_date"])
    stages["run's end"] = StageSeconds(ended - previous_end, 0.0, 0.0, queueing=ended - previous_end)
    if expect_cached:
        worked = [name for name, stage in stages.items() if not stage.cached and name not in ("deploy", "run's end")]
        if worked:
            raise RuntimeError(f"run {run_id} of {dag_id}: not from the cache: {', '.join(worked)}")
    return Run(ended - triggered, stages, values)


def _seconds(date: str) -> float:
    return datetime.fromisoformat(date.replace("Z", "+00:00")).timestamp()
