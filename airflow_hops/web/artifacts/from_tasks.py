"""The artifacts that tasks returned, from Airflow's database alone: metrics, rows and properties, without the store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow.models.xcom import XCOM_RETURN_KEY, XComModel
from sqlalchemy import and_, func, select, tuple_
from sqlalchemy.orm import Session

from airflow_hops.core.contract.artifacts import Artifact
from airflow_hops.web.artifacts.definitions import read_pipelines
from airflow_hops.web.artifacts.lookup import artifact_in

# Columns and not entities: with each of these Airflow would load the DAG run and its logical date.
_COLUMNS = (
    XComModel.dag_id, XComModel.run_id, XComModel.task_id, XComModel.map_index, XComModel.timestamp, XComModel.value,
)  # fmt: skip


@dataclass(frozen=True)
class ReturnedArtifact:
    """An artifact that a task instance returned, and when."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    at: datetime
    artifact: Artifact


def returned_by_runs(
    session: Session, dag_id: str, run_ids: Collection[str], task_ids: Collection[str] | None = None
) -> list[ReturnedArtifact]:
    """The artifacts that the tasks of some runs returned, or some of these tasks, in the order in which they did."""
    wanted = [XComModel.dag_id == dag_id, XComModel.run_id.in_(run_ids), XComModel.key == XCOM_RETURN_KEY]
    if task_ids is not None:
        wanted.append(XComModel.task_id.in_(task_ids))
    return list(_artifacts(session.execute(select(*_COLUMNS).where(*wanted).order_by(XComModel.timestamp))))


def returned_by_tasks(session: Session, tasks: Collection[tuple[str, str, str]]) -> list[ReturnedArtifact]:
    """The artifacts that some tasks returned, in the order in which they did.

    Args:
        session: Of Airflow's database.
        tasks: DAG, run and task of each.
    """
    named = tuple_(XComModel.dag_id, XComModel.run_id, XComModel.task_id).in_(tasks)
    wanted = select(*_COLUMNS).where(named, XComModel.key == XCOM_RETURN_KEY).order_by(XComModel.timestamp)
    return list(_artifacts(session.execute(wanted))) if tasks else []


def returned_by_dags(session: Session, dag_ids: Collection[str], limit: int) -> list[ReturnedArtifact]:
    """The artifacts that the tasks of some DAGs returned last, the newest first."""
    newest = (
        select(*_COLUMNS)
        .where(XComModel.dag_id.in_(dag_ids), XComModel.key == XCOM_RETURN_KEY)
        .order_by(XComModel.timestamp.desc())
        .limit(limit)
    )
    return list(_artifacts(session.execute(newest)))


def returned_by_task(
    session: Session, dag_id: str, task_id: str, limit: int, offset: int
) -> tuple[int, list[ReturnedArtifact]]:
    """How many artifacts the instances of a task returned, and some of them, the newest first."""
    mine = (XComModel.dag_id == dag_id, XComModel.task_id == task_id, XComModel.key == XCOM_RETURN_KEY)
    total = session.scalar(select(func.count()).select_from(XComModel).where(*mine)) or 0
    newest = select(*_COLUMNS).where(*mine).order_by(XComModel.timestamp.desc(), XComModel.map_index.desc())
    return total, list(_artifacts(session.execute(newest.limit(limit).offset(offset))))


def last_returned(session: Session, dag_ids: Collection[str], kind: str, last: int = 1) -> list[ReturnedArtifact]:
    """The artifacts of a kind that each task of some DAGs returned last, the newest first."""
    pipelines = read_pipelines(session, list(dag_ids)).values()
    kinds = (kind, None)  # none: only the task knows
    tasks = {(pipeline.dag_id, task.task_id) for pipeline in pipelines for task in pipeline.tasks if task.kind in kinds}
    rank = func.row_number().over(
        partition_by=(XComModel.dag_id, XComModel.task_id), order_by=XComModel.timestamp.desc()
    )
    identity = (XComModel.dag_run_id, XComModel.task_id, XComModel.map_index, XComModel.key)
    ranked = (
        select(*identity, rank.label("rank"))
        .where(
            XComModel.key == XCOM_RETURN_KEY,
            XComModel.dag_id.in_({dag_id for dag_id, _ in tasks}),
            XComModel.task_id.in_({task_id for _, task_id in tasks}),
        )
        .subquery()
    )
    same = and_(*(ranked.c[column.key] == column for column in identity))
    newest = select(*_COLUMNS).join(ranked, same).where(ranked.c.rank <= last).order_by(XComModel.timestamp.desc())
    return [result for result in _artifacts(session.execute(newest)) if result.artifact.kind == kind]


def _artifacts(rows: Iterable[Any]) -> Iterator[ReturnedArtifact]:
    for row in rows:
        artifact = artifact_in(row)
        if artifact is not None:
            yield ReturnedArtifact(row.dag_id, row.run_id, row.task_id, row.map_index, row.timestamp, artifact)
