"""Replays a retraining policy: the fold of its decisions over what candidates were worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from airflow_hops.core.contract.artifacts import Artifact
from airflow_hops.core.contract.backtest import Assessment, Candidate, PeriodAssessment, delay_key
from airflow_hops.core.contract.performance import PerformanceProperties
from airflow_hops.core.contract.retraining.decision import Decision, decide
from airflow_hops.core.contract.retraining.policy import RetrainingPolicy, Sliding
from airflow_hops.core.contract.retraining.situation import Situation, as_utc
from airflow_hops.core.contract.skew import SkewProperties


@dataclass(frozen=True)
class AssessedCandidate:
    """A candidate, and what it was worth.

    Attributes:
        candidate: The candidate.
        assessment: What it was worth in each period after its training.
        cached: Whether an earlier back-test trained it.
    """

    candidate: Candidate
    assessment: Assessment
    cached: bool = False

    @property
    def window(self) -> tuple[str, str]:
        """Start and end of its training data."""
        return self.candidate.start, self.candidate.end

    def period(self, end: datetime) -> PeriodAssessment:
        """Returns the worth in the period that ends at a tick.

        Raises:
            LookupError: it was not assessed then.
        """
        result = next((each for each in self.assessment.periods if as_utc(each.end) == end), None)
        if result is None:
            raise LookupError(f"the candidate of {self.candidate.end} has no assessment of the period until {end}")
        return result


_UNLABELLED = "; no label has come since the change, so that it learns from the beginning of the history"

Train = Callable[[datetime | None, datetime], AssessedCandidate]
"""Gives the candidate of a window; its start is None for that of the history."""

Gate = Callable[[Candidate, Candidate], tuple[bool, tuple[str, ...]]]
"""Whether a candidate may take a champion's place, and why."""


@dataclass(frozen=True)
class Requested:
    """A retraining that was requested.

    Attributes:
        tick: Number of the tick, from 0.
        reason: Why.
        candidate: What it trained.
        champion: What served then.
        promoted: Whether the gate let it serve.
        gate: The gate's reasons.
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
        serving: What served in each period.
        decisions: One for each tick; none of the policy that never retrains.
        requested: The retrainings.
    """

    serving: tuple[AssessedCandidate, ...]
    decisions: tuple[Decision, ...] = ()
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
    """Lets a policy decide at each tick, with what it would have known then.

    Training and rollout take no time here: a candidate that is requested at a tick and passes the gate serves from that
    tick on. It learns from the rows whose labels have come by then: its window ends ``label_delay_s`` before the tick.
    A sliding one keeps its length; one since a change of which no label has come begins with the history. What is
    requested at the last tick is not trained, since no period follows. A policy that asks a person is told yes.

    Args:
        policy: The policy; None for none, which never retrains.
        ticks: Ends of the periods, ascending.
        first: The model that serves in the first period.
        train: Gives candidates.
        gate: Decides whether they serve.
        label_delay_s: Seconds from a row to its label.

    Raises:
        BadInput: the policy names what is not compared or measured.
    """
    if policy is None:
        return Course((first,) * len(ticks))
    champion, version, requested, serving = first, 1, [], []
    delay = timedelta(seconds=label_delay_s)
    decisions: list[Decision] = []
    costs: dict[str, tuple[float, float]] = {}
    for number, tick in enumerate(ticks):
        serving.append(champion)
        situation = replace(_situation(champion, tick, version, label_delay_s), costs=costs)
        decisions.append(decide(policy, situation, decisions[-1] if decisions else None))
        if not decisions[-1].requested or number + 1 == len(ticks):
            continue
        start = None  # that of the history
        if decisions[-1].window[0] is not None:
            start = as_utc(decisions[-1].window[0])
            if isinstance(policy.window, Sliding):
                start -= delay
            elif start >= as_utc(decisions[-1].at) - delay:
                start = None
        candidate = train(start, tick - delay)
        costs[decisions[-1].cause] = (candidate.candidate.core_s, candidate.candidate.gpu_s)
        promoted, reasons = gate(candidate.candidate, champion.candidate)
        reason = decisions[-1].reason + (_UNLABELLED if decisions[-1].window[0] and start is None else "")
        requested.append(Requested(number, reason, candidate, champion, promoted, reasons))
        if promoted:
            champion, version = candidate, version + 1
    return Course(tuple(serving), tuple(decisions), tuple(requested))


def _situation(champion: AssessedCandidate, tick: datetime, version: int, label_delay_s: float) -> Situation:
    """Returns the situation of the champion at a tick, as the monitor would have seen it."""
    period = champion.period(tick)
    skew = SkewProperties.from_dict(period.skew)
    skew = replace(
        skew,
        reference=replace(skew.reference, version=version),
        # The compared data ends with the tick, whatever the time of its last row; without rows it has no end.
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
