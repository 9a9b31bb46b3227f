"""Entry points of the lineage page: deployed versions of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fastapi import APIRouter
from sqlalchemy.orm import Session

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.artifacts.properties import DeploymentProperties
from airflow_hops.core.models.model_record import Role
from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS, may_read
from airflow_hops.web.artifacts.lookup import hook_of, pipeline_of
from airflow_hops.web.artifacts.routes import ArtifactAddress, returned_address
from airflow_hops.web.artifacts.tasks import returned_by_runs
from airflow_hops.web.models.records import read_model_record
from airflow_hops.web.types import Model

router = APIRouter(prefix="/api/dags/{dag_id}", tags=["lineage"], dependencies=[READS_RUNS, READS_ARTIFACTS])


class DeployedVersion(Model):
    """A version that serves or served."""

    model: str
    version: int
    role: Literal["champion", "challenger", "former"]
    traffic_percent: int
    deployment: ArtifactAddress | None = None
    """Null in a lineage, if unknown, or if the user may not read the DAG that made it."""


@router.get("/versions")
def list_deployed_versions(user: GetUserDep, dag_id: str) -> list[DeployedVersion]:
    """Lists the deployed versions of the pipeline's models, newest first, and their deployments."""
    with create_session() as session:
        pipeline = pipeline_of(session, dag_id)
        versions: list[DeployedVersion] = []
        for conn_id, model in pipeline.models():
            record = read_model_record(hook_of(conn_id).store, model)
            roles: dict[int, Role] = {served.version: role for role, served in record.serving.items()}
            deployed = {event.version for event in record.history if event.event in ("deployed", "canary")}
            for number in sorted(deployed, reverse=True):
                began = record.began(number)
                versions.append(
                    DeployedVersion(
                        model=model,
                        version=number,
                        role=roles.get(number, "former"),
                        traffic_percent=record.traffic.get(number, 0),
                        deployment=_deployment(session, user, model, number, began.made_by if began else {}),
                    )
                )
    return versions


def _deployment(
    session: Session, user: GetUserDep, model: str, version: int, by: Mapping[str, str]
) -> ArtifactAddress | None:
    """Returns the deployment by the run that deployed a version."""
    if "run_id" not in by or not may_read(user, by["dag_id"], DagAccessEntity.XCOM):
        return None
    for each in returned_by_runs(session, by["dag_id"], [by["run_id"]]):
        if each.artifact.kind == "deployment":
            properties = DeploymentProperties.of(each.artifact)
            if (properties.model_name, properties.version) == (model, version):
                return returned_address(each)
    return None
