"""The history of a model's record, as the pages show it: how what serves came to serve."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from airflow_hops.core.contract.model_record import ModelRecord
from airflow_hops.web.types import Json, Model, Number, Time


class DecidedBy(Model):
    """The person or task that decided; for a DAG that the user may not read, only that it was another one."""

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
    to: int | None = None
    """The version that a rollback went to."""
    traffic: dict[str, int] | None = None
    """The shares that were decided, version to percent."""
    reasons: list[str] = []
    percent: int | None = None
    """The canary's share when it was judged."""
    watched_s: Number = None
    canary: AskedCounts | None = None
    stable: AskedCounts | None = None
    findings: list[Finding] = []


class Rollout(Model):
    """A canary under evaluation."""

    version: int
    began: Time
    steps: int
    """How many there are to be."""
    number: int
    """Number of the step under way, from 1."""
    percent: int
    since: Time
    """When this step began."""
    canary: AskedCounts
    """Canary of this step."""
    stable: AskedCounts
    doubts: list[str]
    waits_for_approval: bool


def decisions_of(record: ModelRecord, readable: Collection[str]) -> list[Decision]:
    """The history, the newest first.

    Args:
        record: The model's record.
        readable: DAGs that the user may read; what another decided is told without who it was.
    """
    # What a newer version has added may mean something else by a name of ours.
    events = [replace(event, more={}) for event in reversed(record.history)]
    return [Decision(**{**event.to_dict(), "by": _by(event.by, readable)}) for event in events]


def rollout_of(record: ModelRecord) -> Rollout | None:
    """The rollout that is under way, or None."""
    challenger, champion = record.challenger, record.champion
    progress = challenger.rollout if challenger else None
    if challenger is None or champion is None or progress is None:
        return None
    return Rollout.of(
        progress,
        version=challenger.version,
        canary=progress.counts(challenger.version).to_dict(),
        stable=progress.counts(champion.version).to_dict(),
        waits_for_approval=progress.passed is not None and not progress.approval,
    )


def _by(by: Mapping[str, str] | str | None, readable: Collection[str]) -> DecidedBy | None:
    if by is None:
        return None
    known = {"user": by} if isinstance(by, str) else by if by.get("dag_id") in readable else {}
    return DecidedBy(**{name: known.get(name) for name in DecidedBy.model_fields})
