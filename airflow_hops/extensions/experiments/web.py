"""Studies: a pipeline's hyperparameter searches, from their records in the store, and requests to stop them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query
from pydantic import Field
from sqlalchemy import select

from airflow_hops.airflow_internals.api_server import GetUserDep
from airflow_hops.airflow_internals.database import State, TaskInstance, create_session, instance_columns
from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.redaction import masked
from airflow_hops.extensions.experiments.core.search import StudyRecord
from airflow_hops.extensions.experiments.core.studies import StudyFolder, journal_files, recorded_studies, study_folder
from airflow_hops.web.access import READS_ARTIFACTS, READS_LOGS, READS_RUNS, TRIGGERS_RUNS, may_change
from airflow_hops.web.artifacts.lookup import Instance, hook_of, pipeline_of, reaching, task_instance
from airflow_hops.web.extension_pages import ExtensionPage
from airflow_hops.web.pages import STATIC
from airflow_hops.web.types import Json, Limit, Model, Number, Offset, Page

router = APIRouter(prefix="/api/dags/{dag_id}/studies", tags=["studies"], dependencies=[READS_RUNS, READS_ARTIFACTS])
PAGE = ExtensionPage(router=router, bundle=STATIC / "experiments.umd.js", destination="runs", label="Studies")
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StudyEntry(StudyRecord):
    """A study, without credentials in its parameters.

    Attributes:
        task_state: State of the searching task instance; None if Airflow has none. The study of a killed job stays
            ``running`` until a retry resumes it.
    """

    map_index: int
    iteration: int
    task_state: str | None


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
    training: list[str | None]
    """Id of the trial's training run; null before it has ended."""
    run_id: list[str]


class StopBody(Model):
    """The trials to stop."""

    trial: Annotated[int, Field(ge=0, lt=2**31)] | None
    """Number of a trial; null for the whole search."""


@dataclass(frozen=True, kw_only=True)
class StudyDetail(StudyEntry):
    """A study and its trials.

    Attributes:
        journal: Address of Optuna's journal, which Optuna's dashboard opens; None for a study of an earlier version.
    """

    journal: str | None
    may_stop: bool
    stop_requests: list[StopRequest]
    columns: TrialColumns


class TrialLog(Model):
    """The log of a failed trial."""

    number: int
    reason: str
    text: str | None
    """Last lines of the log; null if there is none."""


def find_study(
    _: Annotated[None, READS_ARTIFACTS],
    dag_id: str,
    task_id: str,
    instance: Instance,
    study: Annotated[str, Query(max_length=500, description="The study's name: by default the DAG run's id")],
) -> tuple[StudyFolder, StudyRecord]:
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
    if record is None:
        raise HTTPException(404, f"task {task!r} of DAG {dag_id!r} has no study {study!r}")
    return folder, record


OneStudy = Annotated[tuple[StudyFolder, StudyRecord], Depends(find_study)]


@router.get("")
def list_studies(dag_id: str, limit: Limit = 100, offset: Offset = 0) -> Page[StudyEntry]:
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
    studies = [StudyEntry(**_described(*each)) for each in zip(page, _task_states(page), strict=True)]
    return Page[StudyEntry](entries=studies, total_entries=len(records), problems=damaged)


@router.get("/{task_id}/{instance}")
def get_study(user: GetUserDep, dag_id: str, found: OneStudy) -> StudyDetail:
    """Returns a study with all its trials."""
    folder, record = found
    with reaching(folder.store):
        trials = folder.trials()
        requests = folder.stop_requests(record.run_id)
        journals = journal_files(folder.store, folder.uri)
    metrics = len(record.metrics)
    shown = [masked(trial.params) for trial in trials]
    names = dict.fromkeys(name for params in shown for name in params)
    columns: dict[str, Any] = {name: [getattr(each, name) for each in trials] for name in TrialColumns.model_fields}
    columns["params"] = {name: [params.get(name) for params in shown] for name in names}
    columns["values"] = [
        [trial.values[place] if place < len(trial.values) else None for trial in trials] for place in range(metrics)
    ]
    return StudyDetail(
        **_described(record, *_task_states([record])),
        journal=f"{folder.uri}/{journals[0]}" if journals else None,
        may_stop=may_change(user, dag_id),
        stop_requests=[StopRequest(trial=trial, by=by) for trial, by in requests.items()],
        columns=TrialColumns(**columns),
    )


@router.get("/{task_id}/{instance}/log", dependencies=[READS_LOGS])
def get_trial_log(found: OneStudy, trial: Annotated[int, Query(ge=0, lt=2**31, description="Its number")]) -> TrialLog:
    """Returns the last log lines of a failed trial.

    Raises:
        HTTPException: 404, the trial does not exist.
    """
    folder, record = found
    with reaching(folder.store):
        known, text = folder.trial(trial), folder.log(trial)
    if known is None:
        raise HTTPException(404, f"study {record.name!r} has no trial {trial}")
    return TrialLog(number=trial, reason=known.reason, text=text)


@router.post("/{task_id}/{instance}/stop", dependencies=[TRIGGERS_RUNS])
def stop_study(user: GetUserDep, found: OneStudy, body: StopBody) -> StopRequest:
    """Asks a search to stop, or to stop one of its trials; the search polls every few seconds.

    Raises:
        HTTPException: 409, the search or its task is not running.
    """
    by, trial, (folder, record) = user.get_name(), body.trial, found
    if record.state != "running":
        raise HTTPException(409, f"study {record.name!r} is {record.state}; only a running one can be stopped")
    # A killed search is recorded as running until a retry continues it.
    if (state := _task_states([record])[0]) in {str(each) for each in State.finished}:
        raise HTTPException(409, f"study {record.name!r} does not run: its task is {state}")
    with reaching(folder.store):
        known = None if trial is None else folder.trial(trial)
        if trial is not None and (known is None or known.state != "running"):
            state = "not there" if known is None else known.state
            message = f"trial {trial} of study {record.name!r} is {state}; only a running one can be stopped"
            raise HTTPException(409, message)
        folder.request_stop(trial, by)
    what = "the search" if trial is None else f"trial {trial}"
    log.info("%s of study %r of DAG %r: stop requested by %r", what, record.name, record.dag_id, by)
    return StopRequest(trial=trial, by=by)


def _described(record: StudyRecord, task_state: str | None) -> dict[str, Any]:
    """Returns the fields of a :class:`StudyEntry`."""
    task = Producer.of_task(record.dag_id, record.run_id, record.task_id)
    own = {name: getattr(task, name) for name in ("task_id", "map_index", "iteration")}
    shown = {"best_params": masked(record.best_params), "space": masked(record.space)}
    return {**vars(record), **own, **shown, "task_state": task_state}


def _task_states(records: Sequence[StudyRecord]) -> list[str | None]:
    """Returns the state of each study's task instance; None if Airflow no longer has it."""
    wanted = [Producer.of_task(record.dag_id, record.run_id, record.task_id) for record in records]
    which = TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id
    with create_session() as session:
        rows = session.execute(
            select(*instance_columns(TaskInstance), TaskInstance.state).where(
                *(column.in_({getattr(each, column.key) for each in wanted}) for column in which)
            )
        )
        states = {
            Producer(row.dag_id, row.run_id, row.task_id, row.map_index, iteration=row.iteration): row.state
            for row in rows
        }
    return [None if (state := states.get(each)) is None else str(state) for each in wanted]
