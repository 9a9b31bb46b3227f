"""Decides whether to retrain: a pure function of the policy, the situation, and the previous decision."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from airflow_hops.core.artifacts.properties import Window
from airflow_hops.core.json_fields import JsonFields
from airflow_hops.core.retraining.conditions import Finding, Memory
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.core.retraining.situation import Clock, Situation
from airflow_hops.core.skew import DRIFT, INSUFFICIENT
from airflow_hops.core.times import as_utc

Outcome = Literal["requested", "refused"]
REQUESTED: Outcome = "requested"
REFUSED: Outcome = "refused"
PERSON = "person"
"""Value of ``why`` if a person refuses a retraining."""

_KEPT = timedelta(days=800)
"""Minimum time for which decisions keep requests; longer if a policy's cooldown or budget covers more."""


@dataclass(frozen=True)
class RetrainingRequest(JsonFields):
    """An earlier request, counted by later decisions.

    Attributes:
        at: Time of the request, by ``clock``.
        reference: Fingerprint of the training data of the champion at that time.
        made: Wall-clock time, ISO 8601 UTC.
        by: ``dag_id``, ``run_id``, ``task_id``, ``map_index`` and, in a loop, ``iteration`` of the requesting task.
        refused: Whether a person refused it.
        no_new_rows: Whether its runs found no rows that the champion was not trained on; it then does not count.
        clock: Clock of ``at``.
        core_s: Last known cost in CPU seconds.
        gpu_s: Last known cost in seconds times GPUs.

    Example:
        >>> from airflow_hops import RetrainingRequest
        >>> RetrainingRequest("2026-11-29T00:00:00+00:00", "c0ffee", "f1").refused
        False
    """

    at: str
    cause: str
    reference: str
    made: str = ""
    by: Mapping[str, Any] = field(default_factory=dict)
    refused: bool = False
    no_new_rows: bool = False
    clock: Clock = "data"
    core_s: float = 0.0
    gpu_s: float = 0.0

    @property
    def counts(self) -> bool:
        """Returns whether it led to a training."""
        return not self.refused and not self.no_new_rows

    def costing(self, core_s: float, gpu_s: float) -> RetrainingRequest:
        """Returns the request with this cost, or the known one if higher, since artifacts may have been removed."""
        return replace(self, core_s=max(core_s, self.core_s), gpu_s=max(gpu_s, self.gpu_s))

    def time(self, situation: Situation) -> datetime:
        """Returns the request's time by the situation's clock; for another clock, it is derived from ``made``."""
        if self.clock == situation.clock or not self.made:
            return as_utc(self.at)
        return situation.at - (situation.now - as_utc(self.made))


@dataclass(frozen=True)
class RetrainingDecision(JsonFields):
    """The decision whether a retraining is requested, and its basis.

    Attributes:
        at: Time of the decision by ``clock``, ISO 8601 UTC.
        clock: Clock of ``at``.
        outcome: ``requested`` or ``refused``.
        why: Reason of a refusal in a word: ``monitor``, ``verdict`` (``when`` does not hold), the kind of the condition
            of ``unless`` that holds, ``in_flight``, ``no_new_rows``, ``cooldown``, ``budget`` or ``person``; empty for
            a request.
        reason: Reason in a sentence.
        cause: Cause of the retraining; a repeated request has the same cause.
        findings: Results of ``when`` and ``unless``.
        limits: Cooldown, budget and pending retrainings, in words.
        window: The data to train on; None for the pipeline's own bounds.
        basis: URI and ``fingerprint`` of the comparison, URI of the reference's ``statistics``, for captured rows
            ``model`` and ``version``, and URI of the ``performance`` artifact.
        memory: The outcome of comparisons with the champion's training data.
        requests: This and earlier requests, oldest first; a request whose event was never emitted stays until repeated.

    Example:
        >>> from airflow_hops import RetrainingDecision
        >>> RetrainingDecision("2026-11-29T00:00:00+00:00", "data", "refused", "verdict", "nothing drifts", "").requests
        ()
    """

    at: str
    clock: Clock
    outcome: Outcome
    why: str
    reason: str
    cause: str
    findings: tuple[Finding, ...] = ()
    limits: tuple[str, ...] = ()
    window: Window = (None, None)
    basis: Mapping[str, str] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    requests: tuple[RetrainingRequest, ...] = ()

    @property
    def requested(self) -> bool:
        """Returns whether a retraining is requested."""
        return self.outcome == REQUESTED

    def refused_by_a_person(self, answer: str) -> RetrainingDecision:
        """Returns the decision after a refusal or a timeout, which ``answer`` describes."""
        reason = f"{self.reason}; {answer}"
        requests = tuple(replace(each, refused=each.refused or each.cause == self.cause) for each in self.requests)
        return replace(self, outcome=REFUSED, why=PERSON, reason=reason, requests=requests)


def decide(
    policy: RetrainingPolicy, situation: Situation, previous: RetrainingDecision | None = None
) -> RetrainingDecision:
    """Decides whether to request a retraining; ``previous`` is the last decision, or None for the first.

    Decisions of one monitor are a chain: each contains everything that later ones need, so the last one is enough.
    A late comparison of older data does not change later counts.

    Raises:
        BadInput: the policy names something that this monitor does not compare or know.

    Example:
        >>> from datetime import UTC, datetime
        >>> from airflow_hops import Drift, RetrainingPolicy, Situation, decide
        >>> from airflow_hops.core.skew import SkewProperties, SkewReference
        >>> reference = SkewReference("f1", "file:///store/statistics", model="flights", version=1)
        >>> skew = SkewProperties("drift", drifted=("distance",), reference=reference)
        >>> now = datetime(2026, 11, 29, tzinfo=UTC)
        >>> situation = Situation(now, "data", skew, ("file:///store/skew", "f2"), rows=500)
        >>> decision = decide(RetrainingPolicy(when=Drift()), situation)
        >>> decision.outcome, decision.findings[0].held
        ('requested', True)
    """
    if situation.empty and previous:
        situation = replace(situation, at=as_utc(previous.at), clock=previous.clock)
    requests = tuple(
        replace(
            each.costing(*situation.costs.get(each.cause, (0.0, 0.0))),
            no_new_rows=situation.fruitless.get(each.cause, each.no_new_rows),
        )
        for each in (previous.requests if previous else ())
    )
    sent = tuple(each for each in requests if each.cause not in situation.unsent)
    cause = _cause(situation, previous)
    counted = [each for each in sent if each.reference == situation.reference and each.counts]
    retained = _remembered(situation, previous)
    known = retained if retained.reference == situation.reference else Memory(situation.reference)
    memory = replace(known, requests=len(counted))
    when, unless = policy.when.check(situation, memory), policy.unless.check(situation, memory)
    limits = _limits(policy, situation, sent, cause)
    if _is_late(situation, retained):
        limits["late"] = (
            False,
            f"older than the newest comparison, of {_short(as_utc(retained.until))}: not counted in a row",
        )
    why, reason = _why_not(situation, when, unless, limits)
    budget = [text for name, (_, text) in limits.items() if name == "budget"]
    reference = situation.skew.reference
    since = [as_utc(start) for _, start in memory.drifting.values()]
    start = policy.window.start(situation.at, min(since, default=None))
    if start is not None and start >= situation.at:  # the start of the comparison is unknown
        start = None
    decision = RetrainingDecision(
        at=situation.at.isoformat(),
        clock=situation.clock,
        outcome=REFUSED if why else REQUESTED,
        why=why,
        reason=reason or "; ".join([when.text, *budget]),
        cause=cause,
        findings=(when, unless),
        limits=tuple(text for _, text in limits.values()),
        window=(start.isoformat() if start else None, situation.skew.window_end),
        basis={
            "skew": situation.report[0],
            "fingerprint": situation.report[1],
            "statistics": reference.statistics,
            **(
                {"model": reference.model, "version": str(reference.version)}
                if reference.model and reference.version
                else {}
            ),
            **({"performance": situation.measured.uri} if situation.measured else {}),
        },
        memory=retained,
        requests=requests,
    )
    if decision.requested:
        asked = RetrainingRequest(decision.at, cause, situation.reference, clock=situation.clock)
        longest = max(_KEPT, policy.cooldown, policy.budget.per if policy.budget else _KEPT)
        recent = [each for each in sent if abs(situation.at - each.time(situation)) <= longest]
        decision = replace(decision, requests=(*recent, asked))
    return decision


def _cause(situation: Situation, previous: RetrainingDecision | None) -> str:
    """Returns the cause of an earlier request for this training data whose event was never emitted, or a new cause."""
    for each in reversed(previous.requests if previous else ()):
        if each.cause in situation.unsent and each.reference == situation.reference:
            return each.cause
    parts = "\n".join([*situation.report, situation.reference])
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def _remembered(situation: Situation, previous: RetrainingDecision | None) -> Memory:
    """Returns the memory after this comparison; unchanged if it is late, already counted, or from a faulty monitor."""
    memory = previous.memory if previous else Memory()
    if situation.skew.unwell:
        return memory
    if memory.clock != situation.clock and not situation.empty:
        memory = Memory()
    time, fingerprint = situation.at.isoformat(), situation.report[1]
    if _is_late(situation, memory) or (memory.until == time and fingerprint in memory.counted):
        return memory
    known = memory if memory.reference == situation.reference else Memory(situation.reference)
    if situation.skew.verdict == INSUFFICIENT:
        return known
    rows = known.rows + situation.rows
    counted = (*(known.counted if known.until == time else ()), fingerprint)
    known = replace(known, until=time, rows=rows, clock=situation.clock, counted=counted)
    if not situation.judged:
        return known
    start = situation.span[0] or memory.until or time
    named = situation.skew.drifted if situation.skew.verdict == DRIFT else ()
    runs = {name: known.drifting.get(name, (0, start)) for name in named}
    drifting = {name: (count + 1, since) for name, (count, since) in runs.items()}
    return replace(known, drifting=drifting)


def _is_late(situation: Situation, memory: Memory) -> bool:
    """Returns whether newer data was already compared with the same training data."""
    same = (memory.reference, memory.clock) == (situation.reference, situation.clock)
    return same and situation.at < as_utc(memory.until)


def _limits(
    policy: RetrainingPolicy, situation: Situation, sent: Sequence[RetrainingRequest], cause: str
) -> dict[str, tuple[bool, str]]:
    """Returns for each limit whether it forbids a request, and its state in words."""
    limits = {}
    if situation.in_flight is not None:
        limits["in_flight"] = (True, situation.in_flight)
    elif any(each.cause == cause for each in sent):
        limits["in_flight"] = (True, "requested for this comparison before")
    if situation.no_new_rows:
        limits["no_new_rows"] = (True, situation.no_new_rows)
    elif sent and sent[-1].no_new_rows:
        time = sent[-1].time(situation)
        limits["no_new_rows"] = (False, f"the request of {_short(time)} found no new rows, and does not count")
    mine = [
        each
        for each in sent
        if not each.no_new_rows and (not policy.champion_ends_cooldown or each.reference == situation.reference)
    ]
    # If a comparison is late, requests later in the data's time count like earlier ones.
    near = [each for each in mine if abs(situation.at - each.time(situation)) < policy.cooldown]
    if near:
        last = max(near, key=lambda each: each.time(situation))
        time = last.time(situation)
        what = "refused by a person" if last.refused else "requested"
        limits["cooldown"] = (True, f"cooldown until {_short(time + policy.cooldown)} ({what} at {_short(time)})")
    if policy.budget is not None:
        near = [each for each in sent if abs(situation.at - each.time(situation)) < policy.budget.per]
        spent = [each for each in near if each.counts]
        cost = (math.fsum(each.core_s for each in spent), math.fsum(each.gpu_s for each in spent))
        limits["budget"] = policy.budget.spent(len(spent), *cost)
    return limits


def _why_not(
    situation: Situation, when: Finding, unless: Finding, limits: Mapping[str, tuple[bool, str]]
) -> tuple[str, str]:
    """Returns why no retraining is requested, in a word and in a sentence; empty if it is requested."""
    if situation.unwell:
        return "monitor", "; ".join(situation.unwell)
    if situation.empty:
        return "verdict", "there was nothing to compare"
    stop = next((leaf for leaf in unless.leaves() if leaf.held), unless) if unless.held else None
    if stop is not None and (when.held or stop.condition == "pipeline_fault"):
        return stop.condition, unless.text
    if not when.held:
        if blind := [leaf.text for leaf in when.leaves() if leaf.blind]:
            return "monitor", "; ".join(blind)
        return "verdict", f"{when.text}: there is nothing to retrain for"
    stopped = {name: text for name, (stops, text) in limits.items() if stops}
    if not stopped:
        return "", ""
    texts = [text for name, (stops, text) in limits.items() if stops or name == "budget"]
    return next(iter(stopped)), "; ".join([when.text, *texts])


def _short(time: datetime) -> str:
    whole = time == time.replace(hour=0, minute=0, second=0, microsecond=0)
    return time.strftime("%Y-%m-%d" if whole else "%Y-%m-%d %H:%M")
