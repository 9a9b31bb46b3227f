"""Replays a retraining policy: folds its decisions over the assessments of candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.performance import PerformanceProperties
from airflow_hops.core.retraining.decision import RetrainingDecision, decide
from airflow_hops.core.retraining.policy import RetrainingPolicy, Sliding
from airflow_hops.core.retraining.situation import Situation
from airflow_hops.core.skew import SkewProperties
from airflow_hops.core.times import as_utc
from airflow_hops.extensions.replay.core.backtest import Assessment, BacktestCandidate, PeriodAssessment, delay_key


@dataclass(frozen=True)
class AssessedCandidate:
    """A candidate and its assessment.

    Attributes:
        assessment: Results in each period after its training.
        cached: Whether an earlier back-test trained it.
    """

    candidate: BacktestCandidate
    assessment: Assessment
    cached: bool = False

    @property
    def window(self) -> tuple[str, str]:
        """Start and end of its training data."""
        return self.candidate.start, self.candidate.end

    def period(self, end: datetime) -> PeriodAssessment:
        """Returns the assessment of the period that ends at a tick; raises LookupError if there is none."""
        result = next((each for each in self.assessment.periods if as_utc(each.end) == end), None)
        if result is None:
            raise LookupError(f"the candidate of {self.candidate.end} has no assessment of the period until {end}")
        return result


_UNLABELLED = "; no label has come since the change, so that it learns from the beginning of the history"

Train = Callable[[datetime | None, datetime], AssessedCandidate]
"""Returns the candidate of a window; a start of None means that of the history."""

Gate = Callable[[BacktestCandidate, BacktestCandidate], tuple[bool, tuple[str, ...]]]
"""Returns whether a candidate may replace a champion, and the reasons."""


@dataclass(frozen=True)
class Requested:
    """A requested retraining.

    Attributes:
        tick: Number of the tick, from 0.
        champion: The model that served at the time.
        promoted: Whether the gate accepted the candidate.
        gate: Reasons of the gate.
    """

    tick: int
    reason: str
    candidate: AssessedCandidate
    champion: AssessedCandidate
    promoted: bool
    gate: tuple[str, ...]


@dataclass(frozen=True)
class Course:
    """The course of a policy.

    Attributes:
        serving: Serving model in each period.
        decisions: One per tick; empty for the policy that never retrains.
    """

    serving: tuple[AssessedCandidate, ...]
    decisions: tuple[RetrainingDecision, ...] = ()
    requested: tuple[Requested, ...] = ()


def replay(
    policy: RetrainingPolicy | None,
    ticks: Sequence[datetime],
    first: AssessedCandidate,
    *,
    train: Train,
    gate: Gate,
    label_delay_s: float = 0.0,
) -> Course:
    """Lets a policy decide at each tick, with the knowledge available at that time.

    Training and rollout take no time here: a candidate that is requested at a tick and passes the gate serves from that
    tick on. It is trained on the rows whose labels have arrived: its window ends ``label_delay_s`` before the tick. A
    sliding window keeps its length; a window since a change without labels yet begins with the history. A request at
    the last tick is not trained, since no period follows. Approvals by a person are assumed.

    Args:
        policy: The policy; None never retrains.
        ticks: Ends of the periods, ascending.
        first: Model that serves in the first period.
        train: Returns candidates.
        gate: Decides whether they serve.
        label_delay_s: Seconds from a row to its label.

    Raises:
        BadInput: the policy names a feature or metric that is not compared or measured.
    """
    if policy is None:
        return Course((first,) * len(ticks))
    champion, version, requested, serving = first, 1, [], []
    delay = timedelta(seconds=label_delay_s)
    decisions: list[RetrainingDecision] = []
    costs: dict[str, tuple[float, float]] = {}
    for number, tick in enumerate(ticks):
        serving.append(champion)
        situation = replace(_situation(champion, tick, version, label_delay_s), costs=costs)
        decisions.append(decide(policy, situation, decisions[-1] if decisions else None))
        if not decisions[-1].requested or number + 1 == len(ticks):
            continue
        start = None  # start of the history
        if decisions[-1].window[0] is not None:
            start = as_utc(decisions[-1].window[0])
            if isinstance(policy.window, Sliding):
                start -= delay
            elif start >= as_utc(decisions[-1].at) - delay:
                start = None
        candidate = train(start, tick - delay)
        cost = candidate.candidate.cost
        costs[decisions[-1].cause] = (cost.get("core_s", 0.0), cost.get("gpu_s", 0.0))
        promoted, reasons = gate(candidate.candidate, champion.candidate)
        reason = decisions[-1].reason + (_UNLABELLED if decisions[-1].window[0] and start is None else "")
        requested.append(Requested(number, reason, candidate, champion, promoted, reasons))
        if promoted:
            champion, version = candidate, version + 1
    return Course(tuple(serving), tuple(decisions), tuple(requested))


def _situation(champion: AssessedCandidate, tick: datetime, version: int, label_delay_s: float) -> Situation:
    """Returns the champion's situation at a tick, as the monitor would have seen it."""
    period = champion.period(tick)
    skew = SkewProperties.from_dict(period.skew)
    skew = replace(
        skew,
        reference=replace(skew.reference, version=version),
        # The compared data ends with the tick, not with its last row; without rows it has no end.
        window_end=tick.isoformat() if skew.window_end is not None else None,
    )
    model = str(champion.candidate.model["uri"])
    measured = period.measured.get(delay_key(label_delay_s))
    if measured is None:
        performance: dict[str, Any] = {"unmeasured": "no prediction is in the window of the measurement"}
    else:
        properties = PerformanceProperties(
            problem=champion.assessment.problem,
            metric=champion.assessment.metric,
            as_of=tick.isoformat(),
            versions=(replace(measured, version=version),),
        )
        uri = f"backtest:{tick.isoformat()}"
        performance = {"measured": Artifact(uri, "performance", "", properties=properties.to_dict())}
    return Situation(
        at=tick,
        clock="data",
        skew=skew,
        report=(model, tick.isoformat()),
        rows=period.compared,
        span=(skew.window_start or period.start, skew.window_end),
        trained_until=as_utc(champion.candidate.end),
        unwell=skew.unwell,
        now=tick,
        **performance,
    )
