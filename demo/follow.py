"""Follows a DAG run in the terminal, task by task."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from demo.airflow_api import FINISHED, AirflowApi, seconds_of

POLL_S = 1.0
ASKED_S = 3.0
"""How long a task is seen to wait before it is answered: Airflow kills a process that has asked, and is still at it"""
_ENDED = ("success", "failed", "skipped", "upstream_failed", "removed")
_MARKS = {"success": "[green]✓[/green]", "skipped": "[yellow]–[/yellow]", "failed": "[red]✗[/red]"}
_PROGRESS = re.compile(r"^\s*\d+% ")


class RunFailed(Exception):
    """A DAG run failed; the message carries the failing task's log."""


def follow(
    api: AirflowApi,
    dag_id: str,
    run_id: str,
    console: Console,
    on_task: Callable[[str, str], None] = lambda task_id, state: None,
    on_question: Callable[[str], None] = lambda task_id: None,
) -> dict[str, Any]:
    """Waits for a run, telling of each task as it ends, and of the progress of the one that runs.

    Args:
        api: Airflow.
        dag_id: The DAG.
        run_id: The run.
        console: Where to tell.
        on_task: Called once with task id and state for each task that has ended.
        on_question: Called with the id of a task that awaits a person's answer, once in each of its tries.

    Returns:
        By task id: ``state``, ``seconds``, and ``value``, what the task returned.

    Raises:
        RunFailed: the run failed.
    """
    tasks: dict[str, Any] = {}
    waiting_since: dict[tuple[str, int], float] = {}
    with console.status(f"{dag_id} starts") as status:
        while True:
            instances = api.task_instances(dag_id, run_id)
            for instance in sorted(instances, key=lambda i: i["end_date"] or "~"):
                task_id, state = instance["task_id"], instance["state"]
                if state == "awaiting_input":
                    question = (task_id, instance["try_number"])
                    if time.monotonic() - waiting_since.setdefault(question, time.monotonic()) > ASKED_S:
                        waiting_since[question] = math.inf
                        on_question(task_id)
                if task_id in tasks or state not in _ENDED:
                    continue
                value = api.xcom(dag_id, run_id, task_id) if state == "success" else None
                tasks[task_id] = {"state": state, "seconds": seconds_of(instance), "value": value}
                mark = _MARKS.get(state, "[dim]·[/dim]")
                why = value if value is not None else _reason(api, dag_id, run_id, instance)
                line = f"  {mark} {task_id:<20} {seconds_of(instance):6.1f} s  {describe(why)}"
                console.print(line, soft_wrap=True)
                on_task(task_id, state)
            if all(instance["state"] in _ENDED for instance in instances):
                ended = api.run(dag_id, run_id)["state"]
                if ended in FINISHED:
                    break
            running = [i for i in instances if i["state"] == "running"]
            if running and console.is_terminal:
                status.update(" · ".join(_doing(api, dag_id, run_id, instance) for instance in running))
            time.sleep(POLL_S)
    failed = [i for i in instances if i["state"] == "failed"]
    if failed or ended == "failed":
        logs = "\n".join(
            f"--- {i['task_id']} (try {i['try_number']}) of {run_id}\n"
            + "\n".join(api.log(dag_id, run_id, i["task_id"], i["try_number"])[-40:])
            for i in failed
        )
        raise RunFailed(f"{dag_id}, run {run_id}, failed.\n{logs}")
    return tasks


def describe(value: Any) -> str:
    """Describes a task's return value in a few words."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping) or "kind" not in value:
        return ""
    parts = ["cached"] if value.get("cached") else []
    for name, counts in value.get("rows", {}).items():
        rejected = sum(counts["rejected"].values())
        out = f"{name} {counts['rows_out']:,}"
        parts.append(f"{out} (of {counts['rows_in']:,})" if rejected else out)
    parts += [
        f"{name} {number:,.0f}" if float(number).is_integer() else f"{name} {number:,.4g}"
        for name, number in list(value.get("metrics", {}).items())[:6]
    ]
    properties = value.get("properties", {})
    for name in ("blessed", "verdict", "version", "mode", "decision"):
        if properties.get(name) is not None:
            parts.append(f"{name} {properties[name]}")
    return ", ".join(parts)


def _doing(api: AirflowApi, dag_id: str, run_id: str, instance: Mapping[str, Any]) -> str:
    task_id = instance["task_id"]
    lines = api.log(dag_id, run_id, task_id, instance["try_number"])
    progress = next((line.strip() for line in reversed(lines) if _PROGRESS.match(line)), "")
    return f"{task_id} {progress}"


def _reason(api: AirflowApi, dag_id: str, run_id: str, instance: Mapping[str, Any]) -> str:
    """The last telling line of the log of a task that did not succeed."""
    if instance["state"] == "upstream_failed" or not instance["try_number"]:
        return ""
    for line in reversed(api.log(dag_id, run_id, instance["task_id"], instance["try_number"])):
        if "skip" in line.lower() or "Error" in line or "Exception" in line or "step " in line:
            return line.splitlines()[0][:200]
    return ""
