"""The report of a validation: its anomalies with rows and values, and the quarantined rows."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Response

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.core.artifacts.artifact import Artifact, Manifest
from airflow_hops.core.schema.history import frozen_name
from airflow_hops.core.validation_page import (
    VALIDATION_PAGE,
    AnomalyEntry,
    MeasuredDistance,
    QuarantinedRows,
    quarantine_page,
)
from airflow_hops.web.access import may_read
from airflow_hops.web.artifacts.lookup import FoundArtifact, TaskArtifact, open_artifact
from airflow_hops.web.artifacts.routes import ArtifactAddress, address_of
from airflow_hops.web.schema.validations import schema_of, version_of
from airflow_hops.web.types import Json, Model

router = APIRouter(prefix="/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}", tags=["validation"])
_REPORT, PROPOSED_FILE = "anomalies.json", "proposed.pbtxt"


class ValidationReport(Model):
    """A validation in full."""

    anomalies: list[AnomalyEntry]
    measures: list[MeasuredDistance]
    rows: dict[str, int]
    """Rows by split."""
    quarantined: dict[str, int]
    """Quarantined rows by split."""
    statistics: ArtifactAddress | None
    """The validated statistics; null if the user may not read the DAG that made them, or they are unknown."""
    schema_name: str | None
    """Frozen schema that the data was validated against; null if it is not in this store."""
    schema_version: int | None
    unknown: list[str]
    """Reasons why statistics or version of the schema are unknown: they were deleted, or cannot be read."""
    has_proposal: bool


@router.get("/anomalies")
def get_validation_report(found: TaskArtifact, user: GetUserDep, dag_id: str) -> ValidationReport:
    """Returns the anomalies of a validation, each with its number of rows and example values."""
    report: Json = found.read_json(_REPORT)
    if not found.has(VALIDATION_PAGE):
        raise HTTPException(409, found.without_page())
    statistics, version, unknown = None, None, list[str]()
    schema = schema_of(found.manifest)
    try:
        statistics = input_of(found, user, dag_id, "statistics")
    except HTTPException as error:
        unknown.append(str(error.detail))
    try:
        version = version_of(found.store, schema, {})
    except HTTPException as error:
        unknown.append(str(error.detail))
    frozen = frozen_name(schema.uri) if schema else None
    return ValidationReport(
        **found.read_json(VALIDATION_PAGE),
        rows=report["rows"],
        quarantined={split: rows.rows_rejected for split, rows in found.artifact.rows.items() if report["quarantined"]},
        statistics=address_of(statistics[1]) if statistics else None,
        schema_name=frozen.name if frozen else None,
        schema_version=version,
        unknown=unknown,
        has_proposal=found.has(PROPOSED_FILE),
    )


@router.get("/quarantine", response_model=QuarantinedRows)
def list_quarantined_rows(found: TaskArtifact, split: Annotated[str, Query(max_length=250)]) -> Response:
    """Lists rows of a split that violate the schema, with the reasons."""
    if not found.has(path := quarantine_page(split)):
        found.read_json(_REPORT)
        raise HTTPException(422, f"split is {split!r}, and no row of it is in quarantine, or is listed for this page")
    return Response(found.read_text(path), media_type="application/json")


def input_of(found: FoundArtifact, user: GetUserDep, dag_id: str, role: str) -> tuple[Artifact, Manifest] | None:
    """Returns an input of the validation, or None if the user may not read it; see :func:`open_artifact`."""
    for values in found.manifest.inputs.get(role, ()):
        artifact, manifest = open_artifact(found.store, values)
        maker = manifest.producer.dag_id
        if maker == dag_id or may_read(user, maker, DagAccessEntity.XCOM):
            return artifact, manifest
    return None
