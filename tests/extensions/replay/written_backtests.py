"""Reports of back-tests of a made-up history, by the back-test's own arithmetic: for tests of what shows them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from airflow_hops.core.retraining.conditions import Drift
from airflow_hops.core.retraining.decision import REFUSED, REQUESTED, RetrainingDecision
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.replay.core.backtest import Assessment, BacktestCandidate, BacktestReport, PeriodAssessment
from airflow_hops.extensions.replay.runner.backtest.outcomes import Scoreboard
from airflow_hops.extensions.replay.runner.backtest.replay import AssessedCandidate, Course, Requested
from airflow_hops.extensions.replay.runner.backtest.run import write_report

START, WEEK = datetime(2013, 1, 1, tzinfo=UTC), timedelta(days=7)
POLICIES: dict[str, Callable[[int, int], bool]] = {
    "never": lambda week, last: False,
    "monthly": lambda week, last: week % 4 == 3,
    "weekly": lambda week, last: True,
    "drift": lambda week, last: week - last > 5 and week % 7 in (2, 3),
    "performance@0d": lambda week, last: week - last > 8,
    "performance@30d": lambda week, last: week - last > 8 and week > 12,
}
"""Whether a policy asks for a retraining in a week, by that of its last."""


def write_backtest(store: ArtifactStore, backtest_id: str, report: BacktestReport) -> str:
    """Writes a report as a back-test does; returns its folder."""
    return write_report(store, backtest_id, report).rpartition("/")[0]


def remove_backtest(store: ArtifactStore, folder: str) -> None:
    """Removes what :func:`write_backtest` wrote."""
    for name in store.names(folder):
        store.remove_text(f"{folder}/{name}")


def made_up_report(
    dag_id: str,
    model: str,
    *,
    weeks: int = 39,
    price: float = 0.001,
) -> BacktestReport:
    """A report of weeks in which a model loses as it ages, and the gate rejects every fifth week's candidate."""
    ticks = [START + (13 + week) * WEEK for week in range(weeks + 1)]
    candidates = [_candidate(week, ticks) for week in range(weeks)]
    courses = {name: _course(name, asks, candidates, ticks) for name, asks in POLICIES.items()}
    trained = {each.candidate.window for course in courses.values() for each in course.requested}
    made = [candidates[0], *(each for each in candidates[1:] if each.window in trained)]
    board = Scoreboard(made, ticks, price)
    outcomes = [
        board.outcome(name, None if name == "never" else RetrainingPolicy(when=Drift()), None, course)
        for name, course in courses.items()
    ]
    return BacktestReport(
        model_name=model,
        dag_id=dag_id,
        made="2026-11-22T20:00:00+00:00",
        by={"user": "ada"},
        problem="binary",
        metric="auc",
        lower_is_better=False,
        start=START.isoformat(),
        end=ticks[-1].isoformat(),
        ticks=[each.isoformat() for each in ticks[1:]],
        rows=board.rows,
        price=price,
        candidates=board.candidates(),
        policies=tuple(outcomes),
        best=board.best,
        chosen=board.chosen(outcomes).name,
        wall_s=754.0,
        trained=len(trained),
        notes=["Made up: no model was trained for this report."],
    )


def _candidate(week: int, ticks: Sequence[datetime]) -> AssessedCandidate:
    periods = []
    for tick in range(week, len(ticks) - 1):
        value = 0.7 + 0.02 * math.sin(tick * 1.7) - 0.06 * (1 - math.exp(-(tick - week) / 20)) + 0.0004 * week
        figures = {"auc": (value, value - 0.01, value + 0.01)}
        periods.append(PeriodAssessment(ticks[tick].isoformat(), ticks[tick + 1].isoformat(), 6000 + tick % 3, figures))
    model = {"uri": f"file:///made/up/{week}"}
    candidate = BacktestCandidate(
        START.isoformat(), ticks[week].isoformat(), model, model, model, model, {"core_s": 400.0}
    )
    return AssessedCandidate(candidate, Assessment("binary", "auc", False, tuple(periods)))


def _course(
    name: str, asks: Callable[[int, int], bool], candidates: Sequence[AssessedCandidate], ticks: Sequence[datetime]
) -> Course:
    champion, last = candidates[0], -1
    serving, decisions, requested = [], [], []
    for week, tick in enumerate(ticks[1:]):
        serving.append(champion)
        holds = week + 1 < len(candidates) and asks(week, last)
        reason = f"the condition of {name} {'holds' if holds else 'does not hold'} in week {week}"
        outcome, why = (REQUESTED, "") if holds else (REFUSED, "verdict")
        decisions.append(RetrainingDecision(tick.isoformat(), "data", outcome, why, reason, cause=""))
        if holds:
            promoted = week % 5 != 4
            gate = (f"eval: auc is {'' if promoted else 'not '}better",)
            requested.append(Requested(week, reason, candidates[week + 1], champion, promoted, gate))
            champion, last = candidates[week + 1] if promoted else champion, week
    return Course(tuple(serving), () if name == "never" else tuple(decisions), tuple(requested))
