"""Pipelines: the models that they train and serve, their last run, and the drift of what they serve.

A DAG that only watches a model (its stages are ``skew`` and ``retraining``) belongs to the pipeline that trains the
model. Users who may not read that pipeline see the DAG as a separate pipeline.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session, selectinload

from airflow_hops.airflow_internals.api_server import GetUserDep
from airflow_hops.airflow_internals.database import DagModel, DagRun, create_session
from airflow_hops.core.performance import PerformanceProperties
from airflow_hops.core.skew import INSUFFICIENT, STABLE, SkewProperties
from airflow_hops.web.access import ReadableDags, may_read_results
from airflow_hops.web.artifacts.tasks import (
    PipelineDag,
    PipelineModel,
    ReturnedArtifact,
    StageTask,
    last_returned,
    read_pipelines,
    together,
)
from airflow_hops.web.models.records import ServedModel, served_models
from airflow_hops.web.pipelines.health import Facts, Finding, MemberDag, ModelFacts, health_of, hidden
from airflow_hops.web.pipelines.proposals import Proposed, proposals_of
from airflow_hops.web.runs.states import LastRun, last_runs
from airflow_hops.web.schema.validations import waiting_questions
from airflow_hops.web.skew.routes import SkewCheck, check_of
from airflow_hops.web.types import Limit, Model, Offset, Page, Time, whole


class SkewPoint(Model):
    """A check of a pipeline's monitoring."""

    at: Time
    verdict: str
    drifted: int | None
    """Number of drifted features; null if there were too few rows."""
    rows: int | None
    """Number of request rows that were compared."""
    version: int | None
    """Version with whose training data they were compared."""


class LastRetraining(Model):
    """The last training and its reason."""

    run_id: str
    at: Time
    run_type: str
    reason: str | None
    """Reason that the monitoring gave."""
    triggered_by: str | None
    """User who triggered it, if any."""


SkewReports = Sequence[tuple[ReturnedArtifact, SkewProperties]]
"""Reports with their properties, read once for all pipelines: those of 1,000 drifted features take a while."""


def with_properties(reports: Iterable[ReturnedArtifact]) -> SkewReports:
    """Reads the properties of reports."""
    return [(report, SkewProperties.of(report.artifact)) for report in reports]


def skew_points(pipeline: PipelineDag, reports: SkewReports) -> list[SkewPoint]:
    """Returns the checks of the pipeline's models, oldest first; the reports must be newest first."""
    points = []
    for report, properties in _about([name for _, name in pipeline.models()], reports):
        rows = whole(report.artifact.metrics.get("rows_current"))
        drifted = None if properties.verdict == INSUFFICIENT else len(properties.drifted)
        version = properties.reference.version
        points.append(SkewPoint.of(properties, report, drifted=drifted, rows=rows, version=version))
    return points[::-1]


def retrainings(session: Session, dag_ids: Collection[str], readable: Container[str]) -> dict[str, LastRetraining]:
    """Returns the last training of each DAG that did not come from the cache.

    Reasons given by DAGs that are not ``readable`` are left out.
    """
    newest: dict[str, ReturnedArtifact] = {}
    for model in last_returned(session, dag_ids, "model", last=5):
        if not model.artifact.cached:
            newest.setdefault(model.dag_id, model)
    made = tuple_(DagRun.dag_id, DagRun.run_id).in_([(model.dag_id, model.run_id) for model in newest.values()])
    runs = session.scalars(select(DagRun).where(made).options(selectinload(DagRun.consumed_asset_events)))
    results = {}
    for run in runs:
        extras = (event.extra or {} for event in run.consumed_asset_events if event.source_dag_id in readable)
        results[run.dag_id] = LastRetraining(
            run_id=run.run_id,
            at=newest[run.dag_id].at,
            run_type=str(run.run_type),
            reason=next((str(extra["reason"]) for extra in extras if extra.get("reason")), None),
            triggered_by=run.triggering_user_name,
        )
    return results


def _about(models: Collection[str], reports: SkewReports) -> Iterator[tuple[ReturnedArtifact, SkewProperties]]:
    return ((report, properties) for report, properties in reports if properties.reference.model in models)


router = APIRouter(prefix="/api", tags=["pipelines"])
_WATCHING = {"skew", "performance", "retraining"}


_SCORES = "predictions"
"""Kind of artifacts of tasks that score tables."""
_CHECKS = 24


class PipelineSummary(Model):
    """A pipeline. Without permission to read its runs, task instances and XComs, only its definition is set."""

    dag_id: str
    display_name: str
    is_paused: bool
    stages: list[str]
    health: list[Finding]
    """Facts about its health, worst first, without those of the model server; the first is its health."""
    monitors: list[MemberDag]
    """Other DAGs that watch its model, among those that the user may read."""
    last_run: LastRun | None
    model: ServedModel | None
    skew: SkewCheck | None
    """The newest check of one of its models."""
    retraining: LastRetraining | None


@router.get("/pipelines")
def list_pipelines(
    user: GetUserDep,
    readable: ReadableDags,
    name: Annotated[str, Query(description="Part of the DAG's id", max_length=250)] = "",
    limit: Limit = 50,
    offset: Offset = 0,
) -> Page[PipelineSummary]:
    """Lists the pipelines that the user may read, by name."""
    allowed = may_read_results(user)
    with create_session() as session:
        seen = Seen.by(session, readable)
        leaders = [pipeline for pipeline in seen.leaders() if name.lower() in pipeline.dag_id.lower()]
        shown = leaders[offset : offset + limit]
        proposals = proposals_of(session, [each for each in shown if each.dag_id in allowed])
        summaries = summaries_of(session, user, seen, shown, allowed, proposals)
    return Page[PipelineSummary](total_entries=len(leaders), entries=summaries)


@dataclass(frozen=True)
class Seen:
    """The pipelines that a user may read.

    Attributes:
        dags: Airflow's models of the DAGs that the user may read, pipelines or not.
        pipelines: Definitions of the pipelines.
    """

    dags: Mapping[str, DagModel]
    pipelines: Mapping[str, PipelineDag]

    @classmethod
    def by(cls, session: Session, readable: Collection[str]) -> Seen:
        """Returns the pipelines among the DAGs that a user may read."""
        alive = session.scalars(select(DagModel).where(DagModel.is_stale.is_(False)))
        dags = {dag.dag_id: dag for dag in alive if dag.dag_id in readable}
        return cls(dags, read_pipelines(session, list(dags)))

    def leaders(self) -> list[PipelineDag]:
        """Returns all pipelines by name, except those that only watch a model of another one."""
        training = [pipeline for pipeline in self.pipelines.values() if not _only_watches(pipeline)]
        trained = {model for pipeline in training for model in pipeline.models()}
        alone = [p for p in self.pipelines.values() if _only_watches(p) and not set(p.models()) & trained]
        return sorted(training + alone, key=lambda pipeline: pipeline.dag_id)

    def watchers(self, pipeline: PipelineDag) -> list[PipelineDag]:
        """Returns the pipelines that watch a model of the pipeline; may include the pipeline itself."""
        return together(self._watching, pipeline.models())

    def scorers(self, models: Collection[PipelineModel]) -> list[PipelineDag]:
        """Returns the pipelines that score tables with one of some models."""
        return together(self._scoring, models)

    def hidden(self, pipeline: PipelineDag) -> list[tuple[str, str]]:
        """Returns the tasks of a pipeline, and of others with its models, whose stage is not known here, and why."""
        models = pipeline.models()
        family = ((each, task) for each, task in self._hiding if each == pipeline or together([each], models))
        return [(f"{each.dag_id}: {task.task_id}", task.problem or "") for each, task in family]

    def member(self, pipeline: PipelineDag, runs: Mapping[str, LastRun]) -> MemberDag:
        """Returns a DAG with its last run."""
        dag = self.dags[pipeline.dag_id]
        return MemberDag(
            dag_id=dag.dag_id,
            is_paused=bool(dag.is_paused),
            last_run=runs.get(dag.dag_id),
            next_run=dag.next_dagrun_create_after,
        )

    @cached_property
    def _watching(self) -> list[PipelineDag]:
        return [each for each in self.pipelines.values() if {"skew", "performance"} & set(each.stages())]

    @cached_property
    def _hiding(self) -> list[tuple[PipelineDag, StageTask]]:
        return [(each, task) for each in self.pipelines.values() for task in each.tasks if task.problem]

    @cached_property
    def _scoring(self) -> list[PipelineDag]:
        return [each for each in self.pipelines.values() if any(task.kind == _SCORES for task in each.tasks)]


def summaries_of(
    session: Session,
    user: GetUserDep,
    seen: Seen,
    shown: Collection[PipelineDag],
    allowed: Container[str],
    proposals: Mapping[str, Sequence[Proposed]],
) -> list[PipelineSummary]:
    """Returns the list entries of the ``shown`` pipelines; ``allowed`` are the DAGs whose results the user may read."""
    watchers = {each.dag_id: seen.watchers(each) for each in shown}
    scorers = {
        each.dag_id: [scorer for scorer in seen.scorers(each.models()) if scorer.dag_id in allowed] for each in shown
    }
    open_ones = [pipeline for pipeline in shown if pipeline.dag_id in allowed]
    dag_ids = [pipeline.dag_id for pipeline in open_ones]
    watcher_ids = {each.dag_id for result in watchers.values() for each in result if each.dag_id in allowed}
    scorer_ids = {each.dag_id for result in scorers.values() for each in result}
    served = served_models(session, {model for pipeline in open_ones for model in pipeline.models()}, allowed)
    members = {*dag_ids, *watcher_ids, *scorer_ids}
    runs = last_runs(session, [seen.pipelines[dag_id] for dag_id in members])
    newest = {dag_id: result[0] for dag_id, result in runs.items()}
    reports = with_properties(last_returned(session, watcher_ids, "skew"))
    # Earlier comparisons are read only where something drifts.
    drifting = {each.dag_id for each, properties in reports if properties.verdict not in (STABLE, INSUFFICIENT)}
    earlier = with_properties(last_returned(session, drifting, "skew", last=_CHECKS)) if drifting else []
    measured = [
        (each.at, PerformanceProperties.of(each.artifact))
        for each in last_returned(session, watcher_ids, "performance")
    ]
    scored = [
        (each.artifact.properties.get("model_name"), (each.at, whole(each.artifact.metrics.get("rows")) or 0))
        for each in last_returned(session, scorer_ids, _SCORES)
    ]
    asked = waiting_questions(session, user, [seen.pipelines[dag_id] for dag_id in members])
    trained = retrainings(session, dag_ids, allowed)

    def facts_of_model(model: ServedModel) -> ModelFacts:
        check = next(_about([model.name], reports), None)
        return ModelFacts(
            served=model,
            skew=(check[0].at, check[1]) if check else None,
            drifting_since=_drifting_since(_about([model.name], earlier)),
            performance=next((each for each in measured if each[1].model_name == model.name), None),
            scored=next((rows for name, rows in scored if name == model.name), None),
        )

    def facts_of(pipeline: PipelineDag, monitors: Sequence[MemberDag]) -> Facts:
        scoring = [seen.member(each, newest) for each in scorers[pipeline.dag_id]]
        family = {pipeline.dag_id, *(each.dag_id for each in (*monitors, *scoring))}
        return Facts(
            own=seen.member(pipeline, newest),
            monitors=[each for each in monitors if each.dag_id in allowed],
            scorers=scoring,
            models=[facts_of_model(served[model][0]) for model in pipeline.models()],
            questions=[(each.asked_at, each.subject) for each in asked if each.task.dag_id in family],
            hidden=seen.hidden(pipeline),
            unread=[each for each in proposals[pipeline.dag_id] if isinstance(each, tuple)],
        )

    summaries = []
    for pipeline in shown:
        dag, is_open = seen.dags[pipeline.dag_id], pipeline.dag_id in allowed
        monitors = [seen.member(each, newest) for each in watchers[pipeline.dag_id]]
        names = [name for _, name in pipeline.models()] if is_open else []
        summaries.append(
            PipelineSummary(
                dag_id=pipeline.dag_id,
                display_name=dag.dag_display_name,
                is_paused=bool(dag.is_paused),
                stages=pipeline.stages(),
                health=health_of(facts_of(pipeline, monitors), datetime.now(UTC)) if is_open else hidden(),
                monitors=[each for each in monitors if each.dag_id != pipeline.dag_id],
                last_run=newest.get(pipeline.dag_id),
                model=served[pipeline.models()[0]][0] if names else None,
                skew=next((check_of(report, properties) for report, properties in _about(names, reports)), None),
                retraining=trained.get(pipeline.dag_id),
            )
        )
    return summaries


def _drifting_since(checks: Iterable[tuple[ReturnedArtifact, SkewProperties]]) -> datetime | None:
    """Returns when the newest of some checks, newest first, and those of its version and verdict before it began."""
    since, newest = None, None
    for report, properties in checks:
        state = properties.verdict, properties.reference.version
        newest = newest or state
        if state != newest:
            break
        since = report.at
    return since


def _only_watches(pipeline: PipelineDag) -> bool:
    return all(task.stage in _WATCHING for task in pipeline.tasks)
