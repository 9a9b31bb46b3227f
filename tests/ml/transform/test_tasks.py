"""Tasks in processes of this machine."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.ml.spark.tasks import TaskSummary, local_pool, run_tasks


def work(plan: str, task: int) -> str:
    if task == 3 and plan == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    error = "row 7 is wrong" if task == 3 and plan == "wrong" else None
    return json.dumps({"error": error, "uploaded": [{"task": task}]})


def test_results_are_in_the_order_of_the_tasks_and_progress_is_reported() -> None:
    reports: list[Any] = []
    with local_pool(2) as pool:
        summaries = run_tasks(pool, work, "plan", range(5), TaskSummary, lambda *report: reports.append(report))
    assert [summary.uploaded for summary in summaries] == [[{"task": task}] for task in range(5)]
    assert reports[-1] == (pytest.approx(0.9), "5 of 5 tasks are done")


@pytest.mark.parametrize(
    ("plan", "words", "retryable"),
    [("wrong", "row 7 is wrong", False), ("killed", "a process of this step was killed", True)],
)
def test_a_task_that_fails_or_is_killed_ends_the_step(plan: str, words: str, retryable: bool) -> None:
    with pytest.raises(HopsError, match=words) as failure, local_pool(2) as pool:
        run_tasks(pool, work, plan, range(5), TaskSummary)
    assert failure.value.retryable is retryable
    assert isinstance(failure.value, BadInput) is not retryable
