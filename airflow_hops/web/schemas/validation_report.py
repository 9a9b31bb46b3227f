"""The report of a validation: its anomalies with rows and values, and the quarantined rows."""

from __future__ import annotations

import contextlib
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.core.contract.artifacts import Artifact, HopsError, Manifest
from airflow_hops.core.store.schema_history import SCHEMA_FILE, schema_history
from airflow_hops.web.access import may_read
from airflow_hops.web.artifacts.lookup import FoundArtifact, TaskArtifact, open_artifact, reaching
from airflow_hops.web.artifacts.routes import ArtifactAddress, address_of
from airflow_hops.web.queries import ask
from airflow_hops.web.schemas.validations import Severity, schema_of
from airflow_hops.web.types import Json, Model, Number, Offset

router = APIRouter(prefix="/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}", tags=["validation"])
_REPORT, PROPOSED_FILE = "anomalies.json", "proposed.pbtxt"


class OffendingValue(Model):
    """A value that violates the schema and its number of rows, or null if the statistics do not contain it."""

    value: str
    rows: int | None


class AnomalyReason(Model):
    """Why a feature is anomalous."""

    type: str
    """TFDV's name."""
    summary: str
    description: str
    rows: int | None
    """Number of affected rows; null if the anomaly does not concern single rows, or the number is unknown."""
    is_exact: bool
    """Whether the rows were counted; otherwise they are estimated from the statistics."""
    values: list[OffendingValue]
    values_count: int
    quarantined: int
    """Rows that were quarantined for it."""


class AnomalyEntry(Model):
    """An anomaly of a feature in a split; an empty feature name means the data set."""

    split: str
    feature: str
    severity: Severity
    reasons: list[AnomalyReason]


class MeasuredDistance(Model):
    """A distance that TFDV measured between the data and an earlier span."""

    split: str
    feature: str
    measure: str
    value: Number
    threshold: Number


class ValidationReport(Model):
    """A validation in full."""

    anomalies: list[AnomalyEntry]
    measures: list[MeasuredDistance]
    rows: dict[str, int]
    """Rows by split."""
    quarantined: dict[str, int]
    """Quarantined rows by split."""
    statistics: ArtifactAddress | None
    """The validated statistics; null if they were deleted, or the user may not read the DAG that made them."""
    schema_name: str | None
    """Frozen schema that the data was validated against; null if it is not in this store."""
    schema_version: int | None
    has_proposal: bool


class QuarantineReason(Model):
    """A rule that a row violates."""

    feature: str
    type: str
    text: str


class QuarantinedRows(Model):
    """Rows that violate the schema."""

    columns: list[str]
    rows: list[list[str | None]]
    reasons: list[list[QuarantineReason]]
    total: int
    matching: int


@router.get("/anomalies")
def get_validation_report(found: TaskArtifact, user: GetUserDep, dag_id: str) -> ValidationReport:
    """Returns the anomalies of a validation, each with its number of rows and example values."""
    report: Json = found.read_json(_REPORT)
    statistics, schema = (input_of(found, user, dag_id, role) for role in ("statistics", "schema"))
    params = {
        "artifact": found.artifact.to_dict(),
        "statistics": statistics[0].to_dict() if statistics else None,
        "schema": text_of(found, schema[0]) if schema else None,
    }
    name, version = _validated_against(found)
    return ValidationReport(
        **ask(found.hook, "validation/anomalies", params),
        rows=report["rows"],
        quarantined={split: rows.rows_rejected for split, rows in found.artifact.rows.items() if report["quarantined"]},
        statistics=address_of(statistics[1]) if statistics else None,
        schema_name=name,
        schema_version=version,
        has_proposal=found.has(PROPOSED_FILE),
    )


@router.get("/quarantine")
def list_quarantined_rows(
    found: TaskArtifact,
    split: Annotated[str, Query(max_length=250)],
    reason: Annotated[
        str | None, Query(max_length=1000, description="Feature and TFDV's type, separated by a space")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    offset: Offset = 0,
) -> QuarantinedRows:
    """Lists rows of a split that violate the schema, with the reasons."""
    found.read_json(_REPORT)
    params = {"split": split, "reason": reason, "limit": limit, "offset": offset}
    return QuarantinedRows(**ask(found.hook, "validation/quarantine", {"artifact": found.artifact.to_dict(), **params}))


def input_of(found: FoundArtifact, user: GetUserDep, dag_id: str, role: str) -> tuple[Artifact, Manifest] | None:
    """Returns an input of the validation, or None if it is gone or the user may not read it."""
    for values in found.manifest.inputs.get(role, ()):
        with contextlib.suppress(HTTPException):
            artifact, manifest = open_artifact(found.store, values)
            maker = manifest.producer.dag_id
            if maker == dag_id or may_read(user, maker, DagAccessEntity.XCOM):
                return artifact, manifest
    return None


def text_of(found: FoundArtifact, schema: Artifact) -> str:
    """Returns the text of a schema.

    Raises:
        HTTPException: 410, it was deleted; 502, the store cannot be read.
    """
    with reaching(found.store):
        try:
            return found.store.read_text(f"{schema.uri}/{SCHEMA_FILE}")
        except FileNotFoundError:
            raise HTTPException(410, f"{SCHEMA_FILE} of {schema.uri} was deleted") from None


def _validated_against(result: FoundArtifact) -> tuple[str | None, int | None]:
    """Returns name and version of the frozen schema of the validation, if it is in this store."""
    schema = schema_of(result.manifest)
    parts = schema.uri.split("/") if schema else []
    if schema is None or len(parts) < 4 or parts[-3] != "_frozen":
        return None, None
    try:
        versions = schema_history(result.store, schema.uri)
    except (HopsError, FileNotFoundError):
        versions = []
    matching = [each.version for each in versions if each.fingerprint == schema.fingerprint]
    return parts[-2], max(matching, default=None)
