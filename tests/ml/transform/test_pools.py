"""Parts in processes of this machine."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.ml.spark.pools import WorkSummary, local_pool, run_parts


def work(plan: str, part: int) -> str:
    if part == 3 and plan == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    error = "row 7 is wrong" if part == 3 and plan == "wrong" else None
    return json.dumps({"error": error, "uploaded": [{"part": part}]})


def test_results_are_in_the_order_of_the_parts_and_progress_is_reported() -> None:
    reports: list[Any] = []
    with local_pool(2) as pool:
        summaries = run_parts(pool, work, "plan", range(5), WorkSummary, lambda *report: reports.append(report))
    assert [summary.uploaded for summary in summaries] == [[{"part": part}] for part in range(5)]
    assert reports[-1] == (pytest.approx(0.9), "5 of 5 parts are done")


@pytest.mark.parametrize(
    ("plan", "words", "retryable"),
    [("wrong", "row 7 is wrong", False), ("killed", "a process that worked on parts was killed", True)],
)
def test_failed_or_killed_task_ends_the_step(plan: str, words: str, retryable: bool) -> None:
    with pytest.raises(HopsError, match=words) as failure, local_pool(2) as pool:
        run_parts(pool, work, plan, range(5), WorkSummary)
    assert failure.value.retryable is retryable
    assert isinstance(failure.value, BadInput) is not retryable
