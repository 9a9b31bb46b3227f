"""Frozen schemas: their features, their versions, and the differences between versions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Response

from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.properties import SchemaProperties
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.schema_history import (
    SCHEMA_FILE,
    SchemaVersion,
    has_schema,
    is_edited,
    schema_history,
    schema_text,
)
from airflow_hops.web.access import READS_ARTIFACTS, ReadableDags
from airflow_hops.web.artifacts.lookup import FoundArtifact, FrozenSchema, hook_of, pipeline_of, reaching
from airflow_hops.web.artifacts.tasks import read_pipelines, together
from airflow_hops.web.queries import ask
from airflow_hops.web.types import Model, Number

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


class SchemaConstraint(Model):
    """A constraint of a schema, in words."""

    name: str
    text: str


class FeatureDomain(Model):
    """The values that a feature may have."""

    kind: str
    """``strings``, ``range``, or the kind of domain as the schema names it (``bool``, ``time``, …)."""
    text: str
    size: int | None
    values: list[str]
    """The first values."""
    low: Number
    high: Number


class SchemaFeature(Model):
    """A feature of a schema."""

    name: str
    type: str
    deprecated: bool
    required: bool
    presence: str
    min_fraction: float
    values_per_row: str
    shape: list[int] | None
    environments: list[str]
    domain: FeatureDomain | None
    drift: dict[str, float]
    """Thresholds by measure."""
    skew: dict[str, float]
    constraints: list[SchemaConstraint]


class SchemaDetail(Model):
    """The contents of a schema."""

    features: list[SchemaFeature]
    environments: list[str]
    constraints: list[SchemaConstraint]


class SchemaFeatureDetail(Model):
    """A feature of a schema: all values of its domain, and its protobuf text."""

    values: list[str]
    text: str


class AspectChange(Model):
    """An aspect of a feature in two schemas, as text; null if a schema does not define it."""

    name: str
    before: str | None
    after: str | None
    changed: bool
    gained: list[str]
    gained_count: int
    lost: list[str]
    lost_count: int
    kept: int


class FeatureChange(Model):
    """A feature that differs between two schemas; an empty name means the schema as a whole."""

    name: str
    change: Literal["added", "removed", "changed"]
    texts: list[str]
    aspects: list[AspectChange]


class SchemaComparison(Model):
    """The differences between two schemas."""

    features: list[FeatureChange]
    unchanged: int


@router.get("", dependencies=[READS_ARTIFACTS])
def list_schemas(dag_id: str, readable: ReadableDags) -> SchemaList:
    """Lists the frozen schemas of a pipeline with their versions."""
    with create_session() as session:
        pipeline = pipeline_of(session, dag_id)
        others = read_pipelines(session, readable - {dag_id}).values()
    related = together(others, pipeline.models())
    store = hook_of(pipeline.conn_id()).store
    with reaching(store):
        names = store.names(store.uri(dag_id, "_frozen"))
        schemas = [result for name in names if (result := _summary(store, dag_id, name)) is not None]
    elsewhere = sorted(other.dag_id for other in related if "schema" in other.stages())
    return SchemaList(schemas=schemas, elsewhere=elsewhere)


@router.get("/{name}")
def get_schema(found: FrozenSchema, version: Version = None) -> SchemaDetail:
    """Returns a frozen schema, by feature and as a whole."""
    return SchemaDetail(**ask(found.hook, "schemas/describe", _versioned(found, version)))


@router.get("/{name}/feature")
def get_schema_feature(
    found: FrozenSchema, feature: Annotated[str, Query(max_length=1000)], version: Version = None
) -> SchemaFeatureDetail:
    """Returns all values of a feature's domain, and its protobuf text."""
    params = {**_versioned(found, version), "feature": feature}
    return SchemaFeatureDetail(**ask(found.hook, "schemas/feature", params))


@router.get("/{name}/text", response_class=Response, responses=_PLAIN)
def get_schema_text(found: FrozenSchema, version: Version = None) -> Response:
    """Returns the schema as protobuf text."""
    return Response(_versioned(found, version)["text"], media_type="text/plain; charset=utf-8")


@router.get("/{name}/changes")
def compare_schema_versions(
    found: FrozenSchema, before: Annotated[int, Query(ge=1)] = 1, after: Version = None
) -> SchemaComparison:
    """Returns the differences between two versions, by feature."""
    first, second = _versioned(found, before), _versioned(found, after)
    return compare_texts(found, first["text"], second["text"], first["source"], second["source"])


def compare_texts(
    found: FoundArtifact, before: str, after: str, before_source: str, after_source: str
) -> SchemaComparison:
    """Compares two schemas in protobuf text; the sources are for messages.

    Raises:
        HTTPException: 422, one does not parse.
    """
    params = {"before": before, "after": after, "before_source": before_source, "after_source": after_source}
    return SchemaComparison.model_validate(ask(found.hook, "schemas/compare", params))


def _summary(store: ArtifactStore, dag_id: str, name: str) -> SchemaSummary | None:
    uri = store.uri(dag_id, "_frozen", name, "schema")
    if not has_schema(store, uri):
        return None
    manifest = store.manifest(uri)
    of = SchemaProperties.of(manifest)
    return SchemaSummary.of(
        of,
        name=name,
        features=len(of.features or ()),
        versions=[vars(each) for each in schema_history(store, uri)],
        is_edited=is_edited(store, uri),
    )


def _versioned(result: FoundArtifact, version: int | None) -> dict[str, str]:
    """Returns the text of a version, and its address for messages."""
    source = f"{result.artifact.uri}/{SCHEMA_FILE}" if version is None else f"version {version}"
    with reaching(result.store):
        try:
            result.store.file(result.artifact.uri, SCHEMA_FILE)
            return {"text": schema_text(result.store, result.artifact.uri, version), "source": source}
        except BadInput as error:
            raise HTTPException(422, str(error)) from error
