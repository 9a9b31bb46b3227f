"""The decision whether to retrain: a pure function of the policy, the situation, and the decision before."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, Self

from airflow_hops.contract.json_fields import JsonFields
from airflow_hops.contract.properties import Window
from airflow_hops.contract.retraining.conditions import Finding, Memory
from airflow_hops.contract.retraining.policy import RetrainingPolicy
from airflow_hops.contract.retraining.situation import Clock, Situation, as_utc
from airflow_hops.contract.skew import DRIFT, INSUFFICIENT

Outcome = Literal["requested", "refused"]
REQUESTED: Outcome = "requested"
REFUSED: Outcome = "refused"
PERSON = "person"
"""Why a person's "no" refuses a retraining."""

_KEPT = timedelta(days=800)
"""How long requests are kept with the decisions at least; a policy may look back further."""


@dataclass(frozen=True)
class Request(JsonFields):
    """An earlier request, as later decisions count it.

    Attributes:
        at: Its time, in the data's own.
        cause: Its cause.
        reference: Fingerprint of the training data of the champion then.
        made: When it was made, ISO 8601 UTC.
        by: ``dag_id``, ``run_id``, ``task_id`` and ``map_index`` of who made it.
        refused: Whether a person refused it.
    """

    at: str
    cause: str
    reference: str
    made: str = ""
    by: Mapping[str, Any] = field(default_factory=dict)
    refused: bool = False


@dataclass(frozen=True)
class Decision(JsonFields):
    """Whether a retraining is requested, and all that it rests on.

    Attributes:
        at: Time of the decision, in that of ``clock``, ISO 8601 UTC.
        clock: Whose time that is.
        outcome: ``requested`` or ``refused``.
        why: Of a refusal, in a word: ``monitor``, ``verdict`` (``when`` does not hold), the kind of the condition of
            ``unless`` that holds, ``in_flight``, ``cooldown``, ``budget`` or ``person``; empty of a request.
        reason: In a sentence.
        cause: What a retraining is requested for; the same where the same request is made again.
        findings: What ``when`` and ``unless`` found.
        limits: Cooldown, budget and retrainings under way, in words.
        window: The data to train on; None where the pipeline's own holds.
        basis: What it rests on: URI and ``fingerprint`` of the comparison, URI of the reference's
            ``statistics``, and of the ``performance`` that was measured.
        memory: What the comparisons with the champion's training data amount to.
        requests: This and earlier requests, oldest first.
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
    requests: tuple[Request, ...] = ()

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`."""
        parts = {
            "findings": tuple(map(Finding.from_dict, value.get("findings") or ())),
            "limits": tuple(value.get("limits") or ()),
            "window": tuple(value.get("window") or (None, None)),
            "memory": Memory.from_dict(value.get("memory") or {}),
            "requests": tuple(map(Request.from_dict, value.get("requests") or ())),
        }
        return super().from_dict({**value, **parts})

    @property
    def requested(self) -> bool:
        """Whether a retraining is requested."""
        return self.outcome == REQUESTED

    def refused_by(self, person: str, note: str) -> Decision:
        """The decision after a person's "no".

        Args:
            person: Who.
            note: Why; may be empty.
        """
        said = f"{self.reason}; {person} refused" + (f": {note}" if note else "")
        requests = tuple(replace(each, refused=each.refused or each.cause == self.cause) for each in self.requests)
        return replace(self, outcome=REFUSED, why=PERSON, reason=said, requests=requests)


def decide(policy: RetrainingPolicy, situation: Situation, previous: Decision | None = None) -> Decision:
    """Whether to request a retraining.

    Decisions of one monitor are a chain: each has what later ones must know of all before it, so the last is enough.
    An older comparison that comes late changes what was counted since in nothing.

    Args:
        policy: The policy.
        situation: What is known.
        previous: The last decision; None for the first.

    Raises:
        BadInput: the policy names what this monitor does not compare or know.
    """
    if situation.empty and previous:
        situation = replace(situation, at=as_utc(previous.at), clock=previous.clock)
    sent = tuple(each for each in (previous.requests if previous else ()) if each.cause not in situation.unsent)
    cause = _cause(situation, previous)
    counted = [each for each in sent if each.reference == situation.reference and not each.refused]
    kept = _remembered(situation, previous)
    known = kept if kept.reference == situation.reference else Memory(situation.reference)
    memory = replace(known, requests=len(counted))
    when, unless = policy.when.check(situation, memory), policy.unless.check(situation, memory)
    limits = _limits(policy, situation, sent, cause)
    if kept.until and situation.at < as_utc(kept.until):
        limits["late"] = (
            False,
            f"older than the newest comparison, of {_short(as_utc(kept.until))}: not counted in a row",
        )
    why, reason = _why_not(situation, when, unless, limits)
    budget = [text for name, (_, text) in limits.items() if name == "budget"]
    decision = Decision(
        at=situation.at.isoformat(),
        clock=situation.clock,
        outcome=REFUSED if why else REQUESTED,
        why=why,
        reason=reason or "; ".join([when.text, *budget]),
        cause=cause,
        findings=(when, unless),
        limits=tuple(text for _, text in limits.values()),
        window=_window(policy, situation, memory),
        basis={
            "skew": situation.report[0],
            "fingerprint": situation.report[1],
            "statistics": situation.skew.reference.statistics,
            **({"performance": situation.measured.uri} if situation.measured else {}),
        },
        memory=kept,
        requests=sent,
    )
    if decision.requested:
        asked = Request(decision.at, cause, situation.reference)
        decision = replace(decision, requests=(*_recent(policy, situation.at, sent), asked))
    return decision


def _cause(situation: Situation, previous: Decision | None) -> str:
    """That of an earlier request for the same training data that never left; else one of this comparison's own."""
    for each in reversed(previous.requests if previous else ()):
        if each.cause in situation.unsent and each.reference == situation.reference:
            return each.cause
    parts = "\n".join([*situation.report, situation.reference])
    return hashlib.sha256(parts.encode()).hexdigest()[:16]


def _remembered(situation: Situation, previous: Decision | None) -> Memory:
    """What is remembered after this comparison; one that comes late changes nothing."""
    before = previous.memory if previous and (previous.clock == situation.clock or situation.empty) else Memory()
    at = situation.at.isoformat()
    if before.until and situation.at < as_utc(before.until):
        return before
    known = before if before.reference == situation.reference else Memory(situation.reference)
    if situation.skew.verdict == INSUFFICIENT:
        return known
    rows = known.rows + situation.rows
    if not situation.judged:
        return replace(known, until=at, rows=rows)
    start = situation.span[0] or before.until or at
    named = situation.skew.drifted if situation.skew.verdict == DRIFT else ()
    runs = {name: known.drifting.get(name, (0, start)) for name in named}
    drifting = {name: (count + 1, since) for name, (count, since) in runs.items()}
    return Memory(situation.reference, at, drifting, rows)


def _limits(
    policy: RetrainingPolicy, situation: Situation, sent: Sequence[Request], cause: str
) -> dict[str, tuple[bool, str]]:
    """By limit, whether it forbids a request, and how it stands in words."""
    limits = {}
    if situation.in_flight is not None:
        limits["in_flight"] = (True, situation.in_flight)
    elif any(each.cause == cause for each in sent):
        limits["in_flight"] = (True, "requested for this comparison before")
    mine = [each for each in sent if not policy.champion_ends_cooldown or each.reference == situation.reference]
    # Where a comparison comes late, requests that are later in the data's time count as those before.
    near = [each for each in mine if abs(situation.at - as_utc(each.at)) < policy.cooldown]
    if near:
        last = max(near, key=lambda each: as_utc(each.at))
        until = as_utc(last.at) + policy.cooldown
        what = "refused by a person" if last.refused else "requested"
        limits["cooldown"] = (True, f"cooldown until {_short(until)} ({what} at {_short(as_utc(last.at))})")
    if policy.budget is not None:
        spent = [each for each in sent if not each.refused and abs(situation.at - as_utc(each.at)) < policy.budget.per]
        full = len(spent) >= policy.budget.trainings
        days = policy.budget.per / timedelta(days=1)
        limits["budget"] = (full, f"budget {len(spent)} of {policy.budget.trainings} spent in {days:g} days")
    return limits


def _why_not(
    situation: Situation, when: Finding, unless: Finding, limits: Mapping[str, tuple[bool, str]]
) -> tuple[str, str]:
    """Why it is not requested, in a word and in a sentence; empty if it is."""
    if situation.unwell:
        return "monitor", "; ".join(situation.unwell)
    if situation.empty:
        return "verdict", "there was nothing to compare"
    stop = next((leaf for leaf in unless.leaves() if leaf.held), unless) if unless.held else None
    if stop is not None and (when.held or stop.condition == "pipeline_fault"):
        return stop.condition, unless.text
    if not when.held:
        return "verdict", f"{when.text}: there is nothing to retrain for"
    stopped = {name: text for name, (stops, text) in limits.items() if stops}
    if not stopped:
        return "", ""
    told = [text for name, (stops, text) in limits.items() if stops or name == "budget"]
    return next(iter(stopped)), "; ".join([when.text, *told])


def _window(policy: RetrainingPolicy, situation: Situation, memory: Memory) -> Window:
    since = [as_utc(start) for _, start in memory.drifting.values()]
    start = policy.window.start(situation.at, min(since, default=None))
    return (start.isoformat() if start else None, situation.skew.window_end)


def _recent(policy: RetrainingPolicy, at: datetime, requests: Sequence[Request]) -> list[Request]:
    kept = max(_KEPT, policy.cooldown, policy.budget.per if policy.budget else _KEPT)
    return [each for each in requests if abs(at - as_utc(each.at)) <= kept]


def _short(time: datetime) -> str:
    whole = time == time.replace(hour=0, minute=0, second=0, microsecond=0)
    return time.strftime("%Y-%m-%d" if whole else "%Y-%m-%d %H:%M")
