"""Artifacts of DAG runs and tasks, and the contents of their manifests."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, HTTPException, Query
from sqlalchemy import String, cast, func, select

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.airflow_internals.database import (
    XCOM_RETURN_KEY,
    DagRun,
    TaskInstance,
    XComModel,
    create_session,
    instance_columns,
)
from airflow_hops.core.artifacts.artifact import Artifact, FileEntry, Manifest, RowCounts, total_rows
from airflow_hops.core.store import ArtifactStore
from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS, may_read
from airflow_hops.web.artifacts.lookup import (
    FoundArtifact,
    TaskArtifact,
    TaskInstancePath,
    hook_of,
    manifest_at,
    missing_state,
    open_artifact,
    pipeline_of,
    published,
    run_of,
)
from airflow_hops.web.artifacts.tasks import ReturnedArtifact, producer_in, returned_by_runs
from airflow_hops.web.types import Facts, Limit, Model, Number, Offset, Page, RunFacts, TaskAddress, Time
from airflow_hops.web.unusable_files import reading_threads

router = APIRouter(prefix="/api/dags/{dag_id}", tags=["artifacts"])
_KIND_PATTERN = r"^[a-z][a-z0-9_]*$"


class ArtifactAddress(TaskAddress):
    """Address of an artifact in this API: kind, and the task instance that made it."""

    kind: str


class ArtifactSummary(ArtifactAddress):
    """Summary of an artifact without opening it. The address is that of the task that returned it."""

    fingerprint: str
    cached: bool
    """Whether it comes from an earlier run."""
    metrics: dict[str, Number]
    rows: dict[str, RowCounts]
    """Rows by table, split or window."""
    total_rows: RowCounts | None
    """Total, each row counted once; null if rows were not counted."""
    properties: Facts


class ArtifactEntry(ArtifactSummary):
    """An artifact of a run, and whether it still exists."""

    state: Literal["present", "deleted", "unreachable"]
    detail: str | None
    """Reason why it is missing."""
    created_at: Time | None
    size_bytes: int | None
    maker: ArtifactAddress | None
    """Task instance that made it, in an earlier run if it was cached; null if that is in another DAG."""


class RunSummary(RunFacts):
    """A DAG run."""

    artifacts: list[ArtifactSummary]


class InputArtifact(Model):
    """An input of an artifact. For one of a DAG that the user may not read, only the kind is set."""

    kind: str
    state: Literal["present", "deleted", "unreachable", "hidden"]
    detail: str | None = None
    """Reason why it is unreachable."""
    fingerprint: str | None
    address: ArtifactAddress | None


class ArtifactDetail(ArtifactEntry):
    """The contents of an artifact's manifest."""

    uri: str
    maker: ArtifactAddress
    try_number: int
    files: list[FileEntry]
    inputs: dict[str, list[InputArtifact]]


@router.get("/runs", dependencies=[READS_RUNS, READS_ARTIFACTS])
def list_runs(
    dag_id: str,
    with_kind: Annotated[str | None, Query(alias="with", pattern=_KIND_PATTERN, max_length=64)] = None,
    limit: Limit = 50,
    offset: Offset = 0,
) -> Page[RunSummary]:
    """Lists runs of a pipeline, newest first, and their artifacts; ``with`` selects those with one of a kind."""
    with create_session() as session:
        pipeline_of(session, dag_id)
        wanted = select(DagRun).where(DagRun.dag_id == dag_id)
        if with_kind is not None:
            # A coarse filter for the database; chance matches are dropped below.
            says_so = cast(XComModel.value, String).like(f'%"kind": "{with_kind}"%')
            returned = (XComModel.dag_id == dag_id, XComModel.key == XCOM_RETURN_KEY, says_so)
            holding = select(XComModel.run_id).where(*returned)
            wanted = wanted.where(DagRun.run_id.in_(holding))
        total = session.scalar(select(func.count()).select_from(wanted.subquery())) or 0
        newest_first = wanted.order_by(DagRun.run_after.desc(), DagRun.id.desc())
        runs = session.scalars(newest_first.limit(limit).offset(offset)).all()
        held: dict[str, list[ReturnedArtifact]] = {run.run_id: [] for run in runs}
        for each in returned_by_runs(session, dag_id, list(held)):
            if with_kind in (None, each.artifact.kind):
                held[each.run_id].append(each)
        results = [
            RunSummary.of_run(
                run, artifacts=[_summary(returned_address(each), each.artifact) for each in held[run.run_id]]
            )
            for run in runs
        ]
    return Page[RunSummary](total_entries=total, entries=results)


@router.get("/runs/{run_id}/artifacts", dependencies=[READS_RUNS, READS_ARTIFACTS])
def list_run_artifacts(dag_id: str, run_id: str) -> list[ArtifactEntry]:
    """Lists the artifacts of a run in the order of the pipeline's tasks, including those of failed and waiting ones."""
    with create_session() as session:
        pipeline = pipeline_of(session, dag_id)
        run_of(session, dag_id, run_id)
        held = {returned_address(each): each.artifact for each in returned_by_runs(session, dag_id, [run_id])}
        returned = {address.producer for address in held}
        began = session.execute(
            select(*instance_columns(TaskInstance)).where(
                TaskInstance.dag_id == pipeline.dag_id,
                TaskInstance.run_id == run_id,
                TaskInstance.start_date.is_not(None),
            )
        )
        kinds = {task.task_id: task.kind for task in pipeline.tasks if task.kind}
        silent = [
            ArtifactAddress.of(each, kind=kinds[each.task_id])
            for each in began
            if each.task_id in kinds and producer_in(each) not in returned
        ]
    order = {task.task_id: position for position, task in enumerate(pipeline.tasks)}

    def entry(address: ArtifactAddress) -> ArtifactEntry | None:
        store = hook_of(pipeline.conn_id(address.task_id)).store
        try:
            artifact = held.get(address) or published(store, address.producer, address.kind)
        except HTTPException as error:  # unknown whether there is one
            return _missing(address, Artifact("", address.kind, ""), error)
        return None if artifact is None else _entry(address, artifact, store)

    with reading_threads() as readers:
        entries = [result for result in readers.map(entry, [*held, *silent]) if result is not None]
    return sorted(entries, key=lambda e: (order.get(e.task_id, len(order)), e.iteration, e.map_index))


@router.get("/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}")
def get_artifact(found: TaskArtifact, user: GetUserDep, task: TaskInstancePath, kind: str) -> ArtifactDetail:
    """Returns an artifact: files, metrics and inputs."""
    manifest = found.manifest
    address = ArtifactAddress.of(task, kind=kind)
    return ArtifactDetail.of(
        _present(address, found.artifact, manifest),
        found.artifact,
        manifest.producer,
        maker=address_of(manifest),
        files=manifest.files,
        inputs={role: [_input(found, user, each) for each in values] for role, values in manifest.inputs.items()},
    )


def address_of(manifest: Manifest) -> ArtifactAddress:
    """Returns the address of an artifact in this API: that of the task instance that made it."""
    return ArtifactAddress.of(manifest.producer, kind=manifest.kind)


def returned_address(returned: ReturnedArtifact) -> ArtifactAddress:
    """Returns the address of a returned artifact: that of the task instance that returned it."""
    return ArtifactAddress.of(returned, kind=returned.artifact.kind)


def _summary(address: ArtifactAddress, artifact: Artifact) -> ArtifactSummary:
    return ArtifactSummary.of(address, artifact, total_rows=total_rows(artifact.rows, artifact.properties))


def _entry(address: ArtifactAddress, artifact: Artifact, store: ArtifactStore) -> ArtifactEntry:
    try:
        artifact, manifest = open_artifact(store, artifact)
    except HTTPException as error:
        return _missing(address, artifact, error)
    return _present(address, artifact, manifest)


def _missing(address: ArtifactAddress, artifact: Artifact, error: HTTPException) -> ArtifactEntry:
    facts = {**dict.fromkeys(("created_at", "size_bytes", "maker")), "detail": str(error.detail)}
    return ArtifactEntry.of(_summary(address, artifact), state=missing_state(error), **facts)


def _present(address: ArtifactAddress, artifact: Artifact, manifest: Manifest) -> ArtifactEntry:
    return ArtifactEntry.of(
        _summary(address, artifact),
        manifest,
        state="present",
        detail=None,
        size_bytes=sum(file.size_bytes for file in manifest.files),
        maker=address_of(manifest) if manifest.producer.dag_id == address.dag_id else None,
    )


def _input(result: FoundArtifact, user: GetUserDep, artifact: Artifact) -> InputArtifact:
    state: Literal["present", "deleted", "unreachable"] = "present"
    address = detail = None
    try:
        manifest = manifest_at(result.store, artifact.uri)
        if manifest is None:
            state = "deleted"
        elif may_read(user, manifest.producer.dag_id, DagAccessEntity.XCOM):
            address = address_of(manifest)
        else:
            return InputArtifact(kind=artifact.kind, state="hidden", fingerprint=None, address=None)
    except HTTPException as error:
        state, detail = "unreachable", str(error.detail)
    return InputArtifact.of(artifact, state=state, detail=detail, address=address)
