"""Whether a search goes on: the record of one that was killed says ``running`` until a retry goes on with it."""

from __future__ import annotations

from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import State
from sqlalchemy import select

from airflow_hops.contract.search import StudyRecord


def task_of(record: StudyRecord) -> tuple[str, int]:
    """Task id and map index (-1 where it is not mapped) of the task that searches."""
    task_id, _, index = record.task_id.partition("@")
    return task_id, int(index) if index.isdecimal() else -1


def task_state(record: StudyRecord) -> str | None:
    """State of the task instance that searches; None where Airflow has none any more."""
    task_id, map_index = task_of(record)
    with create_session() as session:
        state = session.scalar(
            select(TaskInstance.state).where(
                TaskInstance.dag_id == record.dag_id,
                TaskInstance.run_id == record.run_id,
                TaskInstance.task_id == task_id,
                TaskInstance.map_index == map_index,
            )
        )
    return None if state is None else str(state)


def ended_without_record(record: StudyRecord) -> str | None:
    """The state of a task that has ended although its study says that it runs; None where there is no such thing."""
    state = task_state(record) if record.state == "running" else None
    return state if state in {str(each) for each in State.finished} else None
