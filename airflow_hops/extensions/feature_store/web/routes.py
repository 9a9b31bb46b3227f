"""Feature views of a pipeline: who owns them, how fresh the online store is, and which models use them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, HTTPException

from airflow_hops.airflow_internals.api_server import GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.artifacts.properties import DeploymentProperties
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.feature_store.core.stored_features import (
    DEFINITIONS_NAME,
    OWNED,
    FeatureDefinitions,
    FeatureDefinitionsProperties,
    MaterializationProperties,
    StoredFeatures,
    ViewDefinition,
)
from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS, TRIGGERS_RUNS
from airflow_hops.web.artifacts.lookup import Gone, hook_of, manifest_at, open_artifact, open_returned, pipeline_of
from airflow_hops.web.artifacts.routes import ArtifactAddress, returned_address
from airflow_hops.web.artifacts.tasks import PipelineDag, ReturnedArtifact, last_returned
from airflow_hops.web.owners import NewOwners, OwnedName, Reason, change_owners, read_owners
from airflow_hops.web.types import Model, Time

router = APIRouter(prefix="/api/dags/{dag_id}/features", tags=["features"], dependencies=[READS_RUNS, READS_ARTIFACTS])

_MATERIALIZATIONS = 50


class FeatureUse(Model):
    """A served version that uses a view."""

    model: str
    version: int
    features: list[str]


@dataclass(frozen=True, kw_only=True)
class FeatureViewEntry(ViewDefinition):
    """A feature view.

    Attributes:
        loaded_until: End of the newest window that the pipeline loaded into the online store.
    """

    loaded_until: Time | None
    used_by: list[FeatureUse]


class FeatureStorePage(Model):
    """The feature store of a pipeline."""

    project: str | None
    """Null if no definitions were applied yet."""
    definitions: ArtifactAddress | None
    views: list[FeatureViewEntry]
    owned: OwnedName | None = None
    """Owners of the definitions; null if no DAG has claimed them in the store."""
    services: dict[str, list[str]]
    """References ``view:feature`` by feature service."""
    problem: str | None = None
    """Reason why the views are missing."""


@router.get("")
def get_feature_store(user: GetUserDep, dag_id: str) -> FeatureStorePage:
    """Returns the newest definitions that the pipeline applied, and what became of them."""
    with create_session() as session:
        pipeline = pipeline_of(session, dag_id)
        applied = last_returned(session, [dag_id], "feature_definitions")
        loaded = last_returned(session, [dag_id], "materialization", _MATERIALIZATIONS)
        deployed = last_returned(session, [dag_id], "deployment")
    if not applied:
        return FeatureStorePage(project=None, definitions=None, views=[], services={})
    try:
        text = open_returned(user, applied[0]).read_json(DEFINITIONS_NAME)
    except Gone as error:
        project = FeatureDefinitionsProperties.of(applied[0].artifact).project
        return FeatureStorePage(project=project, definitions=None, views=[], services={}, problem=str(error.detail))
    try:
        definitions = FeatureDefinitions.from_dict(text)
    except TypeError as error:
        raise HTTPException(502, f"{applied[0].artifact.uri}/{DEFINITIONS_NAME}: {error}") from error
    uses = _uses(pipeline, deployed)
    store, name = _owned(pipeline, applied[0])
    return FeatureStorePage(
        project=definitions.project,
        owned=read_owners(user, store, OWNED, name),
        definitions=returned_address(applied[0]),
        views=[_view(view, loaded, uses.get(view.name, [])) for view in definitions.views],  # type: ignore[misc]
        services={name: list(references) for name, references in definitions.services.items()},
    )


@router.post("/owners", dependencies=[TRIGGERS_RUNS])
def set_feature_owners(user: GetUserDep, dag_id: str, owners: NewOwners, reason: Reason) -> OwnedName:
    """Names the DAGs that may change the feature definitions that the pipeline applied last.

    Raises:
        HTTPException: 403, the user may not trigger one of the owners before or after; 404, there is no such pipeline,
            or the DAG does not own its definitions.
    """
    with create_session() as session:
        pipeline = pipeline_of(session, dag_id)
        applied = last_returned(session, [dag_id], "feature_definitions")
    if not applied:
        raise HTTPException(404, f"DAG {dag_id!r} has applied no feature definitions")
    store, name = _owned(pipeline, applied[0])
    return change_owners(user, store, OWNED, name, dag_id, owners, reason)


def _owned(pipeline: PipelineDag, applied: ReturnedArtifact) -> tuple[ArtifactStore, str]:
    """Returns the place of the owners of definitions, and their name there, empty for older artifacts."""
    store = hook_of(pipeline.conn_id(applied.task_id)).store
    return store, FeatureDefinitionsProperties.of(applied.artifact).owned_name


def _view(view: ViewDefinition, loaded: list[ReturnedArtifact], used_by: list[FeatureUse]) -> dict[str, Any]:
    """Returns a :class:`FeatureViewEntry`, whose fields' types pydantic checks."""
    windows = [MaterializationProperties.of(each.artifact) for each in loaded]
    ends = [each.window[1] for each in windows if each.window and each.window[1] and view.name in each.views]
    return {**view.to_dict(), "loaded_until": max(ends, default=None), "used_by": used_by}


def _uses(pipeline: PipelineDag, deployed: list[ReturnedArtifact]) -> dict[str, list[FeatureUse]]:
    """Returns the newest deployed versions by view, from the training set that each was deployed with."""
    uses: dict[str, list[FeatureUse]] = {}
    for each in deployed:
        properties = DeploymentProperties.of(each.artifact)
        store = hook_of(pipeline.conn_id(each.task_id)).store
        manifest = manifest_at(store, each.artifact.uri)
        if manifest is None or properties.model_name is None or properties.version is None:
            continue
        for reference in manifest.inputs.get("lookup", ()):
            views: dict[str, list[str]] = {}
            with contextlib.suppress(HTTPException, KeyError):  # a deleted artifact, or one of another look-up
                dataset = open_artifact(store, reference)[1]  # a manifest's inputs have no properties
                for origin in StoredFeatures.from_dict(dataset.properties["stored_features"]).columns.values():
                    views.setdefault(origin.view, []).append(origin.feature)
            for view, features in views.items():
                use = FeatureUse(model=properties.model_name, version=properties.version, features=sorted(features))
                uses.setdefault(view, []).append(use)
    return uses
