"""Monitors that failed: what they did not see is not stable."""

from __future__ import annotations

from datetime import datetime

from airflow.models.taskinstance import TaskInstance
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from airflow_hops.core.contract.artifacts import Producer
from airflow_hops.web.artifacts.definitions import PipelineDag
from airflow_hops.web.runs.states import progress_of
from airflow_hops.web.types import Model, TaskAddress, Time
from airflow_hops.web.unusable_files import reading_threads

_MONITORS = ("skew", "performance")
_BEFORE = "it did not run, since a task before it failed"
_MOST = 50


class MonitorFailure(Model):
    """A monitoring task that failed, or did not run since a task before it failed."""

    task: TaskAddress
    at: Time
    message: str | None
    """Why, in its own words; null where it ended without."""


def monitor_failures(
    session: Session, pipeline: PipelineDag, since: datetime | None
) -> tuple[list[MonitorFailure], int]:
    """The newest failures of a DAG's monitoring tasks, oldest first; and how many there are in all.

    Args:
        session: Of Airflow's database.
        pipeline: The DAG.
        since: Older ones are left out; None for all.
    """
    of = TaskInstance
    task_ids = [task.task_id for task in pipeline.tasks if task.kind in _MONITORS]
    rows = session.execute(
        select(of.run_id, of.task_id, of.map_index, of.try_number, of.end_date, of.state)
        .add_columns(func.count().over().label("total"))
        .where(of.dag_id == pipeline.dag_id, of.task_id.in_(task_ids), of.end_date.is_not(None))
        .where(of.state.in_(("failed", "upstream_failed")))
        .where(*([] if since is None else [of.end_date >= since]))
        .order_by(of.end_date.desc())
        .limit(_MOST)
    ).all()
    makers = [Producer(pipeline.dag_id, row.run_id, row.task_id, row.map_index) for row in rows]
    with reading_threads() as readers:
        reports = list(readers.map(lambda by, row: progress_of(pipeline, by, row.try_number), makers, rows))
    results = [
        MonitorFailure(
            task=TaskAddress.of(by),
            at=row.end_date,
            # What is left of an earlier try does not say why this one did not run.
            message=_BEFORE if row.state == "upstream_failed" else said.error if said else None,
        )
        for by, row, said in zip(makers, rows, reports, strict=True)
    ]
    return results[::-1], rows[0].total if rows else 0
