"""States of DAG runs: their stages, and reasons of failures."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from fastapi import HTTPException
from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from airflow_hops.airflow_internals.database import (
    XCOM_IS_CURRENT,
    DagRun,
    TaskInstance,
    XComModel,
    instance_columns,
)
from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.evaluation import EvaluationProperties, ModelReference
from airflow_hops.core.web import REFUSED_KEY
from airflow_hops.runner.progress import TaskProgress
from airflow_hops.web.artifacts.lookup import hook_of, reaching
from airflow_hops.web.artifacts.tasks import PipelineDag, ReturnedArtifact, producer_in, returned_by_tasks
from airflow_hops.web.types import Model, Number, RunFacts
from airflow_hops.web.unusable_files import reading_threads

_TELLING = (
    "failed", "upstream_failed", "awaiting_input", "running", "up_for_retry", "restarting", "deferred",
    "up_for_reschedule", "queued", "scheduled", "none", "success", "skipped", "removed",
)  # fmt: skip
"""States in order of precedence, for tasks whose instances differ."""


_REFUSING = ("evaluation", "rollout")
"""Kinds of artifacts that may refuse a model."""


class StageState(Model):
    """A task of a run; for a mapped task, the combined state of its instances."""

    task_id: str
    stage: str | None
    state: str
    instances: int
    ended: int
    """Number of instances that have ended in any state."""


class TaskVerdict(Model):
    """A task of a run that failed, or refused its model without failing."""

    task_id: str
    map_index: int
    iteration: int
    verdict: Literal["failed", "not blessed", "rolled back"]
    why: str | None
    """Error message of the task, null if it left none; or reasons of the refusal."""


class LastRun(RunFacts):
    """One of the newest runs of a DAG."""

    duration_s: Number
    """Duration so far if it has not ended."""
    refusals: list[TaskVerdict]
    stages: list[StageState]
    """In the order of the DAG file, without other packages' tasks."""
    failure: TaskVerdict | None
    """The first failed task."""


def last_runs(session: Session, pipelines: Collection[PipelineDag], last: int = 1) -> dict[str, list[LastRun]]:
    """Returns the newest runs of each pipeline, by DAG, newest first."""
    by_dag = {pipeline.dag_id: pipeline for pipeline in pipelines}
    rank = func.row_number().over(partition_by=DagRun.dag_id, order_by=(DagRun.run_after.desc(), DagRun.id.desc()))
    ranked = select(DagRun.id, rank.label("rank")).where(DagRun.dag_id.in_(by_dag)).subquery()
    newest = select(DagRun).join(ranked, DagRun.id == ranked.c.id).where(ranked.c.rank <= last).order_by(ranked.c.rank)
    runs = session.scalars(newest).all()
    stages = _stages(session, runs, by_dag)
    failures = _failures(session, [run for run in runs if str(run.state) == "failed"], by_dag)
    judged = returned_by_tasks(
        session,
        [
            (run.dag_id, run.run_id, task.task_id)
            for run in runs
            for task in by_dag[run.dag_id].tasks
            if task.kind is None or task.kind in _REFUSING  # None: only the task knows
        ],
    )
    by_run: dict[tuple[str, str], list[ReturnedArtifact]] = {}
    for each in judged:
        by_run.setdefault((each.dag_id, each.run_id), []).append(each)
    results: dict[str, list[LastRun]] = {}
    for run in runs:
        named = (run.dag_id, run.run_id)
        results.setdefault(run.dag_id, []).append(
            LastRun.of_run(
                run,
                duration_s=((run.end_date or datetime.now(UTC)) - run.start_date).total_seconds()
                if run.start_date
                else None,
                refusals=refusals_in(by_run.get(named, [])),
                stages=stages.get(named, []),
                failure=failures.get(named),
            )
        )
    return results


def refusals_in(returned: Iterable[ReturnedArtifact]) -> list[TaskVerdict]:
    """Returns the refusals among the artifacts that a run's tasks returned, in their order."""
    return [
        TaskVerdict.of(each, verdict=verdict, why=why_refused(each.artifact))
        for each in returned
        if (verdict := verdict_against(each.artifact)) is not None
    ]


def verdict_against(artifact: Artifact) -> Literal["not blessed", "rolled back"] | None:
    """Returns the verdict of an artifact that refuses a model; None otherwise, or if the candidate is the champion."""
    if artifact.kind == "rollout" and artifact.properties.get("decision") == "rolled_back":
        return "rolled back"
    if artifact.kind != "evaluation" or artifact.properties.get("blessed") is not False:
        return None
    candidate, champion = compared_models(artifact)
    return None if champion is not None and champion.fingerprint == candidate.fingerprint else "not blessed"


def why_refused(artifact: Artifact) -> str:
    """Returns the reasons of an artifact that refuses a model."""
    reasons = artifact.properties.get("reasons")
    return "; ".join(map(str, reasons)) if isinstance(reasons, list | tuple) else ""


def compared_models(evaluation: Artifact) -> tuple[ModelReference, ModelReference | None]:
    """Returns candidate and champion of an evaluation; an empty candidate if a user's own task names neither."""
    try:
        properties = EvaluationProperties.of(evaluation)
    except BadInput:
        return ModelReference(), None
    return properties.candidate, properties.champion


def skip_reasons(session: Session, dag_id: str, run_id: str) -> dict[Producer, str]:
    """Returns the reasons of a run's skipped tasks, as far as they gave any."""
    left = session.execute(
        select(*instance_columns(XComModel), XComModel.value).where(
            XComModel.dag_id == dag_id, XComModel.run_id == run_id, XComModel.key == REFUSED_KEY, XCOM_IS_CURRENT
        )
    )
    results = ((producer_in(row), XComModel.deserialize_value(row)) for row in left)
    return {task: str(value["reason"]) for task, value in results if isinstance(value, Mapping) and value.get("reason")}


def progress_of(pipeline: PipelineDag, producer: Producer, try_number: int) -> TaskProgress | None:
    """Returns the progress of a try; None if there is none. If it cannot be read, its error says so."""
    try:
        store = hook_of(pipeline.conn_id(producer.task_id)).store
        with reaching(store, f"the report of {producer.task}"):
            reported = TaskProgress.read(store, producer)
            (reported.error or "" if reported else "").encode()  # a page must be able to show it
    except HTTPException as error:
        return TaskProgress(try_number, 0.0, error=f"what it reported is not known, because {error.detail}")
    return reported if reported is not None and reported.try_number == try_number else None


def _stages(
    session: Session, runs: Iterable[DagRun], pipelines: Mapping[str, PipelineDag]
) -> dict[tuple[str, str], list[StageState]]:
    named = [(run.dag_id, run.run_id) for run in runs]
    states: dict[tuple[str, str, str], dict[str, int]] = {}
    columns = (TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.state)
    counted = (
        select(*columns, func.count())
        .where(tuple_(TaskInstance.dag_id, TaskInstance.run_id).in_(named))
        .group_by(*columns)
    )
    for dag_id, run_id, task_id, state, count in session.execute(counted):
        states.setdefault((dag_id, run_id, task_id), {})[str(state or "none")] = count
    return {
        (dag_id, run_id): [
            _stage(task.task_id, task.stage, states[dag_id, run_id, task.task_id])
            for task in pipelines[dag_id].tasks
            if (dag_id, run_id, task.task_id) in states
        ]
        for dag_id, run_id in named
    }


def _stage(task_id: str, stage: str | None, counts: Mapping[str, int]) -> StageState:
    state = min(counts, key=lambda each: _TELLING.index(each) if each in _TELLING else len(_TELLING))
    through = ("success", "failed", "skipped", "upstream_failed", "removed")
    ended = sum(count for each, count in counts.items() if each in through)
    return StageState(task_id=task_id, stage=stage, state=state, instances=sum(counts.values()), ended=ended)


def _failures(
    session: Session, runs: Collection[DagRun], pipelines: Mapping[str, PipelineDag]
) -> dict[tuple[str, str], TaskVerdict]:
    named = [(run.dag_id, run.run_id) for run in runs]
    failed = session.execute(
        select(*instance_columns(TaskInstance), TaskInstance.try_number)
        .where(tuple_(TaskInstance.dag_id, TaskInstance.run_id).in_(named), TaskInstance.state == "failed")
        .order_by(TaskInstance.end_date)
    )
    first = {(row.dag_id, row.run_id): row for row in reversed(failed.all())}

    def why(row: Any) -> str | None:
        reported = progress_of(pipelines[row.dag_id], producer_in(row), row.try_number)
        return reported.error if reported else None

    with reading_threads() as readers:
        reasons = list(readers.map(why, first.values()))
    return {
        run: TaskVerdict.of(row, verdict="failed", why=reason)
        for (run, row), reason in zip(first.items(), reasons, strict=True)
    }
