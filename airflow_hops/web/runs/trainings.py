"""Training runs: MLflow's runs of a pipeline, with the DAG runs that made them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from fastapi import APIRouter, HTTPException, Query
from fastapi.params import Path as PathParameter
from sqlalchemy import select

from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS, may_change
from airflow_hops.web.artifacts.lookup import hook_of, pipeline_of
from airflow_hops.web.queries.client import ask
from airflow_hops.web.types import Model, Number

router = APIRouter(
    prefix="/api/dags/{dag_id}/training-runs", tags=["training runs"], dependencies=[READS_RUNS, READS_ARTIFACTS]
)
_SORT = re.compile(r"(?P<down>-?)(?P<what>(?:metrics|params)\.[\w/.: -]{1,250}|run_name|status|start_time|duration)")
_TRACKED = ("train", "deploy")

RunId = Annotated[str, PathParameter(pattern=r"^[0-9a-f]{32}$", description="MLflow's run id")]


class RunModelVersion(Model):
    """A registered version of a model."""

    name: str
    version: int


class TrainingRun(Model):
    """A run of MLflow."""

    run_id: str
    name: str
    status: str
    """MLflow's word; RUNNING is said of a training that was killed, too: see ``dag_run_state``."""
    start_time: int
    """Milliseconds since the epoch."""
    end_time: int | None
    params: dict[str, str]
    metrics: dict[str, Number]
    """The last value of each."""
    tags: dict[str, str]
    parent: str | None
    """Id of the run in which this one is nested."""
    dag_run_id: str | None
    dag_run_state: str | None
    """None where Airflow has no such DAG run any more."""
    task_id: str | None
    map_index: int


class ListedRun(TrainingRun):
    """A run with the model versions registered from it."""

    versions: list[RunModelVersion]


class TrainingRunPage(Model):
    """A page of runs; ``next_page_token`` requests the next one."""

    runs: list[ListedRun]
    next_page_token: str | None


class MetricPoint(Model):
    """A value of a metric, and its step."""

    value: Number
    step: int


class MetricFigures(Model):
    """A metric during a run."""

    last: MetricPoint
    min: MetricPoint | None
    max: MetricPoint | None
    count: int


class RunDataset(Model):
    """A data set that a run was trained on, or evaluated with."""

    name: str
    digest: str
    context: str | None
    rows: int | None


class TrainingRunDetail(ListedRun):
    """MLflow's data on a run."""

    figures: dict[str, MetricFigures]
    datasets: list[RunDataset]
    may_annotate: bool
    """Whether the user may set its note and tags."""
    children: list[TrainingRun]


class MetricCurve(Model):
    """A metric of a run, step by step."""

    run_id: str
    metric: str
    points: int
    """How many there are; of more than a thousand, those are sent that show the curve's shape."""
    steps: list[int]
    values: list[Number]
    times: list[int]
    """Milliseconds since the epoch."""


class MetricCurves(Model):
    """Metrics of runs."""

    curves: list[MetricCurve]


@router.get("")
def list_training_runs(
    dag_id: str,
    search: Annotated[str, Query(max_length=2000, description="MLflow's search syntax")] = "",
    sort: Annotated[
        str, Query(max_length=300, description="metrics.…, params.…, run_name, …; a leading - means descending")
    ] = ("-start_time"),
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    page_token: Annotated[str | None, Query(max_length=2000)] = None,
) -> TrainingRunPage:
    """Training runs of a pipeline, filtered and ordered by MLflow; by default newest first.

    Raises:
        HTTPException: 422, the filter does not parse; the message has the position and what was expected.
    """
    wanted = _SORT.fullmatch(sort)
    if wanted is None:
        raise HTTPException(
            422, f"sort is {sort!r}; expected metrics.<name>, params.<name>, run_name, status, start_time or duration"
        )
    entity, dot, name = wanted["what"].partition(".")
    order = f"{entity}.`{name}`" if dot else entity
    order_by = [f"{order} {'DESC' if wanted['down'] else 'ASC'}"]
    params = {"filter": search, "order_by": order_by, "max_results": limit, "page_token": page_token or None}
    result = ask(tracking_hook(dag_id), "runs/search", {"experiment": dag_id, **params})
    runs = _with_dag_runs(dag_id, result["runs"])
    return TrainingRunPage(runs=[ListedRun(**run) for run in runs], next_page_token=result["next_page_token"])


@router.get("/{mlflow_run_id}")
def get_training_run(user: GetUserDep, dag_id: str, mlflow_run_id: RunId) -> TrainingRunDetail:
    """One training run."""
    result = ask(tracking_hook(dag_id), "runs/get", {"experiment": dag_id, "run_id": mlflow_run_id})
    result["children"] = _with_dag_runs(dag_id, result["children"])
    (run,) = _with_dag_runs(dag_id, [result])
    return TrainingRunDetail(**run, may_annotate=may_change(user, dag_id))


@router.get("/{mlflow_run_id}/curves")
def list_curves(
    dag_id: str,
    mlflow_run_id: RunId,
    metric: Annotated[list[str] | None, Query(max_length=50, description="Metrics; all by default")] = None,
) -> MetricCurves:
    """The metrics of a run over time."""
    params = {"experiment": dag_id, "run_id": mlflow_run_id, "metrics": metric}
    return MetricCurves(**ask(tracking_hook(dag_id), "runs/curves", params))


def tracking_hook(dag_id: str) -> RuntimeHook:
    """The connection of what trains in a pipeline, or else of its first task.

    Raises:
        HTTPException: 404, there is no such pipeline; 502, the connection cannot be read.
    """
    with create_session() as session:
        pipeline = pipeline_of(session, dag_id)
    trains = next((task.task_id for stage in _TRACKED for task in pipeline.tasks if task.stage == stage), None)
    return hook_of(pipeline.conn_id(trains))


def _with_dag_runs(dag_id: str, runs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The runs with the task instances that their tags name."""
    runs = list(runs)
    run_ids = {run["tags"].get("hops.run_id", "") for run in runs}
    with create_session() as session:
        mine = (DagRun.dag_id == dag_id, DagRun.run_id.in_(run_ids))
        rows = session.execute(select(DagRun.run_id, DagRun.state).where(*mine))
        states = {row.run_id: str(row.state) for row in rows}
    return [
        {
            **run,
            "dag_run_id": run["tags"].get("hops.run_id"),
            "dag_run_state": states.get(run["tags"].get("hops.run_id", "")),
            "task_id": run["tags"].get("hops.task_id"),
            "map_index": int(index) if (index := run["tags"].get("hops.map_index", "")).isdecimal() else -1,
        }
        for run in runs
    ]
