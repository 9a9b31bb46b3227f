"""Finds out whether a search still runs: a killed search is recorded as ``running`` until a retry continues it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from airflow_hops.airflow_internals.database import State, TaskInstance, create_session
from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.search import StudyRecord
from airflow_hops.core.store.studies import StudyFolder


def task_of(record: StudyRecord) -> tuple[str, int]:
    """Returns task id and map index (-1 if unmapped) of the task that searches."""
    task_id, _, index = record.task_id.partition("@")
    return task_id, int(index) if index.isdecimal() else -1


def task_states(records: Sequence[StudyRecord]) -> list[str | None]:
    """Returns the state of each study's task instance; None if Airflow no longer has it."""
    which = TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index
    wanted = [(record.dag_id, record.run_id, *task_of(record)) for record in records]
    with create_session() as session:
        rows = session.execute(
            select(*which, TaskInstance.state).where(
                *(column.in_({each[place] for each in wanted}) for place, column in enumerate(which))
            )
        )
        states = {tuple(key): state for *key, state in rows}
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
