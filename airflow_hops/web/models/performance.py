"""Performance of a model's served versions, based on the labels received so far."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.performance import REPORT_FILE, PerformanceProperties, PerformanceReport
from airflow_hops.web.access import READS_ARTIFACTS, MayRead, ReadableDags
from airflow_hops.web.artifacts.lookup import FoundArtifact
from airflow_hops.web.artifacts.routes import ArtifactAddress, returned_address
from airflow_hops.web.artifacts.tasks import last_returned, read_pipelines, together
from airflow_hops.web.models.records import Served
from airflow_hops.web.types import Model

router = APIRouter(prefix="/api/dags/{dag_id}/models/{model}", tags=["models"])


class LivePerformance(Model):
    """The newest measurement of a label; null if there is none."""

    artifact: ArtifactAddress | None
    report: PerformanceReport | None
    labels: list[str]
    """Measured labels, by name."""


@router.get("/performance", dependencies=[READS_ARTIFACTS])
def get_model_performance(
    user: GetUserDep,
    served: Served,
    readable: ReadableDags,
    label: Annotated[str | None, Query(max_length=512, description="The label; the first by name")] = None,
) -> LivePerformance:
    """Returns the newest measurement of a model's served versions by any DAG that the user may read."""
    may_read = MayRead(user, DagAccessEntity.XCOM)
    with create_session() as session:
        pipelines = read_pipelines(session, list(readable)).values()
        watching = together(pipelines, [served.model])
        dag_ids = [each.dag_id for each in watching if each.dag_id in may_read]
        result = last_returned(session, dag_ids, "performance")
    of_model = [(PerformanceProperties.of(each.artifact), each) for each in result]
    by_label = [(properties.label, each) for properties, each in of_model if properties.model_name == served.name]
    labels = sorted({name for name, _ in by_label})
    newest = next((each for name, each in by_label if name == (label or labels[0])), None)
    if newest is None:
        return LivePerformance(artifact=None, report=None, labels=labels)
    artifact = FoundArtifact.open(served.hook, newest.artifact)
    report = PerformanceReport.from_dict(artifact.read_json(REPORT_FILE)).to_dict()
    return LivePerformance(artifact=returned_address(newest), report=report, labels=labels)  # type: ignore[arg-type]
