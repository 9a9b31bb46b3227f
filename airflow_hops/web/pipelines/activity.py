"""Activity of served models: live traffic shares, requests, and skew by check.

Pages load it separately, since it waits for model servers; the list of pipelines needs only database and store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query

from airflow_hops.airflow_internals.api_server import GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.errors import HopsError
from airflow_hops.web.access import ReadableDags, may_read_results
from airflow_hops.web.artifacts.tasks import last_returned, read_pipelines, together
from airflow_hops.web.models.live import LiveModel, LiveVersion, NoProcess, server_of
from airflow_hops.web.pipelines.routes import SkewPoint, skew_points, with_properties
from airflow_hops.web.types import Model
from airflow_hops.web.unusable_files import reading_threads

router = APIRouter(prefix="/api/pipelines", tags=["pipelines"])
_CHECKS = 24

DagIds = Annotated[list[str], Query(min_length=1, max_length=100, description="The pipelines' DAGs")]


class Activity(Model):
    """Activity of the models that a pipeline serves."""

    traffic: LiveModel | None
    """Versions with their counts as the model server reports them; null if the pipeline serves no model."""
    skew: list[SkewPoint]
    """The newest checks, oldest first."""


@router.get("/activity")
def list_activity(user: GetUserDep, readable: ReadableDags, dag_id: DagIds) -> dict[str, Activity]:
    """Returns the activity of the models that pipelines serve, by DAG; of DAGs whose results the user may read."""
    allowed = may_read_results(user)
    with create_session() as session:
        known = read_pipelines(session, list(readable))
        shown = {each: known[each] for each in dag_id if each in known and each in allowed}
        watching = [pipeline for pipeline in known.values() if "skew" in pipeline.stages()]
        watchers = {name: together(watching, pipeline.models()) for name, pipeline in shown.items()}
        watcher_ids = {each.dag_id for result in watchers.values() for each in result if each.dag_id in allowed}
        reports = with_properties(last_returned(session, watcher_ids, "skew", last=_CHECKS))
    models = {name: pipeline.models()[0] for name, pipeline in shown.items() if pipeline.models()}
    asked = sorted({model.hops_conn_id for model in models.values()})
    with reading_threads() as threads:
        servers = dict(zip(asked, threads.map(_ask, asked), strict=True))
    activities = {}
    for name, pipeline in shown.items():
        model = models.get(name)
        traffic = _traffic(servers[model.hops_conn_id], model.name) if model else None
        activities[name] = Activity(traffic=traffic, skew=skew_points(pipeline, reports)[-_CHECKS:])
    return activities


def _ask(conn_id: str) -> Mapping[str, Any] | str:
    try:
        client, server = server_of(conn_id)
        if not server.is_bundled:
            return f"{client.address} is a {server.kind}, which keeps no counts per version"
        stats: Mapping[str, Any] = client.stats()
        return stats
    except NoProcess:
        return {}
    except HopsError as error:
        return str(error)


def _traffic(answer: Mapping[str, Any] | str, model_name: str) -> LiveModel:
    if isinstance(answer, str):
        return LiveModel(problem=answer)
    counted = (answer.get("models") or {}).get(model_name, {}).get("versions", {})
    versions = [LiveVersion(**{**result, "version": int(version)}) for version, result in counted.items()]
    return LiveModel(versions=sorted(versions, key=lambda each: each.version))
