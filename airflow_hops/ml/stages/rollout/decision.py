"""Outcomes of a poll: a decision, a question to a person, or waiting."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.model_record import ModelRecord
from airflow_hops.core.contract.rollout.decision import PROMOTED, ROLLED_BACK, Decision

_TAKEN, _TAKEN_OUT = (PROMOTED, "deployed"), (ROLLED_BACK, "undeployed")
"""Events that made a version the champion, and that ended it or its trial."""


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
    """Returns the decision that an earlier poll, or somebody else, recorded for a version that is no challenger.

    Raises:
        BadInput: nobody has: it is none of this store's.
    """
    ends = [e for e in record.history if e.version == version and e.event in (*_TAKEN, *_TAKEN_OUT)]
    if not ends:
        raise BadInput(
            f"model {model_name!r}: version {version} is neither challenger nor champion and was not rolled back; the "
            "deployment is not of this store"
        )
    event = ends[-1]
    decided = event.decision or Decision(event.event, ())
    return replace(
        decided,
        decision=PROMOTED if event.event in _TAKEN else ROLLED_BACK,
        reasons=decided.reasons or (event.why,),
    )
