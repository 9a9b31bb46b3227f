"""Models of a pipeline: versions, serving, decisions, and candidates for the next champion."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from dataclasses import replace
from datetime import datetime

from fastapi import APIRouter
from sqlalchemy.orm import Session

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.models.model_record import ModelRecord
from airflow_hops.web.access import READS_ARTIFACTS, MayRead, may_change
from airflow_hops.web.artifacts.lookup import pipeline_of
from airflow_hops.web.artifacts.routes import ArtifactAddress, returned_address
from airflow_hops.web.artifacts.tasks import PipelineModel, ReturnedArtifact, last_returned, read_pipelines, together
from airflow_hops.web.models.records import (
    VERDICTS,
    Decision,
    Rollout,
    Served,
    ServedModel,
    VersionShare,
    decisions_of,
    read_model_record,
    rollout_of,
    served_models,
    shares_of,
)
from airflow_hops.web.runs.records import TrainingRun, read_training_of
from airflow_hops.web.runs.states import compared_models, verdict_against, why_refused
from airflow_hops.web.types import Limit, Model, Number, Offset, Page, RunAddress, Time
from airflow_hops.web.unusable_files import reading_threads

_JUDGE = "evaluation"
_FORBIDDEN = "you may not read the runs and results of the DAG that trained it"


class Candidate(Model):
    """An evaluated model."""

    at: Time
    refused: bool
    why: str
    """Reason of a refusal; empty if it was blessed."""
    judged: ArtifactAddress
    """The evaluation."""
    fingerprint: str
    """Fingerprint of the model artifact; empty if a user's own evaluation does not report it."""
    uri: str
    """URI of the model artifact; empty as its fingerprint."""
    champion_version: int | None
    """Version that it was compared with, if any."""


def evaluated(evaluations: Iterable[ReturnedArtifact]) -> list[Candidate]:
    """Returns the models that evaluations judged, in their order."""
    results = []
    for each in evaluations:
        model, champion = compared_models(each.artifact)
        version = champion.version if champion else None
        refused = verdict_against(each.artifact) is not None
        results.append(
            Candidate(
                at=each.at,
                refused=refused,
                why=why_refused(each.artifact) if refused else "",
                judged=returned_address(each),
                fingerprint=model.fingerprint,
                uri=model.uri,
                champion_version=version if isinstance(version, int) else None,
            )
        )
    return results


def candidates_of(evaluated: Iterable[Candidate], champion: str | None) -> list[Candidate]:
    """Returns the evaluated models except the champion, each once, newest first."""
    results: dict[str, Candidate] = {}
    for each in evaluated:
        if each.uri and each.fingerprint not in ("", champion):
            results.setdefault(each.fingerprint, each)
    return list(results.values())


def judged(
    session: Session, user: GetUserDep, models: Collection[PipelineModel]
) -> dict[PipelineModel, list[ReturnedArtifact]]:
    """Returns the newest evaluations of candidates by model, newest first.

    Evaluations in DAGs whose artifacts the user may not read are left out.
    """
    readable = MayRead(user, DagAccessEntity.XCOM)
    pipelines = [each for each in together(read_pipelines(session).values(), models) if each.dag_id in readable]
    returned = last_returned(session, [pipeline.dag_id for pipeline in pipelines], _JUDGE, last=VERDICTS)
    results = {}
    for model in models:
        judges = set()
        for pipeline in together(pipelines, [model]):
            # A task that names no model judges the pipeline's only one.
            named = {model.name} if pipeline.models() != [model] else {model.name, None}
            tasks = (task for task in pipeline.tasks if task.kind in (_JUDGE, None) and task.model_name in named)
            judges |= {(pipeline.dag_id, task.task_id) for task in tasks}
        results[model] = [each for each in returned if (each.dag_id, each.task_id) in judges]
    return results


router = APIRouter(prefix="/api/dags/{dag_id}/models", tags=["models"])


class ModelSummary(ServedModel):
    """A model and its serving versions."""

    rollout: Rollout | None
    last_decision: Decision | None
    last_refused: Candidate | None
    """The newest refused candidate among the last fifty evaluations of each task."""


class RegisteredVersion(Model):
    """A version that was deployed."""

    version: int
    role: str | None
    """``champion`` or ``challenger``; null if it does not serve."""
    created_at: Time | None
    """Time of its first deployment; null if it is not in the model's record."""
    made_by: RunAddress | None
    """Run that deployed it; null if it is unknown, or the user may not read it."""
    trained_by: RunAddress | None
    """DAG and id of its training run; null if there is none, or the user may not read it."""
    fingerprint: str | None
    """Fingerprint of the model artifact."""
    metrics: dict[str, Number]
    """Metrics of its training run; ``evaluation.*`` are those that blessed it."""
    unmeasured: str | None
    """Reason why its training run and metrics are unknown; null if they are known, or there are none."""
    last_event: Decision | None


class ModelDetail(Model):
    """A model with its serving versions and all decisions."""

    name: str
    champion: VersionShare | None
    challenger: VersionShare | None
    traffic: dict[str, int]
    """Decided shares in percent, by version; the server may not have applied them yet."""
    rollout: Rollout | None
    deployed: list[int]
    """All versions that were ever deployed, newest first."""
    decisions: list[Decision]
    """Newest first."""
    refused: list[Candidate]
    """Candidates that were not deployed, newest first."""
    candidates: list[Candidate]
    """Evaluated models that may replace the champion, newest first."""
    owners: list[str]
    """DAGs that may deploy the model and decide on it, without those that the user may not read."""
    may_change: bool
    """Whether the pipeline owns and deploys the model, and the user may promote, set traffic and roll back."""


@router.get("", dependencies=[READS_ARTIFACTS])
def list_models(user: GetUserDep, dag_id: str) -> Page[ModelSummary]:
    """Lists the models of a pipeline, those that it deploys first."""
    readable = MayRead(user, DagAccessEntity.XCOM)
    with create_session() as session:
        named = pipeline_of(session, dag_id).models()
        evaluations = judged(session, user, named)
        served = served_models(session, named, readable)
    models = []
    for model in named:
        shown, record = served[model]
        models.append(
            ModelSummary.of(
                shown,
                rollout=rollout_of(record),
                last_decision=next(iter(decisions_of(record, readable)), None),
                last_refused=next((each for each in evaluated(evaluations[model]) if each.refused), None),
            )
        )
    return Page[ModelSummary](total_entries=len(models), entries=models)


@router.get("/{model}", dependencies=[READS_ARTIFACTS])
def get_model(user: GetUserDep, served: Served) -> ModelDetail:
    """Returns a model and the decisions on it, from its record only."""
    record = read_model_record(served.hook.store, served.name)
    champion, challenger = shares_of(record)
    readable = MayRead(user, DagAccessEntity.XCOM)
    with create_session() as session:
        candidates = evaluated(judged(session, user, [served.model])[served.model])
    return ModelDetail(
        name=served.name,
        champion=champion,
        challenger=challenger,
        traffic={str(each.version): each.traffic_percent for each in (champion, challenger) if each is not None},
        rollout=rollout_of(record),
        deployed=record.versions()[::-1],
        decisions=decisions_of(record, readable),
        refused=[each for each in candidates if each.refused],
        candidates=candidates_of(candidates, champion.fingerprint if champion else None),
        owners=[dag_id for dag_id in record.owners if dag_id in readable],
        may_change=served.is_decided_here and record.is_owned_by(served.dag_id) and may_change(user, served.dag_id),
    )


@router.get("/{model}/versions", dependencies=[READS_ARTIFACTS])
def list_model_versions(
    user: GetUserDep, served: Served, limit: Limit = 50, offset: Offset = 0
) -> Page[RegisteredVersion]:
    """Lists the versions of a model, newest first, from its record and those of its trainings."""
    store = served.hook.store
    record = read_model_record(store, served.name)
    readable, runs = MayRead(user, DagAccessEntity.XCOM), MayRead(user, DagAccessEntity.XCOM, DagAccessEntity.RUN)
    events = {event.version: event for event in record.history}
    shown = sorted(events, reverse=True)[offset : offset + limit]
    last = decisions_of(replace(record, history=tuple(events[version] for version in reversed(shown))), readable)
    first = record.registered()
    serving = {entry.version: (role, entry) for role, entry in record.serving.items()}
    models = {
        version: Artifact(event.model, "model", event.fingerprint or "")
        for version, event in first.items()
        if version in shown and event.model
    }

    def training_of(model: Artifact) -> TrainingRun | str | None:
        return read_training_of(store, model) if store.dag_of(model.uri) in runs else _FORBIDDEN

    with reading_threads() as readers:
        read = dict(zip(models, readers.map(training_of, models.values()), strict=True))
    versions = []
    for version, decision in zip(shown, last, strict=True):
        event = first.get(version)
        role, entry = serving.get(version, (None, None))
        known = read.get(version)
        run = known if isinstance(known, TrainingRun) else None
        versions.append(
            RegisteredVersion(
                version=version,
                role=role,
                created_at=None if event is None else datetime.fromisoformat(event.at),
                made_by=made_by(record, version, readable),
                trained_by=RunAddress(dag_id=store.dag_of(models[version].uri), run_id=run.run_id) if run else None,
                fingerprint=entry.fingerprint if entry else event.fingerprint if event else None,
                metrics=run.metrics if run else {},
                unmeasured=known if isinstance(known, str) else None,
                last_event=decision,
            )
        )
    return Page[RegisteredVersion](total_entries=len(events), entries=versions)


def made_by(record: ModelRecord, version: int, readable: Container[str]) -> RunAddress | None:
    """Returns the run that deployed a version; None if it is not recorded, or the user may not read it."""
    began = record.began(version)
    by = began.made_by if began else {}
    dag_id, run_id = by.get("dag_id"), by.get("run_id")
    if not dag_id or not run_id or dag_id not in readable:
        return None
    return RunAddress(dag_id=dag_id, run_id=run_id)
