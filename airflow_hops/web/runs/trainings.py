"""Training runs: a pipeline's MLflow runs with their DAG runs, provenance, code and files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Query, Response
from fastapi.params import Path as PathParameter
from sqlalchemy import select

from airflow_hops.airflow_internals.api_server import GetUserDep
from airflow_hops.airflow_internals.database import DagRun, create_session
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS, may_change
from airflow_hops.web.artifacts.lookup import hook_of, pipeline_of
from airflow_hops.web.queries import ask, ask_bytes
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
    """An MLflow run."""

    run_id: str
    name: str
    status: str
    """MLflow's status; killed trainings stay RUNNING, see ``dag_run_state``."""
    start_time: int
    """Milliseconds since the epoch."""
    end_time: int | None
    params: dict[str, str]
    metrics: dict[str, Number]
    """Last values."""
    tags: dict[str, str]
    parent: str | None
    """Id of the parent run."""
    dag_run_id: str | None
    dag_run_state: str | None
    """Null if Airflow no longer has the DAG run."""
    task_id: str | None
    map_index: int
    iteration: int
    versions: list[RunModelVersion] = []
    """Model versions registered from it; of children, none."""


class TrainingRunPage(Model):
    """A page of runs; ``next_page_token`` requests the next one."""

    runs: list[TrainingRun]
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
    """A data set that a run was trained or evaluated on."""

    name: str
    context: str | None
    rows: int | None


class TrainingRunDetail(TrainingRun):
    """MLflow's data on a run."""

    figures: dict[str, MetricFigures]
    datasets: list[RunDataset]
    may_annotate: bool
    """Whether the user may set its note and tags."""
    children: list[TrainingRun]


class MetricCurve(Model):
    """A metric of a run by step."""

    run_id: str
    metric: str
    points: int
    """Total number of points; curves of more than a thousand are sampled in a way that preserves their shape."""
    steps: list[int]
    values: list[Number]
    times: list[int]
    """Milliseconds since the epoch."""


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
    """Lists training runs of a pipeline, filtered and ordered by MLflow; by default newest first.

    Raises:
        HTTPException: 422, the filter is invalid; the message says where.
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
    return TrainingRunPage(runs=[TrainingRun(**run) for run in runs], next_page_token=result["next_page_token"])


@router.get("/{mlflow_run_id}")
def get_training_run(user: GetUserDep, dag_id: str, mlflow_run_id: RunId) -> TrainingRunDetail:
    """Returns a training run."""
    result = ask(tracking_hook(dag_id), "runs/get", {"experiment": dag_id, "run_id": mlflow_run_id})
    result["children"] = _with_dag_runs(dag_id, result["children"])
    (run,) = _with_dag_runs(dag_id, [result])
    return TrainingRunDetail(**run, may_annotate=may_change(user, dag_id))


@router.get("/{mlflow_run_id}/curves")
def list_curves(
    dag_id: str,
    mlflow_run_id: RunId,
    metric: Annotated[list[str] | None, Query(max_length=50, description="Metrics; all by default")] = None,
) -> list[MetricCurve]:
    """Lists the metrics of a run over time."""
    params = {"experiment": dag_id, "run_id": mlflow_run_id, "metrics": metric}
    return [MetricCurve(**each) for each in ask(tracking_hook(dag_id), "runs/curves", params)["curves"]]


def tracking_hook(dag_id: str) -> RuntimeHook:
    """Returns the hook of a pipeline's training task, or else of its first task."""
    with create_session() as session:
        pipeline = pipeline_of(session, dag_id)
    trains = next((task.task_id for stage in _TRACKED for task in pipeline.tasks if task.stage == stage), None)
    return hook_of(pipeline.conn_id(trains))


def _with_dag_runs(dag_id: str, runs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the runs with the task instances named by their tags."""
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
            **{name: _position(run["tags"], name) for name in ("map_index", "iteration")},
        }
        for run in runs
    ]


def _position(tags: Mapping[str, str], name: str) -> int:
    index = tags.get(f"hops.{name}", "")
    return int(index) if index.isdecimal() else -1


_PREVIEW_BYTES = 256 << 10
_PICTURES = {
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
}
_HEADERS = {"Content-Security-Policy": "default-src 'none'; sandbox", "Cache-Control": "private, no-cache"}
_BINARY: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}
FilePath = Annotated[str, Query(max_length=1000, description="Path in the list of the run's files")]


class RunFile(Model):
    """A file."""

    path: str
    size_bytes: int | None


class RunFiles(Model):
    """A run's files; ``whole`` is false if there are too many to list."""

    files: list[RunFile]
    whole: bool


@router.get("/{mlflow_run_id}/files")
def list_run_files(dag_id: str, mlflow_run_id: RunId) -> RunFiles:
    """Lists the files of a training run."""
    return RunFiles(**ask(tracking_hook(dag_id), "run_files/tree", {"experiment": dag_id, "run_id": mlflow_run_id}))


@router.get("/{mlflow_run_id}/files/preview", response_class=Response, responses=_BINARY)
def preview_run_file(dag_id: str, mlflow_run_id: RunId, path: FilePath) -> Response:
    """Returns the first 256 KiB of a file as plain text; images are complete."""
    picture = _PICTURES.get(PurePosixPath(path).suffix.lower())
    content = _read(dag_id, mlflow_run_id, path, None if picture else _PREVIEW_BYTES)
    return Response(content, headers=_HEADERS, media_type=picture or "text/plain; charset=utf-8")


@router.get("/{mlflow_run_id}/files/download", response_class=Response, responses=_BINARY)
def download_run_file(dag_id: str, mlflow_run_id: RunId, path: FilePath) -> Response:
    """Downloads a file."""
    name = quote(PurePosixPath(path).name)
    headers = {**_HEADERS, "Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    content = _read(dag_id, mlflow_run_id, path, None)
    return Response(content, headers=headers, media_type="application/octet-stream")


def _read(dag_id: str, run_id: str, path: str, max_bytes: int | None) -> bytes:
    params = {"experiment": dag_id, "run_id": run_id, "path": path, "max_bytes": max_bytes}
    return ask_bytes(tracking_hook(dag_id), "run_files/read", params)
