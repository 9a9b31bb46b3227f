"""Decisions about comparisons: whether a retraining was requested, and the reasons."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from airflow_hops.airflow_internals.database import (
    XCOM_IS_CURRENT,
    XCOM_RETURN_KEY,
    AssetEvent,
    TaskInstance,
    XComModel,
    instance_columns,
)
from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.retraining.conditions import Finding
from airflow_hops.core.skew import SkewProperties
from airflow_hops.core.web import REFUSED_KEY
from airflow_hops.web.artifacts.tasks import PipelineDag, ReturnedArtifact, producer_in
from airflow_hops.web.types import Model, RunAddress, TaskAddress, Time

_ENDED = {"success": "requested", "skipped": "refused", "failed": "failed", "upstream_failed": "failed"}


class RetrainingCondition(Model):
    """A condition of the policy."""

    forbids: bool
    """Whether the condition prevents a retraining; otherwise it is a reason for one."""
    condition: str
    held: bool
    text: str


class MonitorDecision(Model):
    """A decision of a monitoring task."""

    outcome: Literal["requested", "refused", "failed", "pending"]
    why: str | None
    """For a refusal: ``monitor``, ``verdict``, the kind of the condition that forbids it, ``in_flight``, ``cooldown``,
    ``budget`` or ``person``; null if unknown.
    """
    reason: str | None
    conditions: list[RetrainingCondition]
    limits: list[str]
    """Descriptions of cooldown, budget and running retraining."""
    window_start: str | None
    """For a request: start of the training data; null for the start of the pipeline's own window."""
    window_end: str | None
    notified: list[str]
    """Events that people were notified of: ``drift``, ``request``, ``stop``."""
    at: Time | None
    task: TaskAddress
    started: list[RunAddress]
    """Runs that the request started, in DAGs that the user may read."""


def decisions(
    session: Session, pipeline: PipelineDag, checks: Sequence[ReturnedArtifact], readable: Container[str]
) -> dict[Producer, MonitorDecision]:
    """Returns the decisions about comparisons, by the task instance that compared."""
    task_ids = [task.task_id for task in pipeline.tasks if task.stage == "retraining"]
    run_ids = {check.run_id for check in checks}
    if not task_ids or not run_ids:
        return {}
    left: dict[Producer, Mapping[str, Any]] = {}
    rows = session.execute(
        select(*instance_columns(XComModel), XComModel.value).where(
            XComModel.dag_id == pipeline.dag_id,
            XComModel.run_id.in_(run_ids),
            XComModel.task_id.in_(task_ids),
            XComModel.key.in_([XCOM_RETURN_KEY, REFUSED_KEY]),
            XCOM_IS_CURRENT,
        )
    )
    for row in rows:
        value = XComModel.deserialize_value(row)
        if isinstance(value, Mapping):
            left[producer_in(row)] = value
    instances = session.execute(
        select(*instance_columns(TaskInstance), TaskInstance.state, TaskInstance.end_date).where(
            TaskInstance.dag_id == pipeline.dag_id, TaskInstance.run_id.in_(run_ids), TaskInstance.task_id.in_(task_ids)
        )
    )
    askers: dict[str, list[Any]] = {}
    for instance in instances:
        askers.setdefault(instance.run_id, []).append(instance)
    started = _started(session, pipeline.dag_id, run_ids, task_ids)
    results = {}
    for check in checks:
        for asker in askers.get(check.run_id, []):
            result = left.get(producer_in(asker), {})
            # The task names the comparison that it decided about, or is the only one that could have.
            named, is_alone = result.get("skew"), len(task_ids) == 1
            fits = asker.map_index in (-1, check.map_index) and asker.iteration in (-1, check.iteration)
            if named == check.artifact.uri or (not named and is_alone and fits):
                task = TaskAddress.of(asker)
                runs = [run for run in started.get((asker.run_id, asker.task_id), []) if run.dag_id in readable]
                results[check.task] = MonitorDecision(
                    **_decided(asker.state, result, check), at=asker.end_date, task=task, started=runs
                )
                break
    return results


def _decided(state: Any, answer: Mapping[str, Any], check: ReturnedArtifact) -> dict[str, Any]:
    """Returns the decision of a task instance about a comparison, from its state and its XCom."""
    outcome, why = _ENDED.get(str(state or ""), "pending"), answer.get("why")
    if outcome == "refused" and why is None:
        why = SkewProperties.of(check.artifact).why_not_learnt
    return {
        "outcome": outcome,
        "why": why,
        "conditions": [
            RetrainingCondition(forbids=bool(number), condition=leaf.condition, held=leaf.held, text=leaf.text)
            for number, result in enumerate(answer.get("findings") or ())
            for leaf in Finding.from_dict(result).leaves()
        ],
        "limits": list(answer.get("limits") or ()),
        "notified": list(answer.get("notified") or ()),
        **{name: answer.get(name) for name in ("reason", "window_start", "window_end")},
    }


def _started(
    session: Session, dag_id: str, run_ids: set[str], task_ids: list[str]
) -> dict[tuple[str, str], list[RunAddress]]:
    events = session.scalars(
        select(AssetEvent)
        .where(
            AssetEvent.source_dag_id == dag_id,
            AssetEvent.source_run_id.in_(run_ids),
            AssetEvent.source_task_id.in_(task_ids),
        )
        .options(selectinload(AssetEvent.created_dagruns))
    )
    results: dict[tuple[str, str], list[RunAddress]] = {}
    for event in events:
        runs = results.setdefault((str(event.source_run_id), str(event.source_task_id)), [])
        runs += [RunAddress(dag_id=run.dag_id, run_id=run.run_id) for run in event.created_dagruns]
    return results
