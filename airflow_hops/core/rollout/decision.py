"""Findings about a canary, and the decision on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from airflow_hops.core.json_fields import JsonFields
from airflow_hops.core.rollout.counts import Counts

FindingVerdict = Literal["ok", "doubt", "unknown", "bad", "not_judged"]
OK: FindingVerdict = "ok"
DOUBT: FindingVerdict = "doubt"
UNKNOWN: FindingVerdict = "unknown"
BAD: FindingVerdict = "bad"
NOT_JUDGED: FindingVerdict = "not_judged"

PROMOTED, ROLLED_BACK, LEFT, STEP = "promoted", "rolled_back", "left", "step"


@dataclass(frozen=True)
class CanaryFinding(JsonFields):
    """The outcome of one comparison.

    Attributes:
        what: ``errors``, ``refusals``, ``latency_p50``, ``latency_p99``, ``predictions`` or ``labels``.
        verdict: ``ok``, ``doubt`` (beyond the limit, but it may be chance), ``bad``, or, if there is too little to
            compare, ``not_judged``, or ``unknown`` if the step waits for it.
        text: Outcome in words.
        numbers: Numbers behind it.
    """

    what: str
    verdict: FindingVerdict
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Returns the kind and text as a reason of a decision."""
        prefix = {NOT_JUDGED: "not judged: ", DOUBT: "beyond the limit, but it may be chance: "}.get(self.verdict, "")
        return f"{self.what}: {prefix}{self.text}"


@dataclass(frozen=True)
class RolloutDecision(JsonFields):
    """The decision on a canary, and its reasons.

    Attributes:
        decision: ``promoted``, ``rolled_back`` or ``left``; ``step`` if the rollout continues.
        reasons: Reasons in words.
        percent: The canary's share at the decision.
        canary: The canary's counts of the step.
        stable: The counts that they were compared with.
        watched_s: Seconds since the rollout began.
    """

    decision: str
    reasons: tuple[str, ...] = ()
    findings: tuple[CanaryFinding, ...] = ()
    percent: int = 0
    canary: Counts = field(default_factory=Counts)
    stable: Counts = field(default_factory=Counts)
    watched_s: float = 0.0

    def numbers(self) -> dict[str, Any]:
        """Returns the fields of an event in the model's history as JSON values."""
        numbers = {**self.to_dict(), "watched_s": round(self.watched_s, 1)}
        del numbers["decision"]
        return numbers

    @classmethod
    def of_event(cls, event: str, numbers: Mapping[str, object]) -> Self:
        """Reads the fields of :meth:`numbers`; ``event`` is the decision."""
        names = {each.name for each in fields(cls)}
        return cls.from_dict({**{name: item for name, item in numbers.items() if name in names}, "decision": event})
