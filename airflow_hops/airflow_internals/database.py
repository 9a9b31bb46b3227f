"""Names of Airflow's metadata database; tasks do not import them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow import settings
from airflow.configuration import conf
from airflow.models.asset import AssetEvent
from airflow.models.dag import DagModel
from airflow.models.dag_version import DagVersion
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.models.team import Team
from airflow.models.trigger import Trigger
from airflow.models.xcom import XCOM_RETURN_KEY, XComModel
from airflow.utils.session import create_session
from airflow.utils.state import State, TaskInstanceState
from sqlalchemy import case, func, literal, or_, select, true
from sqlalchemy.sql import ColumnElement
from sqlalchemy.sql.selectable import ScalarSelect

try:
    from airflow.models.dynamic_region import (  # type: ignore[import-not-found]  # not in 3.3
        SENTINEL_REGION_ID,
        DynamicRegion,
    )
except ImportError:  # before Airflow 3.4, which has loops
    DynamicRegion = None

__all__ = [
    "XCOM_IDENTITY",
    "XCOM_IS_CURRENT",
    "XCOM_RETURN_KEY",
    "AssetEvent",
    "DagModel",
    "DagRun",
    "DagVersion",
    "HITLDetail",
    "SerializedDagModel",
    "State",
    "TaskInstance",
    "TaskInstanceState",
    "XComModel",
    "create_session",
    "instance_columns",
    "iteration_of",
    "map_index_of",
    "settings",
    "team_names",
    "teams_of_dags",
    "waiting_triggers",
]

XCOM_IDENTITY: tuple[Any, ...]
"""Columns that identify a row of ``XComModel``."""
XCOM_IS_CURRENT: ColumnElement[bool]
"""Condition on rows of ``XComModel``, which in Airflow 3.4 has those of earlier tries, too."""
if DynamicRegion is None:
    XCOM_IDENTITY = (XComModel.dag_run_id, XComModel.task_id, XComModel.map_index, XComModel.key)
    XCOM_IS_CURRENT = true()
else:
    XCOM_IDENTITY = (XComModel.task_instance_id, XComModel.key)
    XCOM_IS_CURRENT = XComModel.task_instance_id.in_(select(TaskInstance.id).where(TaskInstance.working_set.is_(True)))


def team_names() -> set[str]:
    """Returns the names of Airflow's teams."""
    return set(Team.get_all_team_names())


def teams_of_dags(dag_ids: Collection[str]) -> dict[str, str | None]:
    """Returns the team of each of some DAGs that has one; empty if Airflow has no teams."""
    if not conf.getboolean("core", "multi_team", fallback=False):
        return {}
    return DagModel.get_dag_id_to_team_name_mapping(list(dag_ids))


def waiting_triggers(older_than: timedelta) -> dict[str | None, int]:
    """Returns the number of triggers by team that no triggerer has taken for so long; None for no team."""
    query = select(Trigger.team_name, func.count()).group_by(Trigger.team_name)
    query = query.where(Trigger.triggerer_id.is_(None), Trigger.created_date < datetime.now(UTC) - older_than)
    with create_session() as session:
        return dict(session.execute(query).tuples().all())


def map_index_of(model: Any) -> ColumnElement[int]:
    """Returns the column ``map_index``, -1 for unmapped tasks, of ``TaskInstance`` or ``XComModel``."""
    if DynamicRegion is None:
        return model.map_index  # type: ignore[no-any-return]
    is_mapped = or_(model.region_id == SENTINEL_REGION_ID, _own_region(model, DynamicRegion.id).is_not(None))
    return case((is_mapped, model.region_index), else_=-1).label("map_index")


def iteration_of(model: Any) -> ColumnElement[int]:
    """Returns the column ``iteration``, -1 outside a loop, of ``TaskInstance`` or ``XComModel``."""
    if DynamicRegion is None:
        return literal(-1).label("iteration")
    # A loop's iterations share a region, in which each mapped task has a region of its own.
    return case(
        (model.region_id == SENTINEL_REGION_ID, -1),
        (_own_region(model, DynamicRegion.id).is_(None), model.region_index),
        else_=func.coalesce(_own_region(model, DynamicRegion.parent_region_index), -1),
    ).label("iteration")


def instance_columns(model: Any) -> tuple[Any, ...]:
    """Returns the columns of ``TaskInstance`` or ``XComModel`` that identify a task instance.

    Their names are ``dag_id``, ``run_id``, ``task_id``, ``map_index`` and ``iteration``.
    """
    return model.dag_id, model.run_id, model.task_id, map_index_of(model), iteration_of(model)


def _own_region(model: Any, column: Any) -> ScalarSelect[object]:
    own = (DynamicRegion.id == model.region_id) & (DynamicRegion.node_id == model.task_id)
    return select(column).where(own).correlate(model).scalar_subquery()
