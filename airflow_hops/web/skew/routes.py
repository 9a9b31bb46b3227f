"""Skew over time: a pipeline's comparisons, their results by feature, and the decisions about them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Query
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.airflow_internals.database import TaskInstance, create_session, instance_columns
from airflow_hops.core.models.model_record import record_uri
from airflow_hops.core.skew import REPORT_FILE, SkewProperties
from airflow_hops.core.store import ArtifactStore
from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS, MayRead, ReadableDags, may_read, may_read_results
from airflow_hops.web.artifacts.lookup import hook_of, missing_state, pipeline_of, reaching
from airflow_hops.web.artifacts.routes import ArtifactAddress
from airflow_hops.web.artifacts.tasks import (
    PipelineDag,
    ReturnedArtifact,
    StageTask,
    producer_in,
    read_pipelines,
    returned_by_task,
    together,
)
from airflow_hops.web.models.records import Decision, decisions_of, read_model_record
from airflow_hops.web.runs.states import progress_of
from airflow_hops.web.skew.report import FeatureFigures, read_report
from airflow_hops.web.skew.retraining import MonitorDecision, decisions
from airflow_hops.web.types import Model, Number, Offset, Page, TaskAddress, Time, whole
from airflow_hops.web.unusable_files import reading_threads

_MONITORS = ("skew", "performance")
_BEFORE = "it did not run, since a task before it failed"
_MOST = 50


class MonitorFailure(Model):
    """A monitoring task that failed, or did not run because an upstream task failed."""

    task: TaskAddress
    at: Time
    message: str | None
    """Error message of the task; null if it left none."""


def monitor_failures(
    session: Session, pipeline: PipelineDag, since: datetime | None
) -> tuple[list[MonitorFailure], int]:
    """Returns the newest failures of a DAG's monitoring tasks, oldest first, and the total number of failures.

    Failures before ``since`` are left out.
    """
    instance = TaskInstance
    task_ids = [task.task_id for task in pipeline.tasks if task.kind in _MONITORS]
    rows = session.execute(
        select(*instance_columns(instance), instance.try_number, instance.end_date, instance.state)
        .add_columns(func.count().over().label("total"))
        .where(instance.dag_id == pipeline.dag_id, instance.task_id.in_(task_ids), instance.end_date.is_not(None))
        .where(instance.state.in_(("failed", "upstream_failed")))
        .where(*([] if since is None else [instance.end_date >= since]))
        .order_by(instance.end_date.desc())
        .limit(_MOST)
    ).all()
    makers = [producer_in(row) for row in rows]
    with reading_threads() as readers:
        reports = list(readers.map(lambda by, row: progress_of(pipeline, by, row.try_number), makers, rows))
    results = [
        MonitorFailure(
            task=TaskAddress.of(by),
            at=row.end_date,
            # An error of an earlier try does not explain why this one did not run.
            message=_BEFORE if row.state == "upstream_failed" else report.error if report else None,
        )
        for by, row, report in zip(makers, rows, reports, strict=True)
    ]
    return results[::-1], rows[0].total if rows else 0


router = APIRouter(prefix="/api/dags/{dag_id}/skew", tags=["skew"], dependencies=[READS_RUNS, READS_ARTIFACTS])
_CHANGES = {"deployed", "canary", "promoted", "rolled_back", "undeployed", "left"}
"""Events of a model's record that start or end the serving of a version."""

Checks = Annotated[int, Query(ge=1, le=200, description="Maximum number of comparisons, newest first")]
Source = Annotated[
    str | None, Query(max_length=512, description="``<dag_id>/<task_id>`` of the task that compares; the newest's")
]


class SkewSource(Model):
    """A task that compares data."""

    dag_id: str
    task_id: str
    model: str | None
    """Served model whose requests it compares; null if it compares two spans."""
    checks: int


class SkewCheck(ArtifactAddress):
    """A comparison. The address is that of its report."""

    fingerprint: str
    at: Time
    verdict: str
    rows_reference: int | None
    rows_current: int | None
    min_rows: int | None
    model: str | None
    version: int | None
    """Version whose training data was used; null if two spans were compared."""
    versions: dict[str, int]
    """Rows by the version that answered them."""
    window_start: Time | None
    window_end: Time | None
    """End of the data's time window."""
    captured_until: Time | None
    """End of the time in which the requests were served."""
    drifted: list[str]
    lost: list[str]
    skewed: list[str]
    """Features that differ from the training data row by row."""
    causes: dict[str, str]
    effects: dict[str, Number]
    problem: str | None
    """Type of the model's label, to which the effects refer; null in comparisons of earlier versions."""
    decision: MonitorDecision | None


class SkewTimeline(Page[SkewCheck]):
    """The newest comparisons of a task, oldest first."""

    sources: list[SkewSource] = []
    source: SkewSource | None = None
    # Not `Number`, which validates each of hundreds of thousands; the serializer writes NaN as null anyway.
    features: dict[str, tuple[list[float | None], list[float | None]]] = {}
    """Scores and thresholds of a feature by comparison; null if it was not compared."""
    serving: dict[str, int | None] = {}
    """Version that serves, by model; null if none does. Models whose record cannot be read are among the problems."""
    events: dict[str, list[Decision]] = {}
    """Events that started or ended the serving of a version, by model, newest first."""
    failures: list[MonitorFailure] = []
    """Newest failures of the DAG's monitoring tasks since the oldest listed comparison, or all if none is left out."""
    total_failures: int = 0


class FeaturePoint(FeatureFigures):
    """A feature in one comparison."""

    fingerprint: str
    """Fingerprint of the comparison."""
    state: Literal["compared", "not_compared", "deleted", "unreachable"]


_Task = tuple[SkewSource, PipelineDag, StageTask]
"""A task that compares data, and its pipeline."""


@router.get("")
def get_skew_timeline(
    user: GetUserDep, readable: ReadableDags, dag_id: str, source: Source = None, limit: Checks = 50, offset: Offset = 0
) -> SkewTimeline:
    """Returns the results of one of the pipeline's monitoring tasks over time."""
    with create_session() as session:
        tasks = _tasks(session, user, dag_id, readable)
        chosen = _chosen(tasks, source)
        if chosen is None:
            return SkewTimeline(total_entries=0, entries=[])
        described, pipeline, _ = chosen
        total, result = _returned(session, described, limit, offset)
        visible = MayRead(user, DagAccessEntity.XCOM)
        decided = decisions(session, pipeline, result, visible)
        since = result[0].at if 0 < len(result) < total else None
        report = pipeline.dag_id in may_read_results(user)
        failures, failed = monitor_failures(session, pipeline, since) if report else ([], 0)
    properties = [SkewProperties.of(each.artifact) for each in result]
    scores = [each.scores for each in properties]
    names = dict.fromkeys(name for check in reversed(scores) for name in check)
    nothing = (None, None)
    serving, events, problems = _served(chosen, properties, visible)
    problems += [] if report else [f"whether monitors failed, because you may not read tasks of {pipeline.dag_id}"]
    return SkewTimeline(
        total_entries=total,
        sources=[each for each, *_ in tasks],
        source=described,
        entries=[check_of(each, facts, decided.get(each.task)) for each, facts in zip(result, properties, strict=True)],
        features={
            name: ([check.get(name, nothing)[0] for check in scores], [check.get(name, nothing)[1] for check in scores])
            for name in names
        },
        serving=serving,
        events=events,
        problems=problems,
        failures=failures,
        total_failures=failed,
    )


@router.get("/feature")
def get_feature_history(
    user: GetUserDep,
    readable: ReadableDags,
    dag_id: str,
    feature: Annotated[str, Query(min_length=1, max_length=4096)],
    source: Source = None,
    limit: Checks = 50,
    offset: Offset = 0,
) -> Page[FeaturePoint]:
    """Returns the same comparisons for one feature, oldest first: p-values, missing values, other measures."""
    with create_session() as session:
        chosen = _chosen(_tasks(session, user, dag_id, readable), source)
        if chosen is None:
            return Page[FeaturePoint](total_entries=0, entries=[])
        total, result = _returned(session, chosen[0], limit, offset)
    store = hook_of(chosen[2].hops_conn_id).store
    with reading_threads() as readers:
        points = list(readers.map(lambda each: _point(store, each, feature), result))
    return Page[FeaturePoint](total_entries=total, entries=points)


def _tasks(session: Session, user: GetUserDep, dag_id: str, readable: Iterable[str]) -> list[_Task]:
    """Returns the tasks that compare data of a pipeline, in DAGs that the user may read; the last active first."""
    own = pipeline_of(session, dag_id)
    others = read_pipelines(session, [name for name in readable if name != dag_id]).values()
    watching = [each for each in together(others, own.models()) if may_read(user, each.dag_id, DagAccessEntity.XCOM)]
    tasks: list[tuple[float, _Task]] = []
    for pipeline in (own, *watching):
        for task in pipeline.tasks:
            if task.kind == "skew":
                total, newest = returned_by_task(session, pipeline.dag_id, task.task_id, 1, 0)
                source = SkewSource(dag_id=pipeline.dag_id, task_id=task.task_id, model=task.model_name, checks=total)
                tasks.append((newest[0].at.timestamp() if newest else 0.0, (source, pipeline, task)))
    return [task for _, task in sorted(tasks, key=lambda each: each[0], reverse=True)]


def _chosen(tasks: Sequence[_Task], source: str | None) -> _Task | None:
    if source is None:
        return tasks[0] if tasks else None
    names = {f"{task[0].dag_id}/{task[0].task_id}": task for task in tasks}
    if source not in names:
        listed = ", ".join(names) or "none"
        raise HTTPException(422, f"source is {source!r}, expected a task that compares: {listed}")
    return names[source]


def _returned(session: Session, task: SkewSource, limit: int, offset: int) -> tuple[int, list[ReturnedArtifact]]:
    total, newest = returned_by_task(session, task.dag_id, task.task_id, limit, offset)
    return total, [each for each in reversed(newest) if each.artifact.kind == "skew"]


def check_of(returned: ReturnedArtifact, of: SkewProperties, decision: MonitorDecision | None = None) -> SkewCheck:
    """Returns a comparison from its artifact and the properties of this."""
    metrics = returned.artifact.metrics
    window = (of.windows or {}).get("current") or (of.window_start, of.window_end)
    return SkewCheck.of(
        of,
        returned,
        returned.artifact,
        rows_reference=whole(metrics.get("rows_reference")),
        rows_current=whole(metrics.get("rows_current")),
        model=of.reference.model,
        version=of.reference.version,
        versions=of.versions or {},
        window_start=window[0],
        window_end=window[1],
        decision=decision,
    )


def _served(
    chosen: _Task, described: Sequence[SkewProperties], readable: Container[str]
) -> tuple[dict[str, int | None], dict[str, list[Decision]], list[str]]:
    """Returns what serves of the compared models, the events that changed it, and why this is unknown of a model."""
    _, pipeline, task = chosen
    names = {each.reference.model for each in described} | {task.model_name} | {name for _, name in pipeline.models()}
    serving: dict[str, int | None] = {}
    events, problems = dict[str, list[Decision]](), list[str]()
    for model in sorted(name for name in names if name):
        try:
            store = hook_of(task.hops_conn_id).store
            record = read_model_record(store, model)
            with reaching(store, record_uri(store, model)):
                events[model] = [each for each in decisions_of(record, readable) if each.event in _CHANGES]
            serving[model] = record.champion.version if record.champion else None
        except HTTPException as error:
            problems.append(f"which version of {model} serves, because {error.detail}")
    return serving, events, problems


def _point(store: ArtifactStore, returned: ReturnedArtifact, feature: str) -> FeaturePoint:
    known = {"name": feature, "fingerprint": returned.artifact.fingerprint}
    try:
        report = read_report(store, returned.artifact)
        with reaching(store, f"{returned.artifact.uri}/{REPORT_FILE}"):
            figures = report["features"].get(feature)
            state = "not_compared" if figures is None else "compared"
            return FeaturePoint.model_validate({**(figures or {}), **known, "state": state})
    except HTTPException as error:
        missing = {"state": missing_state(error), "detail": str(error.detail)}
        return FeaturePoint.model_validate({**known, **missing})
