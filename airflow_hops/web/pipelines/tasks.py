"""Tasks of a DAG run: progress, results and errors."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException
from sqlalchemy import select
from sqlalchemy.orm import Session

from airflow_hops.airflow_internals.database import (
    TaskInstance,
    create_session,
    instance_columns,
    iteration_of,
    map_index_of,
)
from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.runner.progress import ProgressPoint, TaskProgress
from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS, READS_TASKS
from airflow_hops.web.artifacts.lookup import (
    TaskArtifact,
    TaskInstancePath,
    pipeline_of,
    run_of,
)
from airflow_hops.web.artifacts.routes import ArtifactAddress, ArtifactEntry, list_run_artifacts
from airflow_hops.web.artifacts.tasks import StageTask, producer_in, returned_by_runs
from airflow_hops.web.models.evaluations import Evaluation, read_evaluation
from airflow_hops.web.runs.states import TaskVerdict, progress_of, refusals_in, skip_reasons
from airflow_hops.web.types import Model, Number, Time

router = APIRouter(prefix="/api/dags/{dag_id}/runs/{run_id}", tags=["runs"])
_ENDED = ("success", "failed", "skipped", "upstream_failed", "removed")


class TaskResult(Model):
    """A task instance; for a mapped task or a task in a loop as a whole, only ``instances`` is set."""

    task_id: str
    map_index: int
    iteration: int
    map_label: str | None
    """Label of a mapped instance, if the DAG file sets one."""
    stage: str | None
    """Stage, named like the operator's module; null for other operators, and for users' subclasses."""
    operator: str
    model_name: str | None
    state: str | None
    try_number: int
    max_tries: int
    started_at: Time | None
    ended_at: Time | None
    duration_s: Number
    error: str | None
    """Error of the last try."""
    skipped: str | None
    """The task's reason for being skipped; null if it gave none, for example because an upstream task was skipped."""
    artifacts: list[ArtifactEntry] = []
    progress: list[ProgressPoint] = []
    """Progress of the last try, unless it succeeded; among the stages of a run the last report of a running one."""
    instances: list[TaskResult] = []
    """Instances of a mapped task or of a task in a loop, without progress and artifacts."""


class Epochs(Model):
    """The recorded epochs of a training."""

    epochs: list[dict[str, Number]]
    resumed_after_epoch: int | None


@router.get("/tasks/{task_id}/{instance}", dependencies=[READS_TASKS, READS_ARTIFACTS])
def get_task_result(of: TaskInstancePath) -> TaskResult:
    """Returns the progress and the results of a task instance.

    Raises:
        HTTPException: 404, the instance does not exist.
    """
    with create_session() as session:
        pipeline = pipeline_of(session, of.dag_id)
        run_of(session, of.dag_id, of.run_id)
        task = pipeline.task(of.task_id)
        instances = _instances(session, of.dag_id, of.run_id, TaskInstance.task_id == of.task_id)
        skipped = skip_reasons(session, of.dag_id, of.run_id).get(of)
    if not instances:
        raise HTTPException(404, f"run {of.run_id!r} of DAG {of.dag_id!r} has no task instance {of.task_id!r}")
    one = instances.get(of)
    if one is None and of.task != of.task_id:
        raise HTTPException(404, f"run {of.run_id!r} of DAG {of.dag_id!r} has no task instance {of.task!r}")
    reported = None
    if task is not None and one is not None and str(one.state) != "success":
        reported = progress_of(pipeline, of, one.try_number)
    made = list_run_artifacts(of.dag_id, of.run_id) if one is not None and one.state in _ENDED else []
    operator = task.operator if task else str(next(iter(instances.values())).operator)
    listed = {} if one is not None else instances
    return _result(
        of,
        task,
        one,
        reported,
        skipped,
        operator=operator,
        instances=[_result(by, task, each, operator=operator) for by, each in listed.items()],
        progress=reported.points if reported else (),
        artifacts=[each for each in made if each.producer == of],
    )


def _instances(session: Session, dag_id: str, run_id: str, *conditions: Any) -> dict[Producer, TaskInstance]:
    """Returns the task instances of a run, in the order of their iterations and map indexes."""
    rows = session.execute(
        select(TaskInstance, *instance_columns(TaskInstance))
        .where(TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id, *conditions)
        .order_by(iteration_of(TaskInstance), map_index_of(TaskInstance))
    )
    return {producer_in(row): row.TaskInstance for row in rows}


def _label(task: Producer, instance: TaskInstance) -> str | None:
    """Returns the label of a mapped task; Airflow has one for the iterations of other tasks, too."""
    return instance.rendered_map_index if task.map_index >= 0 else None


def _result(
    by: Producer,
    task: StageTask | None,
    one: TaskInstance | None,
    reported: TaskProgress | None = None,
    skipped: str | None = None,
    **more: Any,
) -> TaskResult:
    """Returns the facts of an instance; those of a missing instance or of a foreign task are empty."""
    return TaskResult.of(
        by,
        map_label=_label(by, one) if one else None,
        stage=task.stage if task else None,
        model_name=task.model_name if task else None,
        state=str(one.state) if one and one.state else None,
        try_number=one.try_number if one else 0,
        max_tries=one.max_tries if one else 0,
        started_at=one.start_date if one else None,
        ended_at=one.end_date if one else None,
        duration_s=one.duration if one else None,
        error=reported.error if reported else None,
        skipped=skipped if one and str(one.state) == "skipped" else None,
        **more,
    )


@router.get("/artifacts/{task_id}/{instance}/{kind}/evaluation")
def get_evaluation(found: TaskArtifact, task: TaskInstancePath, kind: str) -> Evaluation:
    """Returns an evaluation, overall and by slice."""
    return read_evaluation(found, ArtifactAddress.of(task, kind=kind))


@router.get("/artifacts/{task_id}/{instance}/{kind}/epochs")
def get_epochs(found: TaskArtifact) -> Epochs:
    """Returns the learning curves that a model's training recorded."""
    training: dict[str, Any] = found.read_json("training.json")
    return Epochs(
        epochs=[
            {name: value for name, value in each.items() if isinstance(value, int | float)}
            for each in training.get("epochs") or []
        ],
        resumed_after_epoch=training.get("resumed_after_epoch"),
    )


_UNFINISHED = {"running", "deferred", "up_for_retry", "up_for_reschedule", "restarting"}


class RunStages(Model):
    """A DAG run and the instances of the pipeline's tasks, in the order of the DAG file."""

    run_id: str
    state: str
    refusals: list[TaskVerdict]
    triggered_by: str | None
    """User who triggered the run, if any."""
    stages: list[TaskResult]


@router.get("/stages", dependencies=[READS_RUNS, READS_TASKS, READS_ARTIFACTS])
def list_run_stages(dag_id: str, run_id: str) -> RunStages:
    """Lists the stages of a run with their artifacts, including those that wait, run or failed."""
    with create_session() as session:
        pipeline = pipeline_of(session, dag_id)
        run = run_of(session, dag_id, run_id)
        refusals = refusals_in(returned_by_runs(session, dag_id, [run_id]))
        instances: dict[str, list[tuple[Producer, TaskInstance]]] = {}
        for by, each in _instances(session, dag_id, run_id).items():
            instances.setdefault(by.task_id, []).append((by, each))
        skipped = skip_reasons(session, dag_id, run_id)
    made: dict[Producer, list[ArtifactEntry]] = {}
    for entry in list_run_artifacts(dag_id, run_id):
        made.setdefault(entry.producer, []).append(entry)
    stages = []
    for task in pipeline.tasks:
        for by, each in instances.get(task.task_id, []):
            reported = None
            if str(each.state) in {*_UNFINISHED, "failed"}:
                reported = progress_of(pipeline, by, each.try_number)
            last = reported.points[-1:] if reported and str(each.state) != "failed" else ()
            more = {"operator": task.operator, "progress": last, "artifacts": made.get(by, [])}
            stages.append(_result(by, task, each, reported, skipped.get(by), **more))
    return RunStages(
        run_id=run_id,
        state=str(run.state),
        refusals=refusals,
        triggered_by=run.triggering_user_name,
        stages=stages,
    )
