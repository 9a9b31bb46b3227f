"""Finds out whether a search still runs: a killed search is recorded as ``running`` until a retry continues it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from airflow_hops.airflow_internals.database import State, TaskInstance, create_session, instance_columns
from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.experiments.core.search import StudyRecord
from airflow_hops.extensions.experiments.core.studies import StudyFolder


def task_states(records: Sequence[StudyRecord]) -> list[str | None]:
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


def check_runs(folder: StudyFolder, record: StudyRecord, ended: str | None, trial: int | None) -> None:
    """Checks that a search or trial runs, so that it can be stopped.

    Args:
        folder: The study's folder.
        record: The study's record.
        ended: The state of its task from :func:`ended_without_record`.
        trial: Number of the trial; None for the search.

    Raises:
        BadInput: it does not run.
    """
    if record.state != "running":
        raise BadInput(f"study {record.name!r} is {record.state}; only a running one can be stopped")
    if ended is not None:
        raise BadInput(f"study {record.name!r} does not run: its task is {ended}")
    running = None if trial is None else folder.trial(trial)
    if trial is not None and (running is None or running.state != "running"):
        state = "not there" if running is None else running.state
        raise BadInput(f"trial {trial} of study {record.name!r} is {state}; only a running one can be stopped")


def ended_without_record(record: StudyRecord) -> str | None:
    """Returns the state of a task that ended although its study is recorded as running; otherwise None."""
    state = task_states([record])[0] if record.state == "running" else None
    return state if state in {str(each) for each in State.finished} else None
