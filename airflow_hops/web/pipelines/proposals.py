"""Schema changes that the newest validations of pipelines propose without asking anyone."""

from __future__ import annotations

from collections.abc import Collection

from fastapi import HTTPException
from sqlalchemy import select
from sqlalchemy.orm import Session

from airflow_hops.airflow_internals.database import HITLDetail, TaskInstance, instance_columns
from airflow_hops.web.artifacts.lookup import FoundArtifact, Gone, hook_of
from airflow_hops.web.artifacts.routes import ArtifactAddress, returned_address
from airflow_hops.web.artifacts.tasks import PipelineDag, ReturnedArtifact, last_returned, producer_in
from airflow_hops.web.schema.proposals import waits_for_decision
from airflow_hops.web.schema.validations import anomalous_features
from airflow_hops.web.types import Model, Time
from airflow_hops.web.unusable_files import reading_threads

_FEATURES = 200


class ProposedSchema(Model):
    """A schema change that the newest validation proposes without asking anyone."""

    validation: ArtifactAddress
    at: Time
    features: list[str]
    """Anomalous features, errors first, at most 200; an empty name means the data set as a whole."""
    features_total: int


Proposed = ProposedSchema | tuple[str, str]
"""A proposal; for one that cannot be read, its task and the reason."""


def proposals_of(session: Session, pipelines: Collection[PipelineDag]) -> dict[str, list[Proposed]]:
    """Returns the proposals of the newest validations of each task that asked nobody, by DAG."""
    by_dag = {each.dag_id: each for each in pipelines}
    newest = {
        each.task: each
        for each in last_returned(session, list(by_dag), "anomalies")
        if each.artifact.properties.get("proposed_features") is not None
    }
    asked = select(*instance_columns(TaskInstance)).join(HITLDetail, HITLDetail.ti_id == TaskInstance.id)
    columns = (TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id)
    mine = (column.in_({getattr(each, column.key) for each in newest}) for column in columns)
    for row in session.execute(asked.where(*mine)) if newest else ():
        newest.pop(producer_in(row), None)
    with reading_threads() as readers:
        read = list(readers.map(lambda each: _proposal(by_dag[each.dag_id], each), newest.values()))
    results: dict[str, list[Proposed]] = {dag_id: [] for dag_id in by_dag}
    for each, proposal in zip(newest.values(), read, strict=True):
        results[each.dag_id] += [] if proposal is None else [proposal]
    return results


def _proposal(pipeline: PipelineDag, validation: ReturnedArtifact) -> Proposed | None:
    """Returns the proposal of a validation; None if it was deleted, or the schema has changed since."""
    try:
        hook = hook_of(pipeline.conn_id(validation.task_id))
        result = FoundArtifact.open(hook, validation.artifact)
        if not waits_for_decision(result):
            return None
        features = [each.feature for each in anomalous_features(hook.store, result.artifact)]
    except Gone:
        return None
    except HTTPException as error:
        return validation.task_id, str(error.detail)
    return ProposedSchema(
        validation=returned_address(validation),
        at=validation.at,
        features=features[:_FEATURES],
        features_total=len(features),
    )
