"""Candidates of a model that never became a version of it: an evaluation, or an infra-validation, refused them."""

from __future__ import annotations

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep
from sqlalchemy.orm import Session

from airflow_hops.api.access import may_read
from airflow_hops.api.artifacts.from_tasks import ReturnedArtifact, last_returned
from airflow_hops.api.artifacts.routes import ArtifactAddress, returned_address
from airflow_hops.api.pipelines.definitions import PipelineDag, definitions, together
from airflow_hops.api.runs.states import verdict_against, why_refused
from airflow_hops.api.types import Model, Number, Time
from airflow_hops.contract.evaluation import EvaluationProperties

_JUDGES = ("evaluation", "infra_blessing")
_LAST = 50
"""Verdicts of each task that are looked at, the newest; blessings among them."""


class RefusedCandidate(Model):
    """A model that was trained, and was not deployed."""

    at: Time
    why: str
    judged: ArtifactAddress
    """The artifact that says so."""
    metrics: dict[str, Number]
    """Of that artifact."""
    champion_version: int | None
    """With which it was compared; null where it was not."""


def refused_candidates(
    session: Session, user: GetUserDep, hops_conn_id: str, model_name: str
) -> list[RefusedCandidate]:
    """The newest refused candidates of a model, of the DAGs whose artifacts the user may read; the newest first."""
    model = (hops_conn_id, model_name)
    pipelines = [
        pipeline
        for pipeline in together(definitions.pipelines(session).values(), [model])
        if may_read(user, pipeline.dag_id, DagAccessEntity.XCOM)
    ]
    judges = {(pipeline.dag_id, task_id) for pipeline in pipelines for task_id in _judges(pipeline, model)}
    dag_ids = [pipeline.dag_id for pipeline in pipelines]
    returned = [each for kind in _JUDGES for each in last_returned(session, dag_ids, kind, last=_LAST)]
    refused = [
        _candidate(each)
        for each in returned
        if (each.dag_id, each.task_id) in judges and verdict_against(each.artifact) is not None
    ]
    return sorted(refused, key=lambda candidate: candidate.at, reverse=True)


def _judges(pipeline: PipelineDag, model: tuple[str, str]) -> set[str]:
    """The tasks that judge candidates of a model: those that name it, and those that name none where it is alone."""
    named = {model[1]} if pipeline.models() != [model] else {model[1], None}
    return {task.task_id for task in pipeline.tasks if task.kind in (*_JUDGES, None) and task.model_name in named}


def _candidate(returned: ReturnedArtifact) -> RefusedCandidate:
    artifact = returned.artifact
    champion = EvaluationProperties.of(artifact).champion if artifact.kind == "evaluation" else None
    return RefusedCandidate(
        at=returned.at,
        why=why_refused(artifact),
        judged=returned_address(returned),
        metrics=dict(artifact.metrics),
        champion_version=champion.version if champion else None,
    )
