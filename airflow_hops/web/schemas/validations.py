"""Validations of a pipeline across its runs: what each found, and what it asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from fastapi import APIRouter, HTTPException
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from airflow_hops.core.contract.artifacts import Artifact, Manifest, Producer
from airflow_hops.core.store import ArtifactStore
from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS, READS_TASKS
from airflow_hops.web.artifacts.definitions import PipelineDag
from airflow_hops.web.artifacts.from_tasks import returned_by_runs
from airflow_hops.web.artifacts.lookup import hook_of, manifest_at, open_artifact, pipeline_of, published, reaching
from airflow_hops.web.artifacts.routes import ArtifactAddress
from airflow_hops.web.schemas.questions import Question, make_question, may_see_questions
from airflow_hops.web.types import Limit, Model, Offset, Page, Time, whole

router = APIRouter(prefix="/api/dags/{dag_id}", tags=["validation"])
KIND = "anomalies"
_MAX_FEATURES = 200

Severity = Literal["error", "warning"]


class AnomalousFeature(Model):
    """A feature that a validation found anomalous; without a name, the data set as a whole."""

    feature: str
    severity: Severity
    """The worst of all splits."""
    splits: list[str]
    summaries: list[str]


class ValidationEntry(Model):
    """A task instance that validates, with its findings and its question."""

    address: ArtifactAddress
    task_state: str | None
    run_state: str
    run_type: str
    run_after: Time
    started_at: Time | None
    ended_at: Time | None
    artifact: Literal["present", "none", "deleted", "unreachable"]
    """``none``: it has made none yet, or failed before."""
    detail: str | None
    """Why the artifact is not there."""
    cached: bool
    errors: int | None
    warnings: int | None
    quarantined: int | None
    """Rows put apart; null where none were looked for."""
    rows: int | None
    features: list[AnomalousFeature]
    """Errors first, 200 at most."""
    features_total: int
    question: Question | None


class ValidationPage(Page):
    """Validations, newest run first."""

    validations: list[ValidationEntry]
    asks: bool
    """Whether the user may see questions."""


@router.get("/validations", dependencies=[READS_RUNS, READS_TASKS, READS_ARTIFACTS])
def list_validations(user: GetUserDep, dag_id: str, limit: Limit = 30, offset: Offset = 0) -> ValidationPage:
    """The results of a pipeline's validations, by run."""
    with create_session() as session:
        pipeline = pipeline_of(session, dag_id)
        total, instances = _instances(session, pipeline, limit, offset)
        runs, tasks = ({getattr(instance, name) for instance in instances} for name in ("run_id", "task_id"))
        returned = {
            (each.run_id, each.task_id, each.map_index): each.artifact
            for each in returned_by_runs(session, dag_id, runs, tasks)
            if each.artifact.kind == KIND
        }
        asks = may_see_questions(user, dag_id)
        ids = [instance.id for instance in instances] if asks else []
        details = session.scalars(select(HITLDetail).where(HITLDetail.ti_id.in_(ids))).all()
        session.expunge_all()
        asked = {each.ti_id: each for each in details}
    entries = []
    for instance in instances:
        key = (instance.run_id, instance.task_id, instance.map_index)
        store = hook_of(pipeline.conn_id(instance.task_id)).store
        entries.append(_entry(user, store, instance, returned.get(key), asked.get(instance.id)))
    return ValidationPage(total_entries=total, validations=entries, asks=asks)


def schema_of(manifest: Manifest) -> Artifact | None:
    """The schema that a validation held the data against."""
    return next(iter(manifest.inputs.get("schema", ())), None)


def _instances(session: Session, pipeline: PipelineDag, limit: int, offset: int) -> tuple[int, Sequence[Any]]:
    tasks = [task.task_id for task in pipeline.tasks if task.stage == "validation"]
    mine = (
        TaskInstance.dag_id == pipeline.dag_id,
        TaskInstance.task_id.in_(tasks),
        TaskInstance.start_date.is_not(None),
    )
    total = session.scalar(select(func.count()).select_from(TaskInstance).where(*mine)) or 0
    # Columns and not entities: with each of these Airflow would load much more.
    wanted = select(
        TaskInstance.id,
        TaskInstance.dag_id,
        TaskInstance.run_id,
        TaskInstance.task_id,
        TaskInstance.map_index,
        TaskInstance.state,
        TaskInstance.start_date,
        TaskInstance.end_date,
        TaskInstance.trigger_timeout,
        DagRun.state.label("run_state"),
        DagRun.run_type,
        DagRun.run_after,
    ).join(DagRun, (DagRun.dag_id == TaskInstance.dag_id) & (DagRun.run_id == TaskInstance.run_id))
    newest = wanted.where(*mine).order_by(DagRun.run_after.desc(), DagRun.id.desc(), TaskInstance.map_index)
    return total, session.execute(newest.limit(limit).offset(offset)).all()


def _entry(
    user: GetUserDep, store: ArtifactStore, instance: Any, returned: Artifact | None, asked: HITLDetail | None
) -> ValidationEntry:
    address = ArtifactAddress.of(instance, kind=KIND)
    state: Literal["present", "none", "deleted", "unreachable"] = "none"
    detail, features, changed = None, list[AnomalousFeature](), False
    artifact = returned
    try:
        producer = Producer(address.dag_id, address.run_id, address.task_id, address.map_index)
        artifact = returned or published(store, producer, KIND)
        if artifact is not None:
            artifact, manifest = open_artifact(store, artifact)
            state, features = "present", anomalous_features(store, artifact)
            changed = asked is not None and asked.responded_at is None and has_changed(store, schema_of(manifest))
    except HTTPException as error:
        state, detail = ("deleted" if error.status_code == 410 else "unreachable"), str(error.detail)
    metrics: Mapping[str, float] = artifact.metrics if artifact else {}
    return ValidationEntry(
        address=address,
        task_state=instance.state,
        run_state=str(instance.run_state),
        run_type=str(instance.run_type),
        run_after=instance.run_after,
        started_at=instance.start_date,
        ended_at=instance.end_date,
        artifact=state,
        detail=detail,
        cached=bool(artifact and artifact.cached),
        errors=whole(metrics.get("errors")),
        warnings=whole(metrics.get("warnings")),
        quarantined=whole(metrics.get("quarantined")),
        rows=sum(rows.rows_in for rows in artifact.rows.values()) if artifact else None,
        features=features[:_MAX_FEATURES],
        features_total=len(features),
        question=None if asked is None else make_question(user, instance, asked, schema_changed=changed),
    )


def anomalous_features(store: ArtifactStore, artifact: Artifact) -> list[AnomalousFeature]:
    """The features that a validation found anomalous, errors first.

    Raises:
        HTTPException: 410, its report was deleted; 502, the store cannot be read.
    """
    if not any(artifact.metrics.get(name) for name in ("errors", "warnings")):
        return []

    with reaching(store):
        try:
            report = store.read_json(f"{artifact.uri}/anomalies.json")
        except FileNotFoundError:
            raise HTTPException(410, f"anomalies.json of {artifact.uri} was deleted") from None
    by_feature: dict[str, list[Mapping[str, Any]]] = {}
    for anomaly in report["anomalies"]:
        by_feature.setdefault(anomaly["feature"], []).append(anomaly)
    features = [
        AnomalousFeature(
            feature=feature,
            severity="error" if any(each["severity"] == "error" for each in result) else "warning",
            splits=[each["split"] for each in result],
            summaries=list(dict.fromkeys(each["summary"] for each in result)),
        )
        for feature, result in by_feature.items()
    ]
    return sorted(features, key=lambda each: each.severity != "error")


def has_changed(store: ArtifactStore, schema: Artifact | None) -> bool:
    """Whether another schema than the given one is frozen by now."""
    there = manifest_at(store, schema.uri) if schema else None
    return schema is not None and (there is None or there.fingerprint != schema.fingerprint)
