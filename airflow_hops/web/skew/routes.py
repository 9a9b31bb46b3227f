"""Skew over time: a pipeline's comparisons, their results by feature, and the decisions about them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Query
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.airflow_internals.database import TaskInstance, create_session, instance_columns
from airflow_hops.core.skew import SkewProperties
from airflow_hops.core.store import ArtifactStore
from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS, MayRead, ReadableDags, may_read, may_read_results
from airflow_hops.web.artifacts.lookup import hook_of, pipeline_of
from airflow_hops.web.artifacts.routes import ArtifactAddress, returned_address
from airflow_hops.web.artifacts.tasks import (
    PipelineDag,
    ReturnedArtifact,
    StageTask,
    producer_in,
    read_pipelines,
    returned_by_task,
    together,
)
from airflow_hops.web.models.records import read_model_record
from airflow_hops.web.runs.states import progress_of
from airflow_hops.web.skew.report import FeatureFigures, read_report
from airflow_hops.web.skew.retraining import MonitorDecision, decisions
from airflow_hops.web.types import Model, Number, Offset, Page, RunAddress, TaskAddress, Time, whole
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


class FeatureTimeline(Model):
    """A feature by comparison; null if it was not compared."""

    name: str
    # Not `Number`, which validates each of hundreds of thousands; the serializer writes NaN as null anyway.
    scores: list[float | None]
    thresholds: list[float | None]


class VersionEvent(Model):
    """The start or end of a version's serving."""

    at: Time
    model: str
    event: str
    version: int
    traffic: dict[str, int]
    why: str | None
    """Null if the user may not read the DAG that decided."""
    run: RunAddress | None


class SkewTimeline(Page[SkewCheck]):
    """The newest comparisons of a task, oldest first."""

    sources: list[SkewSource]
    source: SkewSource | None
    features: list[FeatureTimeline]
    events: list[VersionEvent]
    failures: list[MonitorFailure]
    """Newest failures of the DAG's monitoring tasks since the oldest listed comparison, or all if none is left out."""
    total_failures: int | None = 0
    """Null if the user may not see the DAG's task instances."""


class FeaturePoint(FeatureFigures):
    """A feature in one comparison."""

    fingerprint: str
    """Fingerprint of the comparison."""
    state: Literal["compared", "not_compared", "deleted", "unreachable"]


@dataclass(frozen=True)
class _Task:
    """A task that compares data, its pipeline, and its newest artifact."""

    pipeline: PipelineDag
    task: StageTask
    total: int
    newest: ReturnedArtifact | None

    @property
    def name(self) -> str:
        return f"{self.pipeline.dag_id}/{self.task.task_id}"

    def described(self) -> SkewSource:
        return SkewSource(
            dag_id=self.pipeline.dag_id, task_id=self.task.task_id, model=self.task.model_name, checks=self.total
        )


@router.get("")
def get_skew_timeline(
    user: GetUserDep, readable: ReadableDags, dag_id: str, source: Source = None, limit: Checks = 50, offset: Offset = 0
) -> SkewTimeline:
    """Returns the results of one of the pipeline's monitoring tasks over time."""
    with create_session() as session:
        tasks = _tasks(session, user, dag_id, readable)
        chosen = _chosen(tasks, source)
        if chosen is None:
            return SkewTimeline(
                total_entries=0, entries=[], sources=[], source=None, features=[], events=[], failures=[]
            )
        total, result = _returned(session, chosen, limit, offset)
        visible = MayRead(user, DagAccessEntity.XCOM)
        decided = decisions(session, chosen.pipeline, result, visible)
        since = result[0].at if 0 < len(result) < total else None
        report = chosen.pipeline.dag_id in may_read_results(user)
        failures, failed = monitor_failures(session, chosen.pipeline, since) if report else ([], None)
    described = [SkewProperties.of(each.artifact) for each in result]
    scores = [each.scores for each in described]
    names = dict.fromkeys(name for check in reversed(scores) for name in check)
    nothing = (None, None)
    return SkewTimeline(
        total_entries=total,
        sources=[task.described() for task in tasks],
        source=chosen.described(),
        entries=[
            check_of(each, properties, decided.get(each.task))
            for each, properties in zip(result, described, strict=True)
        ],
        features=[
            FeatureTimeline(
                name=name,
                scores=[check.get(name, nothing)[0] for check in scores],
                thresholds=[check.get(name, nothing)[1] for check in scores],
            )
            for name in names
        ],
        events=_events(chosen, described, visible),
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
        total, result = _returned(session, chosen, limit, offset)
    store = hook_of(chosen.task.hops_conn_id).store
    with reading_threads() as readers:
        points = list(readers.map(lambda each: _point(store, each, feature), result))
    return Page[FeaturePoint](total_entries=total, entries=points)


def _tasks(session: Session, user: GetUserDep, dag_id: str, readable: Iterable[str]) -> list[_Task]:
    """Returns the tasks that compare data of a pipeline, in DAGs that the user may read; the last active first."""
    own = pipeline_of(session, dag_id)
    others = read_pipelines(session, [name for name in readable if name != dag_id]).values()
    watching = [each for each in together(others, own.models()) if may_read(user, each.dag_id, DagAccessEntity.XCOM)]
    tasks = []
    for pipeline in (own, *watching):
        for task in pipeline.tasks:
            if task.kind == "skew":
                total, newest = returned_by_task(session, pipeline.dag_id, task.task_id, 1, 0)
                tasks.append(_Task(pipeline, task, total, newest[0] if newest else None))
    return sorted(tasks, key=lambda each: each.newest.at.timestamp() if each.newest else 0.0, reverse=True)


def _chosen(tasks: Sequence[_Task], source: str | None) -> _Task | None:
    if source is None:
        return tasks[0] if tasks else None
    result = next((task for task in tasks if task.name == source), None)
    if result is None:
        names = ", ".join(task.name for task in tasks) or "none"
        raise HTTPException(422, f"source is {source!r}, expected a task that compares: {names}")
    return result


def _returned(session: Session, task: _Task, limit: int, offset: int) -> tuple[int, list[ReturnedArtifact]]:
    total, newest = returned_by_task(session, task.pipeline.dag_id, task.task.task_id, limit, offset)
    return total, [each for each in reversed(newest) if each.artifact.kind == "skew"]


def check_of(returned: ReturnedArtifact, of: SkewProperties, decision: MonitorDecision | None = None) -> SkewCheck:
    """Returns a comparison from its artifact and the properties of this."""
    artifact = returned.artifact
    window = (of.windows or {}).get("current") or (of.window_start, of.window_end)
    return SkewCheck.of(
        of,
        **returned_address(returned).model_dump(),
        fingerprint=artifact.fingerprint,
        at=returned.at,
        rows_reference=whole(artifact.metrics.get("rows_reference")),
        rows_current=whole(artifact.metrics.get("rows_current")),
        model=of.reference.model,
        version=of.reference.version,
        versions=of.versions or {},
        window_start=window[0],
        window_end=window[1],
        decision=decision,
    )


def _events(task: _Task, described: Sequence[SkewProperties], readable: Container[str]) -> list[VersionEvent]:
    """Returns the events that started or ended the serving of versions of the compared models."""
    names = {each.reference.model for each in described}
    names |= {task.task.model_name} | {name for _, name in task.pipeline.models()}
    store = hook_of(task.task.hops_conn_id).store
    events = []
    for model in sorted(name for name in names if name):
        for event in read_model_record(store, model).history:
            if event.event in _CHANGES:
                by = event.made_by
                hidden = "dag_id" in by and by["dag_id"] not in readable
                named = "dag_id" in by and "run_id" in by and not hidden
                events.append(
                    VersionEvent(
                        at=event.at,  # type: ignore[arg-type]  # read from ISO 8601
                        model=model,
                        event=event.event,
                        version=event.version,
                        traffic={str(version): share for version, share in (event.traffic or {}).items()},
                        why=None if hidden else event.why,
                        run=RunAddress(dag_id=by["dag_id"], run_id=by["run_id"]) if named else None,
                    )
                )
    return sorted(events, key=lambda event: event.at)


def _point(store: ArtifactStore, returned: ReturnedArtifact, feature: str) -> FeaturePoint:
    fingerprint = returned.artifact.fingerprint
    try:
        feature_report = read_report(store, returned.artifact)["features"].get(feature)
    except HTTPException as error:
        state: Literal["deleted", "unreachable"] = "deleted" if error.status_code == 410 else "unreachable"
        return FeaturePoint(name=feature, fingerprint=fingerprint, state=state, detail=str(error.detail))
    if feature_report is None:
        return FeaturePoint(name=feature, fingerprint=fingerprint, state="not_compared")
    retained = {name: value for name, value in feature_report.items() if name in FeaturePoint.model_fields}
    return FeaturePoint(**{**retained, "name": feature, "fingerprint": fingerprint, "state": "compared"})
