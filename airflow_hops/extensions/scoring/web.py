"""Scored windows of a model: the last runs of the tasks that score tables with it, and when the next one is due."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import APIRouter

from airflow_hops.airflow_internals.api_server import GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.extensions.scoring.core import PredictionsProperties
from airflow_hops.web.access import READS_ARTIFACTS, ReadableDags, may_read_results
from airflow_hops.web.artifacts.tasks import returned_by_dag_runs
from airflow_hops.web.extension_pages import ExtensionPage
from airflow_hops.web.models.records import Served
from airflow_hops.web.pipelines.health import MemberDag
from airflow_hops.web.pipelines.routes import Seen
from airflow_hops.web.runs.states import LastRun, last_runs
from airflow_hops.web.types import Model, RunAddress, Time, whole

router = APIRouter(prefix="/api/dags/{dag_id}/models/{model}/scoring", tags=["models"], dependencies=[READS_ARTIFACTS])
PAGE = ExtensionPage(router=router)
_RUNS = 15
_PREDICTIONS = "predictions"
_WRITES = "table_write"


class ScoredTask(RunAddress):
    """A run of a DAG that scores tables. Counts are null if its task has made no predictions."""

    task_id: str
    state: str
    """Airflow's state of the run."""
    at: Time
    """End of the run, or its start."""
    why: str | None
    """First failed task and its error, if the run failed."""
    start: Time | None
    """Start of the window; null if it has none."""
    end: Time | None
    rows: int | None
    by_version: dict[str, int]
    """Rows that each version scored; a shadow's are not among ``rows``."""
    failed: dict[str, int]
    """Rows on which a version failed, and which the champion scored."""
    tables: dict[str, str]
    """States of the tasks that write tables, by name; empty if the DAG has none of this package."""


class Scoring(Model):
    """Windows that were scored with a model, and the DAGs that score the next ones."""

    windows: list[ScoredTask]
    """Newest first."""
    dags: list[MemberDag]
    """DAGs that score tables with it, among those whose results the user may read."""
    problems: list[str]
    """Reasons why windows are missing: DAGs of which the user may not read runs, task instances and XComs."""


@router.get("")
def get_scoring(user: GetUserDep, readable: ReadableDags, served: Served) -> Scoring:
    """Returns the last windows that were scored with a model."""
    allowed = may_read_results(user)
    with create_session() as session:
        seen = Seen.by(session, readable)
        scoring = seen.scorers([served.model])
        scorers = [each for each in scoring if each.dag_id in allowed]
        runs = last_runs(session, scorers, _RUNS)
        named = [(dag_id, run.run_id) for dag_id, listed in runs.items() for run in listed]
        returned = returned_by_dag_runs(session, named)
    windows = []
    for pipeline in scorers:
        tables = {task.task_id for task in pipeline.tasks if task.kind == _WRITES}
        tasks = [task.task_id for task in pipeline.tasks if task.kind == _PREDICTIONS]
        for run in runs.get(pipeline.dag_id, []):
            made = {each.task_id: each.artifact for each in returned[pipeline.dag_id, run.run_id]}
            states = {each.task_id: each.state for each in run.stages if each.task_id in tables}
            windows += [
                _window(pipeline.dag_id, run, task_id, made.get(task_id), states)
                for task_id in tasks
                if task_id not in made or made[task_id].properties.get("model_name") == served.name
            ]
    dags = [seen.member(each, {dag_id: listed[0] for dag_id, listed in runs.items()}) for each in scorers]
    windows = sorted(windows, key=lambda each: each.at, reverse=True)[:_RUNS]
    hidden = [each.dag_id for each in scoring if each.dag_id not in allowed]
    problems = [f"you may not read the runs, task instances and XComs of {dag_id}" for dag_id in hidden]
    return Scoring(windows=windows, dags=dags, problems=problems)


def _window(dag_id: str, run: LastRun, task_id: str, made: Artifact | None, tables: Mapping[str, str]) -> ScoredTask:
    start, end = (PredictionsProperties.of(made).window if made else None) or (None, None)
    return ScoredTask.of(
        run,
        dag_id=dag_id,
        task_id=task_id,
        at=run.ended_at or run.started_at or run.run_after,
        why=f"{run.failure.task_id}: {run.failure.why or 'it gave no reason'}" if run.failure else None,
        start=start,
        end=end,
        rows=whole(made.metrics.get("rows")) if made else None,
        by_version=_by_version(made, "rows"),
        failed=_by_version(made, "failed_rows"),
        tables=tables,
    )


def _by_version(made: Artifact | None, name: str) -> dict[str, int]:
    """Returns the counts of the metrics ``<name>_version_<version>``."""
    prefix, metrics = f"{name}_version_", made.metrics if made else {}
    return {key.removeprefix(prefix): int(value) for key, value in metrics.items() if key.startswith(prefix)}
