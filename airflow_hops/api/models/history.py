"""The history of a model's record, as the pages show it: how what serves came to serve."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_hops.api.types import Json, Model, Number, Time
from airflow_hops.contract.model_record import ModelEvent, ModelRecord
from airflow_hops.contract.rollout.counts import Counts
from airflow_hops.contract.rollout.decision import Finding as JudgedFinding


class DecidedBy(Model):
    """Who decided: a person, or a task; for a DAG that the user may not read, only that it was another one."""

    user: str | None
    dag_id: str | None
    run_id: str | None
    task_id: str | None


class AskedCounts(Model):
    """Requests to a version at the time of a decision."""

    requests: int
    errors: int
    """Those that failed."""
    client_errors: int
    """Those that were refused as the client's mistake."""
    latency_ms_p50: Number
    latency_ms_p99: Number


class Finding(Model):
    """A comparison of a canary with the stable version."""

    what: str
    """``errors``, ``refusals``, ``latency_p50``, ``latency_p99``, ``predictions``, ``labels``."""
    verdict: str
    """``ok``, ``doubt``, ``bad`` or ``not_judged``."""
    text: str
    numbers: dict[str, Json]


class Decision(Model):
    """An event of a model's history."""

    at: Time
    event: str
    """``deployed``, ``canary``, ``step``, ``approved``, ``traffic``, ``promoted``, ``rolled_back``, ``left``,
    ``undeployed``."""
    version: int
    why: str
    by: DecidedBy | None
    to: int | None
    """The version that a rollback went to."""
    traffic: dict[str, int] | None
    """The shares that were decided, version to percent."""
    reasons: list[str]
    percent: int | None
    """The canary's share when it was judged."""
    watched_s: Number
    canary: AskedCounts | None
    stable: AskedCounts | None
    findings: list[Finding]


class Rollout(Model):
    """A canary under evaluation."""

    version: int
    began: Time
    steps: int
    """How many there are to be."""
    number: int
    """Of the step under way, from 1."""
    percent: int
    since: Time
    """When this step began."""
    canary: AskedCounts
    """Of this step."""
    stable: AskedCounts
    doubts: list[str]
    waits_for_approval: bool


def decisions_of(record: ModelRecord, readable: Collection[str]) -> list[Decision]:
    """The history, the newest first.

    Args:
        record: The model's record.
        readable: DAGs that the user may read; what another decided is told without who it was.
    """
    return [_decision(entry, readable) for entry in reversed(record.history)]


def rollout_of(record: ModelRecord) -> Rollout | None:
    """The rollout that is under way, or None."""
    challenger, champion = record.challenger, record.champion
    progress = challenger.rollout if challenger else None
    if challenger is None or champion is None or progress is None:
        return None
    return Rollout(
        version=challenger.version,
        began=progress.began,  # type: ignore[arg-type]  # read from ISO 8601, as is since
        steps=progress.steps,
        number=progress.number,
        percent=progress.percent,
        since=progress.since,  # type: ignore[arg-type]
        canary=_counts(progress.counts(challenger.version)),
        stable=_counts(progress.counts(champion.version)),
        doubts=list(progress.doubts),
        waits_for_approval=progress.passed is not None and not progress.approval,
    )


def _decision(event: ModelEvent, readable: Collection[str]) -> Decision:
    decided = event.decision
    return Decision(
        at=event.at,  # type: ignore[arg-type]  # read from ISO 8601
        event=event.event,
        version=event.version,
        why=event.why,
        by=_by(event.by, readable),
        to=event.to,
        traffic=None if event.traffic is None else {str(v): percent for v, percent in event.traffic.items()},
        reasons=list(decided.reasons) if decided else [],
        percent=decided.percent if decided else None,
        watched_s=decided.watched_s if decided else None,
        canary=_counts(decided.canary) if decided else None,
        stable=_counts(decided.stable) if decided else None,
        findings=[_finding(finding) for finding in decided.findings] if decided else [],
    )


def _finding(found: JudgedFinding) -> Finding:
    return Finding(what=found.what, verdict=found.verdict, text=found.text, numbers=dict(found.numbers))


def _by(by: Mapping[str, str] | str | None, readable: Collection[str]) -> DecidedBy | None:
    if isinstance(by, str):  # who approved a rollout's last step
        return DecidedBy(user=by, dag_id=None, run_id=None, task_id=None)
    if by is None:
        return None
    named = {name: by.get(name) for name in ("user", "dag_id", "run_id", "task_id")}
    if named["dag_id"] not in readable:
        return DecidedBy(user=None, dag_id=None, run_id=None, task_id=None)
    return DecidedBy(**named)


def _counts(counts: Counts) -> AskedCounts:
    return AskedCounts(
        requests=counts.requests,
        errors=counts.errors,
        client_errors=counts.client_errors,
        latency_ms_p50=counts.latency.quantile_ms(0.5),
        latency_ms_p99=counts.latency.quantile_ms(0.99),
    )
