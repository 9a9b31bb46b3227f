"""The pipelines: what they train and serve, how their last run went, whether what they serve has drifted.

A DAG that only watches a model (its stages are ``skew`` and ``retraining``) belongs to the pipeline that trains this
model, and is a pipeline of its own only to users who may not read that one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import APIRouter, Query
from sqlalchemy import select
from sqlalchemy.orm import Session

from airflow_hops.api.access import ReadableDags, may_read_results
from airflow_hops.api.artifacts.from_tasks import last_returned
from airflow_hops.api.models.records import ServedModel, served_models
from airflow_hops.api.pipelines.definitions import PipelineDag, definitions, together
from airflow_hops.api.pipelines.state import Retraining, SkewState, retrainings, skew_state
from airflow_hops.api.runs.states import LastRun, last_runs
from airflow_hops.api.types import Limit, Model, Offset, Page

router = APIRouter(prefix="/api", tags=["pipelines"])
_WATCHING = {"skew", "retraining"}


class Monitor(Model):
    """A DAG that watches a pipeline's model."""

    dag_id: str
    is_paused: bool
    last_run: LastRun | None


class PipelineSummary(Model):
    """A pipeline. Who may not read its runs, task instances and XComs learns what it is, and not how it does."""

    dag_id: str
    display_name: str
    is_paused: bool
    stages: list[str]
    monitors: list[Monitor]
    """DAGs that watch its model, of those that the user may read."""
    last_run: LastRun | None
    model: ServedModel | None
    skew: SkewState | None
    retraining: Retraining | None


class PipelinePage(Page):
    """Pipelines by name."""

    pipelines: list[PipelineSummary]


@router.get("/pipelines")
def list_pipelines(
    user: GetUserDep,
    readable: ReadableDags,
    name: Annotated[str, Query(description="Part of the DAG's id", max_length=250)] = "",
    limit: Limit = 50,
    offset: Offset = 0,
) -> PipelinePage:
    """The pipelines that the user may read."""
    told = may_read_results(user)
    with create_session() as session:
        alive = {dag.dag_id: dag for dag in _alive(session, readable)}
        known = definitions.pipelines(session, list(alive))
        leaders = sorted(_leaders(known.values()), key=lambda pipeline: pipeline.dag_id)
        leaders = [pipeline for pipeline in leaders if name.lower() in pipeline.dag_id.lower()]
        shown = leaders[offset : offset + limit]
        watching = [pipeline for pipeline in known.values() if "skew" in pipeline.stages()]
        watchers = {pipeline.dag_id: together(watching, pipeline.models()) for pipeline in shown}
        models = served_models(session, [pipeline for pipeline in shown if pipeline.dag_id in told], told)
        dag_ids = [pipeline.dag_id for pipeline in shown if pipeline.dag_id in told]
        watcher_ids = {each.dag_id for found in watchers.values() for each in found if each.dag_id in told}
        runs = last_runs(session, [known[dag_id] for dag_id in {*dag_ids, *watcher_ids}])
        reports = last_returned(session, watcher_ids, "skew")
        trained = retrainings(session, dag_ids, told)
        summaries = [
            PipelineSummary(
                dag_id=pipeline.dag_id,
                display_name=alive[pipeline.dag_id].dag_display_name,
                is_paused=bool(alive[pipeline.dag_id].is_paused),
                stages=pipeline.stages(),
                monitors=[
                    Monitor(
                        dag_id=watcher.dag_id,
                        is_paused=bool(alive[watcher.dag_id].is_paused),
                        last_run=runs.get(watcher.dag_id),
                    )
                    for watcher in watchers[pipeline.dag_id]
                    if watcher != pipeline
                ],
                last_run=runs.get(pipeline.dag_id),
                model=models.get(pipeline.dag_id),
                skew=skew_state(pipeline, reports) if pipeline.dag_id in told else None,
                retraining=trained.get(pipeline.dag_id),
            )
            for pipeline in shown
        ]
    return PipelinePage(total_entries=len(leaders), pipelines=summaries)


def _alive(session: Session, readable: Collection[str]) -> Sequence[DagModel]:
    found: Sequence[DagModel] = session.scalars(select(DagModel).where(DagModel.is_stale.is_(False))).all()
    return [dag for dag in found if dag.dag_id in readable]


def _leaders(pipelines: Collection[PipelineDag]) -> list[PipelineDag]:
    training = [pipeline for pipeline in pipelines if not _only_watches(pipeline)]
    trained = {model for pipeline in training for model in pipeline.models()}
    alone = [p for p in pipelines if _only_watches(p) and not set(p.models()) & trained]
    return training + alone


def _only_watches(pipeline: PipelineDag) -> bool:
    return all(task.stage in _WATCHING for task in pipeline.tasks)
