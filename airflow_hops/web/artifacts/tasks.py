"""Tasks of pipelines from serialized DAGs, and the artifacts that they returned, without reading the store."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import and_, func, select, tuple_
from sqlalchemy.orm import Session

from airflow_hops.airflow_internals.database import (
    XCOM_IDENTITY,
    XCOM_IS_CURRENT,
    XCOM_RETURN_KEY,
    DagVersion,
    SerializedDagModel,
    XComModel,
    instance_columns,
    map_index_of,
    teams_of_dags,
)
from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.runner.connections import in_team
from airflow_hops.runner.runtime import RuntimeHook

_CONN_FIELD = RuntimeHook.conn_name_attr
_PACKAGE = "airflow_hops."
_STAGES = "airflow_hops.operators."
_DECIDING = ("deploy", "rollout", "serving")


class PipelineModel(NamedTuple):
    """A served model, and the connection with its store and server."""

    hops_conn_id: str
    name: str


@dataclass(frozen=True)
class StageTask:
    """A task of this package.

    Attributes:
        stage: The stage, named like the operator's module (``ingest``, ``statistics``, ``train``, …); None for a user's
            subclass.
        kind: Kind of its artifact; None if it makes none, or only the task knows.
        model_name: The served model that it works on, if the DAG file names it.
        hops_conn_id: Connection with the store, for the team of the DAG.
        problem: Reason why stage and kind are not known: the operator cannot be imported here.
    """

    task_id: str
    stage: str | None
    kind: str | None
    operator: str
    hops_conn_id: str
    model_name: str | None
    problem: str | None = None


@dataclass(frozen=True)
class PipelineDag:
    """A DAG with tasks of this package, as defined by its newest version.

    Attributes:
        dag_hash: Airflow's hash of the serialized DAG.
        tasks: Tasks of this package, in the order of the DAG file.
        assets: Names of the assets that its tasks update, except those of artifacts.
        scheduled_on: Names of the assets that start it.
    """

    dag_id: str
    dag_hash: str
    tasks: tuple[StageTask, ...]
    assets: frozenset[str] = frozenset()
    scheduled_on: frozenset[str] = frozenset()
    doc: str = ""

    def task(self, task_id: str) -> StageTask | None:
        """Returns a task, or None."""
        return next((task for task in self.tasks if task.task_id == task_id), None)

    def conn_id(self, task_id: str | None = None) -> str:
        """Returns the connection of a task; that of the first task for a removed task, and for the DAG as a whole."""
        task = self.task(task_id) if task_id else None
        return (task or self.tasks[0]).hops_conn_id

    def stages(self) -> list[str]:
        """Returns the stages in the order of the DAG file, each once."""
        return list(dict.fromkeys(task.stage for task in self.tasks if task.stage))

    def models(self) -> list[PipelineModel]:
        """Returns the served models that it works on, those that it deploys first."""
        ordered = sorted(self.tasks, key=lambda task: task.stage != "deploy")
        return list(dict.fromkeys(PipelineModel(t.hops_conn_id, t.model_name) for t in ordered if t.model_name))

    def decides_on(self, model_name: str) -> bool:
        """Returns whether one of its tasks deploys a model or decides on its serving."""
        return any(task.model_name == model_name and task.stage in _DECIDING for task in self.tasks)


_read_before: dict[str, tuple[tuple[str, str | None], PipelineDag | None]] = {}
"""Cache of hashes, teams and definitions by DAG, since most DAGs do not change between requests."""


def read_pipelines(session: Session, dag_ids: Collection[str] | None = None) -> dict[str, PipelineDag]:
    """Returns the pipelines among some DAGs, or all if ``dag_ids`` is None, by DAG id."""
    latest = select(DagVersion.dag_id, func.max(DagVersion.version_number).label("number")).join(
        SerializedDagModel, SerializedDagModel.dag_version_id == DagVersion.id
    )
    if dag_ids is not None:
        latest = latest.where(DagVersion.dag_id.in_(dag_ids))
    last_version = latest.group_by(DagVersion.dag_id).subquery()
    newest = session.execute(
        select(SerializedDagModel.dag_id, SerializedDagModel.dag_hash, SerializedDagModel.id)
        .join(DagVersion, SerializedDagModel.dag_version_id == DagVersion.id)
        .join(
            last_version,
            (DagVersion.dag_id == last_version.c.dag_id) & (DagVersion.version_number == last_version.c.number),
        )
    ).all()
    teams = teams_of_dags([row.dag_id for row in newest])
    known = {row.id: (row.dag_hash, teams.get(row.dag_id)) for row in newest}
    stale = [row.id for row in newest if _read_before.get(row.dag_id, (None,))[0] != known[row.id]]
    for row in session.scalars(select(SerializedDagModel).where(SerializedDagModel.id.in_(stale))) if stale else ():
        _read_before[row.dag_id] = known[row.id], _read(row.dag_id, row.dag_hash, row.data or {}, teams.get(row.dag_id))
    result = {row.dag_id: _read_before.get(row.dag_id, (None, None))[1] for row in newest}
    return {dag_id: pipeline for dag_id, pipeline in result.items() if pipeline is not None}


def together(pipelines: Iterable[PipelineDag], models: Collection[PipelineModel]) -> list[PipelineDag]:
    """Returns the pipelines that train, deploy or monitor one of the models."""
    return [pipeline for pipeline in pipelines if set(pipeline.models()) & set(models)]


def _read(dag_id: str, dag_hash: str, data: Mapping[str, Any], team: str | None) -> PipelineDag | None:
    dag = data.get("dag", {})
    serialized = [each.get("__var", each) for each in dag.get("tasks", [])]
    tasks = tuple(filter(None, (_stage_task(task, team) for task in serialized)))
    if not tasks:
        return None
    outlets = [asset for task in serialized for asset in _assets(task.get("outlets") or [])]
    assets = frozenset(asset["name"] for asset in outlets if asset.get("group") != "hops")
    scheduled_on = frozenset(asset["name"] for asset in _assets(dag.get("timetable") or {}))
    return PipelineDag(dag_id, dag_hash, tasks, assets, scheduled_on, str(dag.get("doc_md") or ""))


def _stage_task(task: Mapping[str, Any], team: str | None) -> StageTask | None:
    fields = task
    if task.get("_is_mapped"):
        fields = {**task.get("partial_kwargs", {}), **task}
    if _CONN_FIELD not in task.get("template_fields", ()):
        return None
    stage, kind, problem = _of_class(str(task.get("_task_module")), str(task.get("task_type")))
    return StageTask(
        task_id=task["task_id"],
        stage=stage,
        kind=kind,
        operator=str(task.get("task_type")),
        hops_conn_id=in_team(_plain(fields.get(_CONN_FIELD)) or RuntimeHook.default_conn_name, team),
        model_name=_plain(fields.get("model_name")),
        problem=problem,
    )


def _plain(value: Any) -> str | None:
    """Returns a literal field; None for a template, whose value is only known in a run."""
    return value if isinstance(value, str) and value and "{{" not in value else None


@cache
def _of_class(module: str, name: str) -> tuple[str | None, str | None, str | None]:
    """Returns stage and artifact kind of an operator or decorated task of this package, or why they are not known."""
    if not module.startswith(_PACKAGE):
        return None, None, None
    try:
        operator = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:  # of another version of this package, or with missing libraries
        return None, None, f"{module}.{name}: {error}; install here what the DAG processor has"
    ancestors = getattr(operator, "__mro__", ())
    modules = (each.__module__ for each in ancestors if each.__module__.startswith(_STAGES))
    stage = next((each.removeprefix(_STAGES) for each in modules), None)
    return (None if stage == "base" else stage), getattr(operator, "output_kind", None), None


def _assets(value: Any) -> Iterable[Mapping[str, Any]]:
    """Yields the assets in a serialized value at any depth."""
    if isinstance(value, list):
        for item in value:
            yield from _assets(item)
    elif isinstance(value, Mapping):
        body = value.get("__var", value)
        if isinstance(body, Mapping) and "uri" in body and "name" in body:
            yield body
        elif isinstance(body, Mapping | list):
            yield from _assets(list(body.values()) if isinstance(body, Mapping) else body)


# Airflow 3.3: would load the DAG run and its logical date with an entity, so these are columns.
_COLUMNS = (*instance_columns(XComModel), XComModel.timestamp, XComModel.value)


def producer_in(row: Any) -> Producer:
    """Returns the task instance of a row with the :func:`instance_columns`, as of its first try."""
    return Producer(row.dag_id, row.run_id, row.task_id, row.map_index, iteration=row.iteration)


@dataclass(frozen=True)
class ReturnedArtifact:
    """An artifact that a task instance returned."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int
    at: datetime
    artifact: Artifact
    iteration: int = -1

    @property
    def task(self) -> Producer:
        """The task instance, as of its first try."""
        return producer_in(self)


_RETURNED = select(*_COLUMNS).where(XComModel.key == XCOM_RETURN_KEY, XCOM_IS_CURRENT)


def returned_by_runs(
    session: Session, dag_id: str, run_ids: Collection[str], task_ids: Collection[str] | None = None
) -> list[ReturnedArtifact]:
    """Returns the artifacts that the tasks of some runs returned, or some of their tasks, in order of time."""
    wanted = _RETURNED.where(XComModel.dag_id == dag_id, XComModel.run_id.in_(run_ids))
    if task_ids is not None:
        wanted = wanted.where(XComModel.task_id.in_(task_ids))
    return list(_artifacts(session.execute(wanted.order_by(XComModel.timestamp))))


def returned_by_dag_runs(
    session: Session, runs: Collection[tuple[str, str]]
) -> dict[tuple[str, str], list[ReturnedArtifact]]:
    """Returns the artifacts that the tasks of runs of any DAGs returned, by DAG and run, in order of time."""
    named = _RETURNED.where(tuple_(XComModel.dag_id, XComModel.run_id).in_(runs)).order_by(XComModel.timestamp)
    artifacts: dict[tuple[str, str], list[ReturnedArtifact]] = {run: [] for run in runs}
    for each in _artifacts(session.execute(named)) if runs else ():
        artifacts[each.dag_id, each.run_id].append(each)
    return artifacts


def returned_by_tasks(session: Session, tasks: Collection[tuple[str, str, str]]) -> list[ReturnedArtifact]:
    """Returns the artifacts of some tasks, each with its DAG and run, in order of time."""
    named = tuple_(XComModel.dag_id, XComModel.run_id, XComModel.task_id).in_(tasks)
    return list(_artifacts(session.execute(_RETURNED.where(named).order_by(XComModel.timestamp)))) if tasks else []


def returned_by_dags(session: Session, dag_ids: Collection[str], limit: int) -> list[ReturnedArtifact]:
    """Returns the newest artifacts that the tasks of some DAGs returned, newest first."""
    newest = _RETURNED.where(XComModel.dag_id.in_(dag_ids)).order_by(XComModel.timestamp.desc())
    return list(_artifacts(session.execute(newest.limit(limit))))


def returned_by_task(
    session: Session, dag_id: str, task_id: str, limit: int, offset: int
) -> tuple[int, list[ReturnedArtifact]]:
    """Returns the number of artifacts that a task's instances returned, and a page of them, newest first."""
    mine = _RETURNED.where(XComModel.dag_id == dag_id, XComModel.task_id == task_id)
    total = session.scalar(select(func.count()).select_from(mine.subquery())) or 0
    newest = mine.order_by(XComModel.timestamp.desc(), map_index_of(XComModel).desc())
    return total, list(_artifacts(session.execute(newest.limit(limit).offset(offset))))


def last_returned(session: Session, dag_ids: Collection[str], kind: str, last: int = 1) -> list[ReturnedArtifact]:
    """Returns the last artifacts of a kind by each task of some DAGs, newest first."""
    pipelines = read_pipelines(session, list(dag_ids)).values()
    kinds = (kind, None)  # None: only the task knows
    tasks = {(pipeline.dag_id, task.task_id) for pipeline in pipelines for task in pipeline.tasks if task.kind in kinds}
    rank = func.row_number().over(
        partition_by=(XComModel.dag_id, XComModel.task_id), order_by=XComModel.timestamp.desc()
    )
    ranked = (
        select(*XCOM_IDENTITY, rank.label("rank"))
        .where(
            XComModel.key == XCOM_RETURN_KEY,
            XCOM_IS_CURRENT,
            XComModel.dag_id.in_({dag_id for dag_id, _ in tasks}),
            XComModel.task_id.in_({task_id for _, task_id in tasks}),
        )
        .subquery()
    )
    same = and_(*(ranked.c[column.key] == column for column in XCOM_IDENTITY))
    newest = select(*_COLUMNS).join(ranked, same).where(ranked.c.rank <= last).order_by(XComModel.timestamp.desc())
    return [result for result in _artifacts(session.execute(newest)) if result.artifact.kind == kind]


def artifact_in(row: Any) -> Artifact | None:
    """Returns the artifact reference in an XCom ``row``, or None if it holds something else."""
    try:
        value = XComModel.deserialize_value(row)
        artifact = Artifact.from_dict(value)
    except Exception:  # tasks may return anything: unknown classes, incomplete artifacts
        return None
    is_named = all(isinstance(name, str) for name in (artifact.uri, artifact.kind, artifact.fingerprint))
    has_numbers = all(each is None or isinstance(each, int | float) for each in artifact.metrics.values())
    return artifact if is_named and has_numbers else None


def _artifacts(rows: Iterable[Any]) -> Iterator[ReturnedArtifact]:
    for row in rows:
        artifact = artifact_in(row)
        if artifact is not None:
            yield ReturnedArtifact(
                row.dag_id, row.run_id, row.task_id, row.map_index, row.timestamp, artifact, row.iteration
            )
