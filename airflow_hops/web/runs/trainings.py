"""Training runs of a pipeline: a list, one run with its figures, and its curves, from their records in the store."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, HTTPException, Query
from fastapi.params import Path as PathParameter

from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.training.record import (
    MetricFigures,
    RunDataset,
    SlowestRank,
    TrainingRecord,
    TrainingTry,
    read_curves,
    training_uri,
)
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS
from airflow_hops.web.artifacts.lookup import Gone, hook_of, pipeline_of, reaching
from airflow_hops.web.runs.records import TrainingRun, Trainings, dag_run_states
from airflow_hops.web.types import Limit, Model, Number, Offset, Page

router = APIRouter(
    prefix="/api/dags/{dag_id}/training-runs", tags=["training runs"], dependencies=[READS_RUNS, READS_ARTIFACTS]
)
_SORT = re.compile(r"(?P<down>-?)(?P<what>(?:metrics|params)\.[\w/.: -]{1,250}|run_name|status|start_time|duration)")
_TRACKED = ("training", "deploy")
_CHILDREN = 100

TrainingId = Annotated[str, PathParameter(pattern=r"^[0-9a-f]{32}$", description="Id of the training run")]


class TrainingRunDetail(TrainingRun):
    """A training run in full."""

    figures: dict[str, MetricFigures]
    datasets: list[RunDataset]
    tries: list[TrainingTry]
    slowest: list[SlowestRank]
    """The slowest rank of each epoch; empty for one rank."""
    cost: dict[str, Number]
    """``core_s`` and ``gpu_s``: CPU and GPU seconds; empty before the end."""
    mlflow_run_id: str | None
    mlflow_url: str | None
    """Its page in MLflow; null without a server of MLflow."""
    children: list[TrainingRun]
    """Its newest trials, at most a hundred."""


class TrainingRuns(Page[TrainingRun]):
    """Training runs of a pipeline."""

    mlflow_url: str | None
    """Page of their experiment in MLflow; null without a server of MLflow."""
    mlflow_command: str | None
    """Command that serves MLflow's pages if it has only a database file or folder."""


class MetricCurve(Model):
    """A metric of a run by step."""

    run_id: str
    metric: str
    points: int
    """Total number of values; of more than a thousand, those that show the curve's shape are stored."""
    steps: list[int]
    values: list[Number]
    times: list[int]
    """Milliseconds since the epoch."""


@router.get("")
def list_training_runs(
    dag_id: str,
    run_id: Annotated[list[str] | None, Query(max_length=1000, description="Ids of runs; all by default")] = None,
    sort: Annotated[
        str, Query(max_length=300, description="metrics.…, params.…, run_name, …; a leading - means descending")
    ] = ("-start_time"),
    limit: Limit = 100,
    offset: Offset = 0,
) -> TrainingRuns:
    """Lists training runs of a pipeline; by default newest first."""
    wanted = _SORT.fullmatch(sort)
    if wanted is None:
        raise HTTPException(
            422, f"sort is {sort!r}; expected metrics.<name>, params.<name>, run_name, status, start_time or duration"
        )
    hook = tracking_hook(dag_id)
    trainings = Trainings(hook.store, dag_id)
    runs = [run for run in trainings.runs.values() if run_id is None or run.run_id in run_id]
    runs = _ordered(runs, wanted["what"], bool(wanted["down"]))
    tracked = [record for record in trainings.records.values() if record.mlflow]
    mlflow = max(tracked, key=lambda record: record.start_time).mlflow if tracked else {}
    return TrainingRuns(
        total_entries=len(runs),
        entries=with_dag_runs(dag_id, runs[offset : offset + limit]),
        problems=trainings.problems,
        mlflow_url=_experiment_url(hook.settings.tracking_uri, mlflow),
        mlflow_command=_mlflow_command(hook.settings.tracking_uri) if mlflow else None,
    )


@router.get("/{training_id}")
def get_training_run(dag_id: str, training_id: TrainingId) -> TrainingRunDetail:
    """Returns a training run."""
    hook = tracking_hook(dag_id)
    trainings = Trainings(hook.store, dag_id)
    run, record = trainings.find(training_id)
    nested = _ordered([each for each in trainings.runs.values() if each.parent == training_id], "start_time", True)
    (run,) = with_dag_runs(dag_id, [run])
    experiment = _experiment_url(hook.settings.tracking_uri, record.mlflow)
    return TrainingRunDetail.of(
        record,
        **vars(run),
        mlflow_run_id=record.mlflow.get("run"),
        mlflow_url=experiment and f"{experiment}/runs/{record.mlflow['run']}",
        children=with_dag_runs(dag_id, nested[:_CHILDREN]),
    )


@router.get("/{training_id}/curves")
def list_curves(
    dag_id: str,
    training_id: TrainingId,
    metric: Annotated[list[str] | None, Query(max_length=50, description="Metrics; all by default")] = None,
) -> list[MetricCurve]:
    """Lists the metrics of a run over time."""
    store = tracking_hook(dag_id).store
    _, record = Trainings(store, dag_id).find(training_id)
    uri = training_uri(store, dag_id, training_id, "curves")
    with reaching(store):
        stored = read_curves(store, dag_id, training_id).curves
        if record.figures and not stored and not store.files.exists(uri):  # figures of an evaluation have no curve
            raise Gone(f"{uri} was deleted")
    return [
        MetricCurve.of(curve, run_id=training_id, metric=name, points=max(len(curve.steps), _count(record, name)))
        for name, curve in stored.items()
        if metric is None or name in metric
    ]


def tracking_hook(dag_id: str) -> RuntimeHook:
    """Returns the hook of a pipeline's training task, or else of its first task."""
    with create_session() as session:
        pipeline = pipeline_of(session, dag_id)
    trains = next((task.task_id for stage in _TRACKED for task in pipeline.tasks if task.stage == stage), None)
    return hook_of(pipeline.conn_id(trains))


def with_dag_runs(dag_id: str, runs: list[TrainingRun]) -> list[TrainingRun]:
    """Returns runs with the states of their DAG runs."""
    states = dag_run_states(dag_id, runs)
    return [run.model_copy(update={"dag_run_state": states.get(run.dag_run_id or "")}) for run in runs]


def _ordered(runs: list[TrainingRun], what: str, down: bool) -> list[TrainingRun]:
    """Returns runs by a figure; those that lack it are last, and equal ones by their start, newest first."""
    entity, dot, name = what.partition(".")
    if dot:
        values: dict[str, Any] = {run.run_id: getattr(run, entity).get(name) for run in runs}
    else:
        attributes = {"run_name": "name", "duration": "duration_s"}
        values = {run.run_id: getattr(run, attributes.get(what, what)) for run in runs}
    runs = sorted(runs, key=lambda run: (-run.start_time, run.run_id))
    present = [run for run in runs if values[run.run_id] is not None]
    present.sort(key=lambda run: _natural_key(values[run.run_id]), reverse=down)
    return [*present, *(run for run in runs if values[run.run_id] is None)]


def _count(record: TrainingRecord, metric: str) -> int:
    figures = record.figures.get(metric)
    return 0 if figures is None else figures.count


def _experiment_url(tracking_uri: str, mlflow: Mapping[str, str]) -> str | None:
    """Returns the address of a run's experiment in MLflow, without credentials; None without a server or run."""
    parts = urlsplit(tracking_uri)
    if parts.scheme not in ("http", "https") or not mlflow:
        return None
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}/#/experiments/{mlflow['experiment']}"


def _mlflow_command(tracking_uri: str) -> str | None:
    """Returns the command that serves MLflow's pages for a database file or folder; None for other places."""
    if not tracking_uri.startswith(("sqlite:", "file:", "/")):
        return None
    return shlex.join(["mlflow", "ui", "--backend-store-uri", tracking_uri])


def _natural_key(value: str | float) -> tuple[Any, ...]:
    """Returns a sort key: numbers by value and before words, and numbers within words by value, too."""
    try:
        number = float(value)
        if number == number:
            return (0, number)
    except (ValueError, OverflowError):
        pass
    # Numbers of any length are compared by their digits; words come before numbers.
    parts = ((part, part.lstrip("0")) for part in re.split(r"(\d+)", str(value).casefold()))
    return (1, [(len(digits), digits) if part.isdecimal() else (-1, part) for part, digits in parts])
