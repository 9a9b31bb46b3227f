"""Frozen schemas: their features, their versions, and the differences between versions."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Response

from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.artifacts.artifact import name_in
from airflow_hops.core.artifacts.properties import SchemaProperties
from airflow_hops.core.errors import BadInput
from airflow_hops.core.schema.changes import SchemaComparison, compare_aspects
from airflow_hops.core.schema.history import (
    SCHEMA_FILE,
    SchemaVersion,
    is_edited,
    schema_history,
    schema_text,
)
from airflow_hops.core.schema.page import SchemaDetail, SchemaFeatureDetail, SchemaPage, read_page
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.artifact_store import FROZEN
from airflow_hops.web.access import READS_ARTIFACTS, ReadableDags
from airflow_hops.web.artifacts.lookup import FoundArtifact, FrozenSchema, hook_of, pipeline_of, reaching
from airflow_hops.web.artifacts.tasks import read_pipelines, together
from airflow_hops.web.types import Model

router = APIRouter(prefix="/api/dags/{dag_id}/schemas", tags=["schema"])
_PLAIN: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

Version = Annotated[int | None, Query(ge=1, description="A version; by default the current schema")]


class SchemaSummary(Model):
    """A frozen schema of a pipeline."""

    name: str
    features: int
    label: str | None
    key: str | None
    time: str | None
    versions: list[SchemaVersion]
    """Oldest first."""
    is_edited: bool
    """Whether its file was edited by hand; until the next run adopts the edit, no version is in force."""


class SchemaList(Model):
    """The frozen schemas of a pipeline."""

    schemas: list[SchemaSummary]
    elsewhere: list[str]
    """DAGs with a schema that work on the same models, among those that the user may read."""
    problems: list[str]
    """Schemas that cannot be read, with the reason."""


@router.get("", dependencies=[READS_ARTIFACTS])
def list_schemas(dag_id: str, readable: ReadableDags) -> SchemaList:
    """Lists the frozen schemas of a pipeline with their versions."""
    with create_session() as session:
        pipeline = pipeline_of(session, dag_id)
        others = read_pipelines(session, readable - {dag_id}).values()
    related = together(others, pipeline.models())
    store = hook_of(pipeline.conn_id()).store
    folder, schemas, problems = f"{store.uri(dag_id)}/{FROZEN}", list[SchemaSummary](), list[str]()
    with reaching(store):
        names = store.names(folder)
    for name in names:
        try:
            with reaching(store, f"{folder}/{name}"):
                if (result := _summary(store, dag_id, name_in(name))) is not None:
                    result.model_dump_json()  # a page must be able to show it
                    schemas.append(result)
        except HTTPException as error:
            problems.append(f"{name_in(name)}: {error.detail}")
    elsewhere = sorted(other.dag_id for other in related if "schema" in other.stages())
    return SchemaList(schemas=schemas, elsewhere=elsewhere, problems=problems)


@router.get("/{name}", response_model=SchemaDetail)
def get_schema(found: FrozenSchema, version: Version = None) -> Any:
    """Returns a frozen schema, by feature and as a whole."""
    return _page(found, version).detail.to_dict()


@router.get("/{name}/feature", response_model=SchemaFeatureDetail)
def get_schema_feature(
    found: FrozenSchema, feature: Annotated[str, Query(max_length=1000)], version: Version = None
) -> Any:
    """Returns all values of a feature's domain, and its protobuf text."""
    features = _page(found, version).features
    if feature not in features:
        raise HTTPException(422, f"feature is {feature!r}, expected one of the schema's {len(features)}")
    return features[feature].to_dict()


@router.get("/{name}/text", response_class=Response, responses=_PLAIN)
def get_schema_text(found: FrozenSchema, version: Version = None) -> Response:
    """Returns the schema as protobuf text."""
    return Response(_text(found, version), media_type="text/plain; charset=utf-8")


@router.get("/{name}/changes", response_model=SchemaComparison)
def compare_schema_versions(found: FrozenSchema, before: Annotated[int, Query(ge=1)] = 1, after: Version = None) -> Any:
    """Returns the differences between two versions, by feature."""
    return compare_aspects(_page(found, before).aspects, _page(found, after).aspects).to_dict()


def _summary(store: ArtifactStore, dag_id: str, name: str) -> SchemaSummary | None:
    uri = store.frozen_schema(dag_id, name)
    if not {"schema", "history"} & {*store.names(uri.rpartition("/")[0])}:
        return None
    manifest = store.manifest(uri)
    properties = SchemaProperties.of(manifest)
    return SchemaSummary.of(
        properties,
        name=name,
        features=len(properties.features or ()),
        versions=[vars(each) for each in schema_history(store, uri)],
        is_edited=is_edited(store, uri),
    )


def _text(result: FoundArtifact, version: int | None) -> str:
    """Returns the text of a version."""
    with reaching(result.store):
        try:
            result.store.file(result.artifact.uri, SCHEMA_FILE)
            return schema_text(result.store, result.artifact.uri, version)
        except BadInput as error:
            raise HTTPException(422, str(error)) from error


def _page(result: FoundArtifact, version: int | None) -> SchemaPage:
    """Returns the description of a version; HTTPException (409) if no step has written it."""
    uri, text = result.artifact.uri, _text(result, version)
    with reaching(result.store):
        page = read_page(result.store, uri, text)
    if page is None:
        maker = result.manifest.producer
        what = f"{uri}/{SCHEMA_FILE}, edited by hand," if version is None else f"version {version}"
        raise HTTPException(
            409,
            f"{what} has not been described for this page yet: a run of task {maker.task_id!r} of DAG "
            f"{maker.dag_id!r} does; the text can be read",
        )
    return page
