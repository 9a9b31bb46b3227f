"""Outcomes of a poll: an idempotent decision, a question, or waiting."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace

from airflow_hops.core.errors import HopsError, ModelNotFound
from airflow_hops.core.models.model_record import ModelRecord
from airflow_hops.core.rollout.decision import LEFT, PROMOTED, ROLLED_BACK, RolloutDecision
from airflow_hops.ml.model_server import ModelServer
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.tracking import ModelRegistry

_TAKEN, _TAKEN_OUT = (PROMOTED, "deployed"), (ROLLED_BACK, "undeployed")
"""Events that made a version the champion, and that ended it or its trial."""

_IN_EFFECT_S = 10.0
"""Time for a server to read its traffic file, before its other versions are unloaded anyway."""


@dataclass(frozen=True)
class Waiting:
    """State without pending actions.

    Attributes:
        text: Description for people.
        until: Latest time of the next poll, seconds since 1970.
        requests: The server's count of canary requests at which an earlier poll is due; None: only time counts.
        server_since: Start of the server that counted ``requests``; after a restart a poll is due.
    """

    text: str
    until: float
    requests: int | None = None
    server_since: float | None = None


Outcome = RolloutDecision | Waiting | str
"""A text is the Markdown of a question: whether a person approves the last step."""


def recorded_decision(record: ModelRecord, model_name: str, version: int) -> RolloutDecision:
    """Returns the recorded decision on a version that is not a challenger any more.

    Raises:
        BadInput: the version does not belong to this store.
    """
    ends = [e for e in record.history if e.version == version and e.event in (*_TAKEN, *_TAKEN_OUT)]
    if not ends:
        raise ModelNotFound(model_name, version).with_text(
            f"model {model_name!r}: version {version} is neither challenger nor champion and was not rolled back; the "
            "deployment does not belong to this store"
        )
    event = ends[-1]
    decided = event.decision or RolloutDecision(event.event, ())
    return replace(
        decided, decision=PROMOTED if event.event in _TAKEN else ROLLED_BACK, reasons=decided.reasons or (event.why,)
    )


def enforce(server: ModelServer, model_name: str, record: ModelRecord) -> None:
    """Sets the recorded shares on the server if they differ."""
    if record.traffic and server.shares.read(model_name) != record.traffic:
        server.set_traffic(model_name, record.traffic)


def settle(
    context: StepContext,
    server: ModelServer,
    model_name: str,
    version: int,
    record: ModelRecord,
    decision: RolloutDecision,
    keep_versions: int,
) -> None:
    """Applies a recorded decision; if a successor is already a challenger, only to the registry.

    ``keep_versions`` is the number of versions that stay loaded, including the champion.

    Raises:
        HopsError: MLflow, or a server that is configured by RPC, is unavailable.
    """
    champion = record.champion
    if champion is None:
        return
    if record.challenger is None:
        enforce(server, model_name, record)
        _wait_for_traffic(server, model_name, champion.version)
        server.set_labels(model_name, {"stable": champion.version})
        configured = server.configured(model_name)
        former = [v for v in record.champions() if v != champion.version and v in configured and server.keeps_former]
        wanted = sorted([champion.version, *former[: keep_versions - 1]])
        if configured != wanted:
            server.serve(model_name, wanted)
    if decision.decision == LEFT:
        enforce(server, model_name, record)
    else:
        registry = ModelRegistry(context.spec.services.get("tracking_uri", ""), model_name)
        challenger = record.challenger.version if record.challenger else None
        registry.point_aliases(champion.version, challenger)
        registry.tag(version, "hops.rollout", decision.decision)
        registry.tag(version, "hops.rollout_reasons", "; ".join(decision.reasons)[:5000])


def _wait_for_traffic(server: ModelServer, model_name: str, version: int) -> None:
    """Waits until all requests go to a version; returns at once if the server is away, since it gets no requests."""
    deadline_s = time.monotonic() + _IN_EFFECT_S
    with contextlib.suppress(HopsError):
        while time.monotonic() < deadline_s:
            shares = {v: entry.get("traffic_percent") for v, entry in server.counts(model_name).items()}
            if {v: share for v, share in shares.items() if share} in ({version: 100.0}, {}):
                return
            time.sleep(0.05)
