"""Each captured file is compared, and only once unless a run is killed, whatever happens to the runs of a monitor."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_hops.core.capture_layout import name_time
from airflow_hops.core.errors import BadInput
from airflow_hops.ml.skew.plan import CapturedWindow, one_run, window_of_run
from tests.ml.taken_histories import Runs

HOURS = 8
START = datetime(2026, 11, 1, tzinfo=UTC)


@dataclass
class Comparisons(Runs):
    """Runs of a monitor, one for each hour, which compare the names of captured files.

    Attributes:
        names: Names of all files.
        uncommitted: Names that runs have planned to compare, by hour, until they commit.
        left: Names that a run planned, and left to a later one since it was killed.
    """

    make_context: Any
    task_id: str
    names: list[str] = field(default_factory=list)
    uncommitted: dict[int, set[str]] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)

    def context(self, hour: int) -> Any:
        return self.make_context(run_id=f"run-{hour}", task_id=self.task_id)

    def plan(self, hour: int) -> tuple[int, CapturedWindow]:
        window = window_of_run(self.context(hour), "m", list(self.names))
        others = (names for other, names in self.uncommitted.items() if other != hour)
        self.left |= set(window.names) & set().union(*others)
        self.uncommitted[hour] = set(window.names)
        return hour, window

    def read(self, hour: int, plan: tuple[int, CapturedWindow]) -> list[str]:
        return list(plan[1].names)

    def commit(self, plan: tuple[int, CapturedWindow]) -> None:
        hour, window = plan
        window.commit()
        self.uncommitted.pop(hour)

    def run(self, hour: int, ends_before: str = "") -> None:
        with one_run(self.context(hour)):
            super().run(hour, ends_before)

    def run_both(self, first: int, second: int, rng: random.Random) -> None:
        """Runs two, of which one waits for the other."""
        for hour in rng.sample([first, second], 2):
            self.run(hour)


def simulate(seed: int, make_context: Any) -> Counter[str]:
    rng, events, sent = random.Random(seed), Counter[str](), 0
    runs = Comparisons(make_context, f"watch-{seed}")
    for _ in runs.history(rng, HOURS, HOURS - 1, events):
        for _ in range(rng.choice([0, 1, 1, 3])):
            sent += 1
            runs.names.append(f"{name_time(START + timedelta(seconds=sent))}-v1-{rng.randrange(9)}.parquet")
    counts = runs.counts()
    assert counts.keys() == set(runs.names), f"seed {seed}"
    assert {name for name, times in counts.items() if times > 1} <= runs.left, f"seed {seed}"
    return events


def test_window_that_is_not_remembered_is_refused(make_context: Any) -> None:
    contexts = [make_context(kind="skew", run_id=f"run-{number}") for number in range(102)]
    for number, context in enumerate(contexts):
        window = window_of_run(context, "m", [f"{each:03}.parquet" for each in range(number + 1)])
        assert window.names == [f"{number:03}.parquet"]
        with context.output() as writer:
            writer.commit()
        window.commit()
    names = [f"{number:03}.parquet" for number in range(103)]
    assert window_of_run(contexts[5], "m", names).names == ["005.parquet"]
    with pytest.raises(BadInput, match="run 'run-0': the captured files that it has compared are not remembered after"):
        window_of_run(contexts[0], "m", names)
    assert window_of_run(make_context(kind="skew", run_id="run-102"), "m", names).names == ["102.parquet"]


def test_each_captured_file_is_compared(make_context: Any) -> None:
    events = sum((simulate(seed, make_context) for seed in range(30)), Counter[str]())
    assert all(events[kind] for kind in ("ends", "read", "commit", "never", "both", "twice", "late", "cleared"))
