"""Times a back-test of a running demo's model, and the fold of a policy's decisions."""

from __future__ import annotations

import importlib
import json
import sys
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from airflow_hops.core.performance import VersionPerformance
from airflow_hops.core.retraining.conditions import Age, AnyOf, Drift, NewRows
from airflow_hops.core.retraining.performance import Performance
from airflow_hops.core.retraining.policy import Budget, RetrainingPolicy
from airflow_hops.core.skew import SkewProperties, SkewReference
from airflow_hops.extensions.replay.core.backtest import Assessment, BacktestCandidate, PeriodAssessment, delay_key
from airflow_hops.extensions.replay.runner.backtest.candidates import Candidates, champion_properties
from airflow_hops.extensions.replay.runner.backtest.plan import BacktestPlan, moment, named_policies
from airflow_hops.extensions.replay.runner.backtest.replay import AssessedCandidate, replay
from airflow_hops.extensions.replay.runner.backtest.run import run_backtest
from airflow_hops.runner.runtime import RuntimeHook

DAY = timedelta(days=1)


def fold_s(ticks: int = 365, features: int = 30) -> float:
    """Seconds of a year's daily decisions by a policy of four conditions, none of which holds."""
    start = datetime(2013, 1, 1, tzinfo=UTC)
    times = [start + number * DAY for number in range(ticks + 1)]
    figures = {"auc": (0.7, 0.69, 0.71)}
    measured = {
        delay_key(0): VersionPerformance(1, "2013-01-01", "2013-01-02", 1000, 1000, 1000, figures, baseline=figures)
    }
    periods = []
    for last_tick, tick in pairwise(times):
        skew = SkewProperties(
            verdict="drift",
            drifted=("f0",),
            scores={f"f{number}": (0.1, 0.5) for number in range(features)},
            reference=SkewReference("s", "f", model="m", version=1),
            window_start=last_tick.isoformat(),
            window_end=tick.isoformat(),
        )
        bounds = last_tick.isoformat(), tick.isoformat()
        periods.append(PeriodAssessment(*bounds, 1000, figures, skew.to_dict(), 1000, measured))
    artifact: dict[str, Any] = {"uri": "file:///m", "kind": "model", "fingerprint": "f"}
    candidate = BacktestCandidate(start.isoformat(), start.isoformat(), artifact, artifact, artifact, artifact)
    first = AssessedCandidate(candidate, Assessment("binary", "auc", False, tuple(periods)))
    when = AnyOf(Drift(("f1",), consecutive=2), Performance("auc", drop=0.1), Age(1000 * DAY), NewRows(10**9))
    policy = RetrainingPolicy(when=when, budget=Budget(6, 90 * DAY))
    began = time.perf_counter()
    course = replay(policy, times[1:], first, train=None, gate=None)  # type: ignore[arg-type]  # none is asked for
    seconds = time.perf_counter() - began
    if len(course.decisions) != ticks or course.requested:
        raise RuntimeError(f"expected {ticks} refusals, found {len(course.requested)} requests")
    return seconds


def main(model: str, start: str, end: str, every_days: str, first_days: str, policy: str = "", code: str = "") -> None:
    """Runs the back-test, of one policy if it is named, and compares it with training each candidate for itself."""
    hook = RuntimeHook()
    policies = named_policies(["monthly", "weekly", "drift", "performance"], champion_properties(hook, model))
    if policy:  # of a module in a folder of code
        module, _, attribute = policy.partition(":")
        sys.path.insert(0, code)
        policies = {policy: getattr(importlib.import_module(module), attribute)}
    plan = BacktestPlan(
        model,
        moment("start", start),
        moment("end", end),
        policies,
        every=float(every_days) * DAY,
        first=float(first_days) * DAY,
        label_delays=(0 * DAY, 7 * DAY, 30 * DAY),
    )

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    candidates = Candidates(hook, plan, say)
    uri, report = run_backtest(hook.store, plan, candidates, {"user": "benchmark"}, say)
    windows = [(moment("", each.start), moment("", each.end)) for each in report.candidates]
    wall_s = [candidates.of(*window).candidate.wall_s for window in windows]
    # Alone, each policy would train its first model, too.
    afresh_s = sum(wall_s[0] + sum(wall_s[each.candidate] for each in policy.retrainings) for policy in report.policies)
    print(
        json.dumps(
            {
                "report": uri,
                "backtest_s": report.wall_s,
                "afresh_s": round(afresh_s, 1),
                "trainings": sum(len(policy.retrainings) for policy in report.policies),
                "candidates": len(wall_s),
                "trained": report.trained,
                "fold_of_365_s": round(fold_s(), 4),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
