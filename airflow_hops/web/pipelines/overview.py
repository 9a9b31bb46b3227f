"""Overview of a pipeline: last runs, drift over time, questions that wait for a person, and schedule."""

from __future__ import annotations

from collections.abc import Container

from fastapi import APIRouter, HTTPException

from airflow_hops.airflow_internals.api_server import GetUserDep
from airflow_hops.airflow_internals.database import DagModel, create_session
from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS, READS_TASKS, ReadableDags, may_read_results
from airflow_hops.web.artifacts.lookup import pipeline_of
from airflow_hops.web.artifacts.tasks import PipelineDag, last_returned
from airflow_hops.web.pipelines.proposals import ProposedSchema, proposals_of
from airflow_hops.web.pipelines.routes import (
    PipelineSummary,
    Seen,
    SkewPoint,
    skew_points,
    summaries_of,
    with_properties,
)
from airflow_hops.web.runs.states import LastRun, last_runs
from airflow_hops.web.schema.validations import Question, waiting_questions
from airflow_hops.web.skew.retraining import MonitorDecision, decisions
from airflow_hops.web.types import Model, Time

router = APIRouter(prefix="/api/dags/{dag_id}", tags=["pipelines"])
_RUNS = 8
_CHECKS = 30
_QUESTIONS = 20
_NOTHING_TO_LEARN = "verdict"
"""``why`` of a refusal because there was no reason to retrain."""


class Schedule(Model):
    """The schedule of a DAG."""

    dag_id: str
    is_paused: bool
    summary: str | None
    """Airflow's summary of the timetable, such as a cron expression."""
    description: str | None
    next_run: Time | None
    """Null if no run is planned; a paused DAG does not start it."""
    assets: dict[str, list[str]]
    """Assets whose updates start it, with the pipelines that update them, among those that the user may read."""


class PipelineOverview(Model):
    """A pipeline. A DAG that only monitors a model has the overview of the pipeline that deploys the model."""

    pipeline: PipelineSummary
    models: list[str]
    """Names of the pipeline's models, those that it deploys first."""
    runs: list[LastRun]
    """Newest first."""
    skew: list[SkewPoint]
    """Checks of its models, oldest first."""
    retraining: list[MonitorDecision]
    """Decisions on retraining, newest first, except those without a reason to retrain."""
    waiting: list[Question]
    proposed: list[ProposedSchema]
    schedules: list[Schedule]
    """Schedules of the pipeline and the DAGs that watch its models or score tables with them."""


@router.get("/overview", dependencies=[READS_RUNS, READS_TASKS, READS_ARTIFACTS])
def get_pipeline_overview(user: GetUserDep, readable: ReadableDags, dag_id: str) -> PipelineOverview:
    """Returns the overview of a pipeline; its models have separate routes."""
    allowed = may_read_results(user)
    with create_session() as session:
        seen = Seen.by(session, readable)
        pipeline = pipeline_of(session, dag_id)
        if dag_id not in seen.pipelines:
            raise HTTPException(
                404,
                f"DAG {dag_id!r} is in no DAG file that can be imported: Airflow's Dags page lists import errors; if "
                "it was removed, its other pages show the artifacts it made",
            )
        pipeline = _leader(seen, allowed, pipeline)
        watchers = [each for each in seen.watchers(pipeline) if each.dag_id in allowed]
        scorers = [each for each in seen.scorers(pipeline.models()) if each.dag_id in allowed]
        family = list({each.dag_id: each for each in (pipeline, *watchers, *scorers)}.values())
        reports = last_returned(session, [each.dag_id for each in watchers], "skew", last=_CHECKS)
        proposals = proposals_of(session, [pipeline])
        decided = [
            decision
            for watcher in watchers
            for decision in decisions(
                session, watcher, [each for each in reports if each.dag_id == watcher.dag_id], allowed
            ).values()
            if decision.outcome != "pending" and decision.why != _NOTHING_TO_LEARN
        ]
        return PipelineOverview(
            pipeline=summaries_of(session, user, seen, [pipeline], allowed, proposals)[0],
            models=[name for _, name in pipeline.models()],
            runs=last_runs(session, [pipeline], _RUNS).get(pipeline.dag_id, []),
            skew=skew_points(pipeline, with_properties(reports))[-_CHECKS:],
            retraining=sorted(decided, key=lambda each: each.at.timestamp() if each.at else 0.0, reverse=True),
            waiting=waiting_questions(session, user, family, _QUESTIONS),
            proposed=[each for each in proposals[pipeline.dag_id] if isinstance(each, ProposedSchema)],
            schedules=[_schedule(seen, seen.dags[each.dag_id], each) for each in family],
        )


def _leader(seen: Seen, allowed: Container[str], pipeline: PipelineDag) -> PipelineDag:
    """Returns the single pipeline that deploys, or else trains, what a DAG watches; the DAG itself if there is none."""
    leaders = seen.leaders()
    if pipeline in leaders:
        return pipeline
    training = [each for each in leaders if pipeline in seen.watchers(each) and each.dag_id in allowed]
    deploying = [each for each in training if any(each.decides_on(name) for _, name in pipeline.models())]
    result = deploying or training
    return result[0] if len(result) == 1 else pipeline


def _schedule(seen: Seen, dag: DagModel, pipeline: PipelineDag) -> Schedule:
    updating = {name: [] for name in sorted(pipeline.scheduled_on)}  # type: dict[str, list[str]]
    for each in seen.pipelines.values():
        for name in each.assets & pipeline.scheduled_on:
            updating[name].append(each.dag_id)
    return Schedule(
        dag_id=dag.dag_id,
        is_paused=bool(dag.is_paused),
        summary=dag.timetable_summary,
        description=dag.timetable_description,
        next_run=dag.next_dagrun_create_after,
        assets={name: sorted(dag_ids) for name, dag_ids in updating.items()},
    )
