"""Validations of a pipeline across its runs: results, questions to people, and their answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from fastapi import APIRouter, HTTPException
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep, get_auth_manager
from airflow_hops.airflow_internals.database import (
    DagRun,
    HITLDetail,
    TaskInstance,
    TaskInstanceState,
    create_session,
    instance_columns,
    iteration_of,
    map_index_of,
)
from airflow_hops.core.artifacts.artifact import Artifact, Manifest
from airflow_hops.core.schema.history import SchemaVersion, frozen_name, schema_history
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.validation_page import Severity
from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS, READS_TASKS, is_allowed, may_read
from airflow_hops.web.artifacts.lookup import (
    hook_of,
    manifest_at,
    missing_state,
    open_artifact,
    pipeline_of,
    published,
    reaching,
)
from airflow_hops.web.artifacts.routes import ArtifactAddress
from airflow_hops.web.artifacts.tasks import PipelineDag, returned_by_runs
from airflow_hops.web.types import Limit, Model, Offset, Page, TaskAddress, Time, whole


class Question(Model):
    """A question of a task, and its answer."""

    task: TaskAddress
    stage: str | None
    state: Literal["waiting", "answered", "timed_out", "closed"]
    """``timed_out``: the default became the answer; ``closed``: the task ended or was cleared without an answer."""
    subject: str
    options: list[str]
    assigned_to: list[str]
    """Names of the only users who may answer; empty if everyone with permission may."""
    default: str | None
    """Answer that applies if nobody answers before ``deadline``."""
    asked_at: Time
    deadline: Time | None
    choice: str | None
    answered_by: str | None
    answered_at: Time | None
    note: str
    may_answer: bool
    schema_changed: bool
    """Whether the frozen schema has changed since the question: an approval of the proposal would fail."""


def may_see_questions(user: GetUserDep, dag_id: str) -> bool:
    """Returns whether a user may see the questions of the DAG's tasks."""
    return may_read(user, dag_id, DagAccessEntity.HITL_DETAIL)


def waiting_questions(
    session: Session, user: GetUserDep, pipelines: Iterable[PipelineDag], limit: int = 1000
) -> list[Question]:
    """Returns the questions of some pipelines that wait for a person and that the user may see, oldest first."""
    waits = TaskInstance.state == TaskInstanceState.AWAITING_INPUT
    asking = set(session.scalars(select(TaskInstance.dag_id).where(waits).distinct()))
    by_dag = {each.dag_id: each for each in pipelines if each.dag_id in asking and may_see_questions(user, each.dag_id)}
    waiting = (
        select(HITLDetail, TaskInstance, *instance_columns(TaskInstance))
        .join(TaskInstance, TaskInstance.id == HITLDetail.ti_id)
        .where(TaskInstance.dag_id.in_(by_dag), waits)
        .order_by(HITLDetail.created_at)
        .limit(limit)
    )
    results = []
    for row in session.execute(waiting):
        task = by_dag[row.dag_id].task(row.task_id)
        stage = task.stage if task else None
        results.append(make_question(user, row.TaskInstance, row.HITLDetail, TaskAddress.of(row), stage))
    return results


def make_question(
    user: GetUserDep, task: Any, asked: Any, address: TaskAddress, stage: str | None, schema_changed: bool = False
) -> Question:
    """Returns the question of a task instance at an address; ``asked`` is Airflow's ``HITLDetail`` of it."""
    waiting = task.state == TaskInstanceState.AWAITING_INPUT
    answered = asked.responded_at is not None
    state: Literal["waiting", "answered", "timed_out", "closed"] = "waiting" if waiting else "closed"
    assigned = {each["id"] for each in asked.assigned_users}
    if answered:
        state = "answered" if asked.responded_by else "timed_out"
    return Question(
        task=address,
        stage=stage,
        state=state,
        subject=asked.subject,
        options=list(asked.options),
        assigned_to=[each["name"] for each in asked.assigned_users],
        default=next(iter(asked.defaults or []), None),
        asked_at=asked.created_at,
        deadline=task.trigger_timeout if state == "waiting" else None,
        choice=next(iter(asked.chosen_options or []), None),
        answered_by=asked.responded_by["name"] or asked.responded_by["id"] if asked.responded_by else None,
        answered_at=asked.responded_at,
        note=str((asked.params_input or {}).get("note") or ""),
        may_answer=state == "waiting"
        and is_allowed(user, task.dag_id, "PUT", DagAccessEntity.HITL_DETAIL)
        and (not assigned or get_auth_manager().is_authorized_hitl_task(assigned_users=assigned, user=user)),
        schema_changed=state == "waiting" and schema_changed,
    )


router = APIRouter(prefix="/api/dags/{dag_id}", tags=["validation"])
KIND = "anomalies"
_MAX_FEATURES = 200


class AnomalousFeature(Model):
    """An anomalous feature of a validation; an empty name means the data set as a whole."""

    feature: str
    severity: Severity
    """The highest severity of all splits."""
    drifted: bool
    """Whether it fits the schema, and has only moved since the champion was trained."""
    splits: list[str]
    summaries: list[str]


class ValidationEntry(Model):
    """A validating task instance with its findings and its question."""

    address: ArtifactAddress
    task_state: str | None
    run_state: str
    run_after: Time
    artifact: Literal["present", "none", "deleted", "unreachable"]
    """``none``: the task has not finished, or failed before it wrote one."""
    detail: str | None
    """Reason why the artifact is missing; of one that is present, why it is unknown what its schema is now."""
    cached: bool
    errors: int | None
    warnings: int | None
    features: list[AnomalousFeature]
    """Errors first, at most 200."""
    features_total: int
    drifted_total: int
    """Features that have only drifted, among ``features_total``; the others have anomalies."""
    schema_version: int | None
    """Version of the schema that the data was validated against; null if it is not in this store."""
    question: Question | None


@router.get("/validations", dependencies=[READS_RUNS, READS_TASKS, READS_ARTIFACTS])
def list_validations(user: GetUserDep, dag_id: str, limit: Limit = 30, offset: Offset = 0) -> Page[ValidationEntry]:
    """Lists the results of a pipeline's validations, newest run first."""
    with create_session() as session:
        pipeline = pipeline_of(session, dag_id)
        total, instances = _instances(session, pipeline, limit, offset)
        runs, tasks = ({getattr(instance, name) for instance in instances} for name in ("run_id", "task_id"))
        returned = {
            each.task: each.artifact
            for each in returned_by_runs(session, dag_id, runs, tasks)
            if each.artifact.kind == KIND
        }
        ids = [instance.id for instance in instances] if may_see_questions(user, dag_id) else []
        details = session.scalars(select(HITLDetail).where(HITLDetail.ti_id.in_(ids))).all()
        session.expunge_all()
        asked = {each.ti_id: each for each in details}
    entries, known = [], dict[str, list[SchemaVersion]]()
    for instance in instances:
        store = hook_of(pipeline.conn_id(instance.task_id)).store
        address = ArtifactAddress.of(instance, kind=KIND)
        artifact = returned.get(address.producer)
        entries.append(_entry(user, store, instance, address, artifact, asked.get(instance.id), known))
    return Page[ValidationEntry](total_entries=total, entries=entries)


def schema_of(manifest: Manifest) -> Artifact | None:
    """Returns the schema that a validation used."""
    return next(iter(manifest.inputs.get("schema", ())), None)


def _instances(session: Session, pipeline: PipelineDag, limit: int, offset: int) -> tuple[int, Sequence[Any]]:
    tasks = [task.task_id for task in pipeline.tasks if task.stage == "validation"]
    mine = (
        TaskInstance.dag_id == pipeline.dag_id,
        TaskInstance.task_id.in_(tasks),
        TaskInstance.start_date.is_not(None),
    )
    total = session.scalar(select(func.count()).select_from(TaskInstance).where(*mine)) or 0
    # Airflow 3.3: would load much more with entities, so these are columns.
    wanted = select(
        TaskInstance.id,
        *instance_columns(TaskInstance),
        TaskInstance.state,
        TaskInstance.trigger_timeout,
        DagRun.state.label("run_state"),
        DagRun.run_after,
    ).join(DagRun, (DagRun.dag_id == TaskInstance.dag_id) & (DagRun.run_id == TaskInstance.run_id))
    order = (DagRun.run_after.desc(), DagRun.id.desc(), iteration_of(TaskInstance), map_index_of(TaskInstance))
    newest = wanted.where(*mine).order_by(*order)
    return total, session.execute(newest.limit(limit).offset(offset)).all()


def _entry(
    user: GetUserDep,
    store: ArtifactStore,
    instance: Any,
    address: ArtifactAddress,
    returned: Artifact | None,
    asked: HITLDetail | None,
    known: dict[str, list[SchemaVersion]],
) -> ValidationEntry:
    state: Literal["present", "none", "deleted", "unreachable"] = "none"
    detail, features, changed, version = None, list[AnomalousFeature](), False, None
    artifact = returned
    try:
        artifact = returned or published(store, address.producer, KIND)
        if artifact is not None:
            artifact, manifest = open_artifact(store, artifact)
            features = anomalous_features(store, artifact)
            state = "present"
            version = version_of(store, schema_of(manifest), known)
            changed = asked is not None and asked.responded_at is None and has_changed(store, schema_of(manifest))
    except HTTPException as error:
        state, detail = state if state == "present" else missing_state(error), str(error.detail)
    metrics: Mapping[str, float] = artifact.metrics if artifact else {}
    return ValidationEntry(
        address=address,
        task_state=instance.state,
        run_state=str(instance.run_state),
        run_after=instance.run_after,
        artifact=state,
        detail=detail,
        cached=bool(artifact and artifact.cached),
        errors=whole(metrics.get("errors")),
        warnings=whole(metrics.get("warnings")),
        features=features[:_MAX_FEATURES],
        features_total=len(features),
        drifted_total=sum(each.drifted and bool(each.feature) for each in features),
        schema_version=version,
        question=None if asked is None else make_question(user, instance, asked, address, "validation", changed),
    )


def anomalous_features(store: ArtifactStore, artifact: Artifact) -> list[AnomalousFeature]:
    """Returns the anomalous features of a validation, errors first, with those that have drifted.

    Raises:
        HTTPException: 410, its report was deleted; 502, the store cannot be read.
    """
    if not any(artifact.metrics.get(name) for name in ("errors", "warnings")) and not artifact.properties.get("drift"):
        return []
    with reaching(store, uri := f"{artifact.uri}/anomalies.json"):
        report = store.read_json(uri)
        by_feature: dict[str, list[Mapping[str, Any]]] = {}
        # Drift since the champion's training follows the anomalies, which are counted.
        count = report.get("errors", 0) + report.get("warnings", 0)
        for place, anomaly in enumerate(report["anomalies"]):
            by_feature.setdefault(anomaly["feature"], []).append({**anomaly, "drifted": place >= count})
        features = [
            AnomalousFeature(
                feature=feature,
                severity="error" if any(each["severity"] == "error" for each in result) else "warning",
                drifted=all(each["drifted"] for each in result),
                splits=[each["split"] for each in result],
                summaries=list(dict.fromkeys(each["summary"] for each in result)),
            )
            for feature, result in by_feature.items()
        ]
    return sorted(features, key=lambda each: (each.severity != "error", each.drifted))


def has_changed(store: ArtifactStore, schema: Artifact | None) -> bool:
    """Returns whether the frozen schema now differs from the given one."""
    there = manifest_at(store, schema.uri) if schema else None
    return schema is not None and (there is None or there.fingerprint != schema.fingerprint)


def version_of(store: ArtifactStore, schema: Artifact | None, known: dict[str, list[SchemaVersion]]) -> int | None:
    """Returns the version of a frozen schema that an artifact is; None if it is not in this store.

    ``known`` has the versions of schemas that were read before, by address.
    """
    if schema is None or frozen_name(schema.uri) is None or not store.dag_of(schema.uri):
        return None
    with reaching(store):
        if schema.uri not in known:
            known[schema.uri] = schema_history(store, schema.uri)
        versions = (int(each.version) for each in known[schema.uri] if each.fingerprint == schema.fingerprint)
        return max(versions, default=None)  # int: a damaged history may have numbers that are not finite
