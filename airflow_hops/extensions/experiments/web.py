"""Studies: a pipeline's hyperparameter searches, from their records in the store, and requests to stop them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query
from pydantic import Field

from airflow_hops.airflow_internals.api_server import GetUserDep
from airflow_hops.airflow_internals.database import create_session
from airflow_hops.core.contract.artifacts import BadInput, Producer
from airflow_hops.core.contract.redaction import masked
from airflow_hops.extensions.experiments.core.search import StudyRecord
from airflow_hops.extensions.experiments.core.studies import StudyFolder, recorded_studies, study_folder
from airflow_hops.extensions.experiments.hooks import check_runs, ended_without_record, task_states
from airflow_hops.web.access import READS_ARTIFACTS, READS_LOGS, READS_RUNS, TRIGGERS_RUNS, may_change
from airflow_hops.web.artifacts.lookup import Instance, hook_of, pipeline_of, reaching, task_instance
from airflow_hops.web.types import Facts, Json, Limit, Model, Number, Offset, Page

router = APIRouter(prefix="/api/dags/{dag_id}/studies", tags=["studies"], dependencies=[READS_RUNS, READS_ARTIFACTS])
log = logging.getLogger(__name__)
_CURVES = 100


class BestTrial(Model):
    """The best trial of a study so far."""

    number: int
    values: list[Number]
    params: Facts


class StudyEntry(Model):
    """A study."""

    name: str
    task_id: str
    map_index: int
    iteration: int
    run_id: str
    """DAG run that currently works on it, or did so last."""
    state: str
    task_state: str | None
    """State of the searching task instance; null if Airflow has none. The study of a killed job stays ``running`` until
    a retry resumes it.
    """
    program: str
    metrics: list[str]
    directions: list[str]
    sampler: str
    pruner: str
    trials: int
    """Planned number of trials of this run."""
    parallel: int
    started: str
    ended: str | None
    counts: dict[str, int]
    """Number of trials by state."""
    done: int
    """Number of this run's trials that have ended, as counted by the search."""
    best: BestTrial | None
    error: str | None


class StudyPage(Page):
    """Studies, newest first."""

    studies: list[StudyEntry]
    damaged: list[str]
    """Errors of unreadable studies."""


class StopRequest(Model):
    """A pending request to stop."""

    trial: int | None
    """Number of the trial; null for the search."""
    by: str


class TrialColumns(Model):
    """Trials of a study by number, as one list per field."""

    number: list[int]
    state: list[str]
    params: dict[str, list[Json]]
    values: list[list[Number]]
    """Final values for each metric of the study; null for incomplete trials."""
    reason: list[str]
    started: list[str]
    ended: list[str | None]
    seconds: list[Number]
    tries: list[int]
    taken_from: list[str | None]
    """``study#number`` of the earlier trial that the values come from."""
    mlflow_run: list[str | None]
    run_id: list[str]


class StudyDetail(StudyEntry):
    """A study and its trials."""

    space: Json
    seed: int
    choose: str | None
    pareto: list[int]
    """Trials on the Pareto front, for several metrics."""
    importance: dict[str, Number]
    """Share of each parameter in the variance of the first metric (fANOVA)."""
    mlflow_run: str | None
    may_stop: bool
    stop_requests: list[StopRequest]
    columns: TrialColumns


class TrialCurve(Model):
    """Intermediate values of a trial: the study's first metric by step."""

    number: int
    state: str
    steps: list[Number]
    values: list[Number]


class TrialCurves(Model):
    """Intermediate values of the best trial, running ones, and the newest of the others."""

    curves: list[TrialCurve]
    left_out: int
    """Number of further trials with intermediate values."""


class TrialLog(Model):
    """The log of a failed trial."""

    number: int
    reason: str
    text: str | None
    """Last lines of the log; null if there is none."""


class StopBody(Model):
    """The trials to stop."""

    trial: Annotated[int, Field(ge=0, lt=2**31)] | None
    """Number of a trial; null for the whole search."""


@dataclass(frozen=True)
class FoundStudy:
    """A study of the route's task."""

    folder: StudyFolder
    record: StudyRecord


def find_study(
    _: Annotated[None, READS_ARTIFACTS],
    dag_id: str,
    task_id: str,
    instance: Instance,
    study: Annotated[str, Query(max_length=500, description="The study's name: by default the DAG run's id")],
) -> FoundStudy:
    """Returns the study of a route.

    Raises:
        HTTPException: 404, it does not exist; 502, the store cannot be read.
    """
    with create_session() as session:
        hook = hook_of(pipeline_of(session, dag_id).conn_id(task_id))
    task = task_instance(dag_id, "", task_id, instance).task
    try:
        folder = study_folder(hook.store, dag_id, task, study)
    except BadInput as error:
        raise HTTPException(422, str(error)) from error
    with reaching(hook.store):
        record = folder.read()
    # Names are sanitized for file systems, so two of them may share a folder.
    if record is None or (record.dag_id, record.task_id, record.name) != (dag_id, task, study):
        raise HTTPException(404, f"task {task!r} of DAG {dag_id!r} has no study {study!r}")
    return FoundStudy(folder, record)


OneStudy = Annotated[FoundStudy, Depends(find_study)]


@router.get("")
def list_studies(dag_id: str, limit: Limit = 100, offset: Offset = 0) -> StudyPage:
    """Lists the studies of a pipeline, newest first."""
    with create_session() as session:
        pipeline = pipeline_of(session, dag_id)
    stores = {hook.store.root: hook.store for hook in map(hook_of, {task.hops_conn_id for task in pipeline.tasks})}
    records, damaged = [], []
    for store in stores.values():
        with reaching(store):
            result, errors = recorded_studies(store, dag_id)
        records += [record for _, record in result]
        damaged += [str(error) for error in errors]
    page = sorted(records, key=lambda each: each.started, reverse=True)[offset : offset + limit]
    studies = [StudyEntry(**_described(*each)) for each in zip(page, task_states(page), strict=True)]
    return StudyPage(studies=studies, total_entries=len(records), damaged=damaged)


@router.get("/{task_id}/{instance}")
def get_study(user: GetUserDep, dag_id: str, found: OneStudy) -> StudyDetail:
    """Returns a study with all its trials."""
    with reaching(found.folder.store):
        trials = found.folder.trials()
        requests = found.folder.stop_requests(found.record.run_id)
    record = found.record
    metrics = len(record.metrics)
    shown = [masked(trial.params) for trial in trials]
    names = dict.fromkeys(name for params in shown for name in params)
    columns: dict[str, Any] = {name: [getattr(each, name) for each in trials] for name in TrialColumns.model_fields}
    columns["params"] = {name: [params.get(name) for params in shown] for name in names}
    columns["values"] = [
        [trial.values[place] if place < len(trial.values) else None for trial in trials] for place in range(metrics)
    ]
    return StudyDetail(
        **_described(record, *task_states([record])),
        may_stop=may_change(user, dag_id),
        stop_requests=[StopRequest(trial=trial, by=by) for trial, by in requests.items()],
        columns=TrialColumns(**columns),
    )


@router.get("/{task_id}/{instance}/curves")
def list_trial_curves(found: OneStudy) -> TrialCurves:
    """Lists the intermediate values of a study's trials."""
    with reaching(found.folder.store):
        trials = [trial for trial in found.folder.trials() if trial.intermediate]
    trials.sort(key=lambda each: (each.number != found.record.best, each.state != "running", -each.number))
    shown = trials[:_CURVES]
    return TrialCurves(
        curves=[
            TrialCurve(
                number=trial.number,
                state=trial.state,
                steps=[point[0] for point in trial.intermediate],
                values=[point[1] for point in trial.intermediate],
            )
            for trial in shown
        ],
        left_out=len(trials) - len(shown),
    )


@router.get("/{task_id}/{instance}/log", dependencies=[READS_LOGS])
def get_trial_log(found: OneStudy, trial: Annotated[int, Query(ge=0, lt=2**31, description="Its number")]) -> TrialLog:
    """Returns the last log lines of a failed trial.

    Raises:
        HTTPException: 404, the trial does not exist.
    """
    with reaching(found.folder.store):
        known, text = found.folder.trial(trial), found.folder.log(trial)
    if known is None:
        raise HTTPException(404, f"study {found.record.name!r} has no trial {trial}")
    return TrialLog(number=trial, reason=known.reason, text=text)


@router.post("/{task_id}/{instance}/stop", dependencies=[TRIGGERS_RUNS])
def stop_study(user: GetUserDep, found: OneStudy, body: StopBody) -> StopRequest:
    """Asks a search to stop, or to stop one of its trials; the search polls every few seconds.

    Raises:
        HTTPException: 409, the search or its task is not running.
    """
    by, record = user.get_name(), found.record
    with reaching(found.folder.store):
        try:
            check_runs(found.folder, record, ended_without_record(record), body.trial)
        except BadInput as error:
            raise HTTPException(409, str(error)) from error
        found.folder.request_stop(body.trial, by)
    what = "the search" if body.trial is None else f"trial {body.trial}"
    log.info("%s of study %r of DAG %r: stop requested by %r", what, record.name, record.dag_id, by)
    return StopRequest(trial=body.trial, by=by)


def _described(record: StudyRecord, task_state: str | None) -> dict[str, Any]:
    """Returns the fields of a :class:`StudyEntry`, and those of the record."""
    task = Producer.of_task(record.dag_id, record.run_id, record.task_id)
    best = {"number": record.best, "values": record.best_values, "params": record.best_params}
    own = {"task_state": task_state, **{name: getattr(task, name) for name in ("task_id", "map_index", "iteration")}}
    return {**record.to_dict(), **own, "best": None if record.best is None else best}
