"""Runs a back-test: replays the policies and writes the report."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.times import now
from airflow_hops.extensions.replay.core.backtest import POLICY_FILE, REPORT_FILE, BacktestReport
from airflow_hops.extensions.replay.core.backtests import backtest_uri
from airflow_hops.extensions.replay.runner.backtest.candidates import Candidates
from airflow_hops.extensions.replay.runner.backtest.outcomes import Scoreboard
from airflow_hops.extensions.replay.runner.backtest.plan import BacktestPlan, in_days, in_words
from airflow_hops.extensions.replay.runner.backtest.replay import AssessedCandidate, Course, replay

Tried = tuple[str, RetrainingPolicy | None, timedelta | None]
"""Name, policy, and delay of labels if it depends on them."""


def run_backtest(
    store: ArtifactStore, plan: BacktestPlan, candidates: Candidates, by: Mapping[str, Any], say: Callable[[str], None]
) -> tuple[str, BacktestReport]:
    """Replays the policies and writes their results to the store.

    Trained candidates stay in the store and are reused by later back-tests, also if this one is killed. If it fails,
    all running steps are ended.

    Args:
        store: The artifact store.
        plan: The plan of the back-test.
        candidates: Candidates of this plan.
        by: Author, as in :class:`~airflow_hops.extensions.replay.core.backtest.BacktestReport`.
        say: Called with progress messages.

    Returns:
        The report's URI, and the report.

    Raises:
        BadInput: the history is too short, or the metric is defined in none of its periods.
        HopsError: a step failed.
    """
    began = time.monotonic()
    identity = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    try:
        ticks = candidates.ticks
        count, every = len(ticks) - 1, in_words(plan.every)
        say(f"History: {in_days(plan.start)} to {in_days(plan.end)}, {count} periods of {every} each")
        first = candidates.first()
        tried = list(plan.tried())
        courses = _replay_all(candidates, first, tried, plan, say)
    except BaseException:
        candidates.kill()
        raise
    asked = {retraining.candidate.window: retraining.candidate for course in courses for retraining in course.requested}
    trained = [first, *(asked[window] for window in sorted(asked, key=lambda window: window[::-1]))]
    board = Scoreboard(trained, ticks, plan.price)
    outcomes = tuple(
        board.outcome(name, policy, None if delay is None else delay.total_seconds(), course)
        for (name, policy, delay), course in zip(tried, courses, strict=True)
    )
    report = BacktestReport(
        model_name=plan.model_name,
        dag_id=candidates.dag_id,
        made=now(),
        problem=first.assessment.problem,
        metric=first.assessment.metric,
        lower_is_better=first.assessment.lower_is_better,
        start=plan.start.isoformat(),
        end=plan.end.isoformat(),
        ticks=[tick.isoformat() for tick in ticks[1:]],
        rows=board.rows,
        price=plan.price,
        candidates=board.candidates(),
        policies=outcomes,
        best=board.best,
        chosen=board.chosen(outcomes).name,
        wall_s=round(time.monotonic() - began, 3),
        trained=sum(not each.cached for each in trained),
        notes=[
            *candidates.notes,
            *_notes(plan, ticks, board, trained, dict(zip((name for name, *_ in tried), courses, strict=True))),
        ],
        by=by,
    )
    return write_report(store, identity, report), report


def _replay_all(
    candidates: Candidates,
    first: AssessedCandidate,
    tried: Sequence[Tried],
    plan: BacktestPlan,
    say: Callable[[str], None],
) -> list[Course]:
    """Returns the courses of the policies."""
    ticks = candidates.ticks[1:]

    def course(name: str, policy: RetrainingPolicy | None, delay: timedelta | None) -> Course:
        began, waits = time.monotonic(), plan.shortest_delay if delay is None else delay

        def train(start: datetime | None, end: datetime) -> AssessedCandidate:
            tick = end + waits
            done = ticks.index(tick) + 1
            left_s = (time.monotonic() - began) / done * (len(ticks) - done)
            left = f"; about {left_s / 60:.0f} min more of this policy" if left_s > 60 else ""
            say(f"{name}: {in_days(tick)}, tick {done} of {len(ticks)}: a retraining{left}")
            return candidates.of(start, end)

        delay_s = waits.total_seconds()
        result = replay(policy, ticks, first, train=train, gate=candidates.gate, label_delay_s=delay_s)
        served = sum(retraining.promoted for retraining in result.requested)
        say(f"{name}: done; retrainings {len(result.requested)}, served {served}")
        return result

    return [course(*each) for each in tried]


def _notes(
    plan: BacktestPlan,
    ticks: Sequence[datetime],
    board: Scoreboard,
    trained: Sequence[AssessedCandidate],
    courses: Mapping[str, Course],
) -> list[str]:
    notes = []
    if (left := plan.end - ticks[-1]) > timedelta(0):
        notes.append(f"The last {in_words(left)} of the history are shorter than a period and left out.")
    if board.uncounted:
        ends = ", ".join(in_days(ticks[number + 1]) for number in board.uncounted[:5])
        notes.append(
            f"{len(board.uncounted)} periods are not counted for any policy, since they have no rows, or a candidate's "
            f"metric is not defined in them; among them those ending at {ends}."
        )
    for name, course in courses.items():
        whys = [each.why for each in course.decisions]
        for why, what in (
            ("rejected", "Rejected held requests back: a back-test has nobody to review rejected candidates"),
            ("monitor", "the monitor lacked data that the policy uses, see its decisions"),
        ):
            if why in whys:
                notes.append(f"{name}: from {in_days(ticks[whys.index(why) + 1])} on, at times, {what}.")
    # A note on several candidates appears once, for the first.
    latest = {re.sub(r"[\d,.]+", "", note): note for each in reversed(trained) for note in each.assessment.notes}
    return [*notes, *latest.values()]


def write_report(store: ArtifactStore, identity: str, report: BacktestReport) -> str:
    """Writes the report last, so its presence marks completion; returns its URI."""
    folder = backtest_uri(store, report.model_name, identity)
    chosen = next(each for each in report.policies if each.name == report.chosen)
    if chosen.policy is not None:
        store.write_text(f"{folder}/{POLICY_FILE}", json.dumps(chosen.policy, indent=1) + "\n")
    uri = f"{folder}/{REPORT_FILE}"
    store.write_text(uri, json.dumps(report.to_dict(), indent=1) + "\n")
    return uri
