"""What a look can come to: a decision, a question to a person, or waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_hops.artifacts import BadInput
from airflow_hops.runtime.model_record import ModelRecord
from airflow_hops.runtime.rollout.comparisons import Finding
from airflow_hops.runtime.rollout.counts import Counts

PROMOTED = "promoted"
ROLLED_BACK = "rolled_back"
LEFT = "left"

_TAKEN, _TAKEN_OUT = (PROMOTED, "deployed"), (ROLLED_BACK, "undeployed")
"""Events that made a version the champion, and that ended it or its trial."""


@dataclass(frozen=True)
class Decision:
    """What became of a canary, and why.

    Attributes:
        decision: ``promoted``, ``rolled_back`` or ``left``; ``step`` for one that goes on.
        reasons: In words.
        findings: The comparisons.
        percent: The canary's share when it was decided.
        canary: The canary's counts of the step.
        stable: What they were compared with.
        watched_s: Seconds since the rollout began.
    """

    decision: str
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    percent: int = 0
    canary: Counts = field(default_factory=Counts)
    stable: Counts = field(default_factory=Counts)
    watched_s: float = 0.0

    def numbers(self) -> dict[str, Any]:
        """The fields of an event in the model's history; JSON values."""
        return {
            "reasons": list(self.reasons),
            "percent": self.percent,
            "watched_s": round(self.watched_s, 1),
            "canary": self.canary.to_dict(),
            "stable": self.stable.to_dict(),
            "findings": [asdict(finding) for finding in self.findings],
        }


@dataclass(frozen=True)
class Question:
    """The last step waits for a person.

    Attributes:
        body: What there is to know, Markdown.
    """

    body: str


@dataclass(frozen=True)
class Waiting:
    """Nothing is due yet.

    Attributes:
        text: What is waited for.
        until: When to look again at the latest, seconds since 1970.
        requests: What the server will have counted of the canary when a look is due earlier; None: only time counts.
        server_since: The server's start that this number belongs to: another one is a reason to look.
    """

    text: str
    until: float
    requests: int | None = None
    server_since: float | None = None


Outcome = Decision | Question | Waiting


def recorded_decision(record: ModelRecord, model_name: str, version: int) -> Decision:
    """What an earlier look, or somebody else, has decided on a version that is no challenger.

    Raises:
        BadInput: nobody has: it is none of this store's.
    """
    ends = [e for e in record.history if e["version"] == version and e["event"] in (*_TAKEN, *_TAKEN_OUT)]
    if not ends:
        raise BadInput(
            f"model {model_name!r}: version {version} is neither challenger nor champion and was not rolled back; the "
            "deployment is not of this store"
        )
    event = ends[-1]
    return Decision(
        decision=PROMOTED if event["event"] in _TAKEN else ROLLED_BACK,
        reasons=tuple(event.get("reasons") or [event["why"]]),
        findings=tuple(Finding(**finding) for finding in event.get("findings") or ()),
        percent=event.get("percent", 0),
        canary=Counts.from_dict(_mapping(event.get("canary"))),
        stable=Counts.from_dict(_mapping(event.get("stable"))),
        watched_s=event.get("watched_s", 0.0),
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
