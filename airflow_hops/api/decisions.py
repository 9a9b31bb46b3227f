"""How what serves came to serve: the history of a model's record, as the pages show it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from airflow_hops.api.model_records import ModelRecord
from airflow_hops.api.types import Json, Model, Number, Time


class DecidedBy(Model):
    """Who decided: a person, or a task; of a DAG that the user may not read, only that it was another one."""

    user: str | None
    dag_id: str | None
    run_id: str | None
    task_id: str | None


class AskedCounts(Model):
    """What a version had been asked when it was decided."""

    requests: int
    errors: int
    latency_ms_p50: Number
    latency_ms_p99: Number


class Finding(Model):
    """A comparison of a canary with the stable version."""

    what: str
    """``errors``, ``latency_p50``, ``latency_p99``, ``predictions``, ``labels``."""
    verdict: str
    """``ok``, ``doubt`` or ``bad``."""
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
    """A canary that is being judged."""

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
    progress = (challenger or {}).get("rollout")
    if challenger is None or champion is None or not progress:
        return None
    seen = progress.get("seen") or {}
    return Rollout(
        version=challenger["version"],
        began=progress["began"],
        steps=progress["steps"],
        number=progress["number"],
        percent=progress["percent"],
        since=progress["since"],
        canary=_counts(seen.get(str(challenger["version"])) or {}),
        stable=_counts(seen.get(str(champion["version"])) or {}),
        doubts=list(progress.get("doubts") or []),
        waits_for_approval=progress.get("passed") is not None and not progress.get("approval"),
    )


def _decision(entry: Mapping[str, Any], readable: Collection[str]) -> Decision:
    counts = {name: _counts(entry[name]) if entry.get(name) else None for name in ("canary", "stable")}
    traffic = entry.get("traffic")
    return Decision(
        at=entry["at"],
        event=entry["event"],
        version=entry["version"],
        why=str(entry.get("why") or ""),
        by=_by(entry.get("by"), readable),
        to=entry.get("to"),
        traffic=None if traffic is None else {str(version): percent for version, percent in traffic.items()},
        reasons=list(entry.get("reasons") or []),
        percent=entry.get("percent"),
        watched_s=entry.get("watched_s"),
        findings=[Finding.model_validate(finding) for finding in entry.get("findings") or []],
        **counts,
    )


def _by(by: Any, readable: Collection[str]) -> DecidedBy | None:
    if isinstance(by, str):  # who approved a rollout's last step
        return DecidedBy(user=by, dag_id=None, run_id=None, task_id=None)
    if not isinstance(by, Mapping):
        return None
    named = {name: by.get(name) for name in ("user", "dag_id", "run_id", "task_id")}
    if named["dag_id"] not in readable:
        return DecidedBy(user=None, dag_id=None, run_id=None, task_id=None)
    return DecidedBy(**named)


def _counts(value: Mapping[str, Any]) -> AskedCounts:
    return AskedCounts(
        requests=value.get("requests", 0),
        errors=value.get("errors", 0),
        latency_ms_p50=value.get("latency_ms_p50"),
        latency_ms_p99=value.get("latency_ms_p99"),
    )
