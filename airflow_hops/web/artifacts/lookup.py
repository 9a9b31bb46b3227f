"""Finds artifacts. Requests name the task instance that made an artifact, never an address in the store."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import Depends, HTTPException
from fastapi.params import Path as PathParameter
from pydantic_core import from_json
from sqlalchemy import Text, cast, select
from sqlalchemy.orm import Session

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.airflow_internals.database import (
    XCOM_IS_CURRENT,
    XCOM_RETURN_KEY,
    DagRun,
    TaskInstance,
    XComModel,
    create_session,
    iteration_of,
    map_index_of,
)
from airflow_hops.core.artifacts.artifact import Artifact, Manifest, Producer
from airflow_hops.core.errors import ArtifactNotFound, BadInput, HopsError
from airflow_hops.core.redaction import redacted
from airflow_hops.core.store import ArtifactStore, kept_version
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.web.access import READS_ARTIFACTS, may_read
from airflow_hops.web.artifacts.tasks import PipelineDag, ReturnedArtifact, artifact_in, read_pipelines

INSTANCE = r"(-1|[0-9]{1,9}|i[0-9]{1,9}(@[0-9]{1,9})?)"
Instance = Annotated[
    str,
    PathParameter(
        pattern=f"^{INSTANCE}$",
        description="Index of a mapped task, -1 for other tasks; in a loop ``i<iteration>``, or for a mapped task "
        "``i<iteration>@<index>``",
    ),
]
Kind = Annotated[str, PathParameter(pattern=r"^[a-z][a-z0-9_]*$", description="Kind of the artifact", max_length=64)]


def task_instance(dag_id: str, run_id: str, task_id: str, instance: Instance) -> Producer:
    """Returns the task instance of a path ``{dag_id}…{run_id}…{task_id}/{instance}``, which may not exist."""
    return Producer.of_task(dag_id, run_id, task_id if instance == "-1" else f"{task_id}@{instance}")


TaskInstancePath = Annotated[Producer, Depends(task_instance)]
"""Task instance of a route ``…/{dag_id}/…/{run_id}/…/{task_id}/{instance}``, which may not exist."""


class Gone(HTTPException):
    """Answer (410) for an artifact or file that was deleted or replaced."""

    def __init__(self, detail: str) -> None:
        super().__init__(410, detail)


def missing_state(error: HTTPException) -> Literal["deleted", "unreachable"]:
    """Returns the state of an artifact that cannot be opened."""
    return "deleted" if isinstance(error, Gone) else "unreachable"


_UNLIKE = (ValueError, TypeError, LookupError, AttributeError, StopIteration)
"""Errors of what expects JSON of another shape."""


@dataclass(frozen=True)
class FoundArtifact:
    """An artifact that exists and that the user may see.

    Attributes:
        hook: The hook of its pipeline.
        artifact: The artifact at the address of its files: that of the retained version, if it was replaced.
        manifest: Its manifest.
        reference: The artifact as its task and the manifests of others name it.
    """

    hook: RuntimeHook
    artifact: Artifact
    manifest: Manifest
    reference: Artifact

    @classmethod
    def open(cls, hook: RuntimeHook, reference: Artifact) -> FoundArtifact:
        """Opens a referenced artifact; see :func:`open_artifact`."""
        return cls(hook, *open_artifact(hook.store, reference), reference)

    @property
    def store(self) -> ArtifactStore:
        """Store of the artifact."""
        return self.hook.store

    def has(self, path: str) -> bool:
        """Returns whether the manifest has a file."""
        return any(entry.path == path for entry in self.manifest.files)

    def without_page(self) -> str:
        """Returns why an artifact has no files for the pages, and which task to run again."""
        return f"this {self.artifact.kind} was made by an older version, without files for the pages: {self._remedy}"

    @property
    def _remedy(self) -> str:
        maker = self.manifest.producer
        return f"clear task {maker.task_id!r} of run {maker.run_id!r} of DAG {maker.dag_id!r} to make it again"

    def reading(self, path: str) -> contextlib.AbstractContextManager[None]:
        """Answers for a file that does not hold what its step writes; see :func:`reaching`."""
        return reaching(self.store, f"{self.artifact.uri}/{path}")

    def read_text(self, path: str) -> str:
        """Returns the text of a file.

        Raises:
            HTTPException: 404, the file is not in the manifest; 410, it was deleted; 502, the store cannot be read.
        """
        if not self.has(path):
            names = ", ".join(sorted(entry.path for entry in self.manifest.files)[:8])
            raise HTTPException(404, f"{self.artifact.kind} has no file {path!r}; it has {names or 'none'}")
        with reaching(self.store):
            try:
                return self.store.read_text(self.store.file(self.artifact.uri, path))
            except FileNotFoundError:
                raise Gone(f"{path} of {self.artifact.uri} was deleted: {self._remedy}") from None

    def read_json(self, path: str) -> Any:
        """Returns the JSON value of a file; see :meth:`read_text`. Raises HTTPException (502) if it is not JSON."""
        with self.reading(path):
            return from_json(self.read_text(path))


def find_artifact(
    user: GetUserDep,
    _: Annotated[None, READS_ARTIFACTS],
    task: TaskInstancePath,
    kind: Kind,
) -> FoundArtifact:
    """Returns the artifact of a task instance.

    Raises:
        HTTPException: 403, the user may not read the DAG that made it; 404, the run, task or artifact does not exist;
            410, it was deleted or replaced; 502, the store cannot be read.
    """
    with create_session() as session:
        pipeline = pipeline_of(session, task.dag_id)
        run_of(session, task.dag_id, task.run_id)
        returned = _returned(session, task, kind)
        known = returned or session.scalar(select(TaskInstance.id).where(*is_of(TaskInstance, task))) is not None
    if not known:
        raise HTTPException(404, f"run {task.run_id!r} of DAG {task.dag_id!r} has no task instance {task.task!r}")
    hook = hook_of(pipeline.conn_id(task.task_id))
    artifact = returned or published(hook.store, task, kind)
    if artifact is None:
        raise HTTPException(404, f"task {task.task!r} of run {task.run_id!r} has not made an artifact of kind {kind!r}")
    return _open(user, task.dag_id, hook, artifact)


def open_returned(user: GetUserDep, returned: ReturnedArtifact) -> FoundArtifact:
    """Opens an artifact that a task returned, if the user may read it; see :func:`find_artifact`."""
    return find_artifact(user, None, returned.task, returned.artifact.kind)


def find_frozen_schema(user: GetUserDep, _: Annotated[None, READS_ARTIFACTS], dag_id: str, name: str) -> FoundArtifact:
    """Returns the frozen schema with a name; see :func:`find_artifact`. The name is that of its ``SchemaOperator``."""
    with create_session() as session:
        hook = hook_of(pipeline_of(session, dag_id).conn_id())
    store = hook.store
    try:
        uri = store.frozen_schema(dag_id, name)
    except BadInput as error:
        raise HTTPException(422, f"name: {error}") from error
    manifest = manifest_at(store, uri)
    if manifest is None or manifest.producer.dag_id != dag_id:
        raise HTTPException(404, f"DAG {dag_id!r} has no frozen schema {name!r}")
    return _open(user, dag_id, hook, manifest.reference(uri))


TaskArtifact = Annotated[FoundArtifact, Depends(find_artifact)]
"""Artifact of a route ``/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}``, with access checked."""
FrozenSchema = Annotated[FoundArtifact, Depends(find_frozen_schema)]
"""Frozen schema of a route below ``/dags/{dag_id}/schemas/{name}``, with access checked."""


def pipeline_of(session: Session, dag_id: str) -> PipelineDag:
    """Returns the pipeline of a DAG; raises HTTPException (404) if there is none."""
    pipeline = read_pipelines(session, [dag_id]).get(dag_id)
    if pipeline is None:
        raise HTTPException(404, f"DAG {dag_id!r} does not exist, or has no tasks of this package")
    return pipeline


def run_of(session: Session, dag_id: str, run_id: str) -> DagRun:
    """Returns a run of a DAG; raises HTTPException (404) if it does not exist."""
    run: DagRun | None = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
    if run is None:
        raise HTTPException(404, f"DAG {dag_id!r} has no run {run_id!r}")
    return run


def hook_of(hops_conn_id: str) -> RuntimeHook:
    """Returns the hook of a connection; raises HTTPException (502) if the connection cannot be read.

    If its store is away, and not new, nothing is taken for missing: reading raises an exception.
    """
    hook = RuntimeHook(hops_conn_id)
    try:
        hook.store = hook.open_store()
    except HopsError as error:
        raise HTTPException(502, str(error)) from error
    with contextlib.suppress(HopsError):  # which reading raises, too
        hook.store = hook.find_store(_is_used)
    return hook


_unused_until: dict[str, datetime] = {}
"""For each root of a store that is missing: the time up to which no task had returned an artifact in it."""


def _is_used(root: str) -> bool:
    """Returns whether a task has returned an artifact in a store; searches what is newer than its last answer."""
    now, escaped = datetime.now(UTC), json.dumps(json.dumps(f"{root}/")[1:-1])[1:-1]  # as Airflow stores it
    with create_session() as session:
        pipelines = read_pipelines(session)
        place = cast(XComModel.value, Text).contains(escaped, autoescape=True)
        since = XComModel.timestamp >= _unused_until.get(root, datetime.min.replace(tzinfo=UTC))
        mine = select(XComModel.key).where(XComModel.dag_id.in_(pipelines), since, place)
        is_used = session.scalar(mine.limit(1)) is not None
    if not is_used:
        _unused_until[root] = now - timedelta(hours=1)  # some come to be in the database late
    return is_used


@contextlib.contextmanager
def reaching(store: ArtifactStore, uri: str = "") -> Iterator[None]:
    """Converts exceptions of a store, or of the file ``uri``, to HTTPException: 410, it was deleted, or 502.

    What is read from the file is read in the block, so that a file of another shape is called damaged.
    """
    try:
        yield
    except HTTPException:
        raise
    except FileNotFoundError as error:
        raise Gone(f"{uri or error.filename or error} was deleted") from error
    except HopsError as error:
        raise HTTPException(502, str(error)) from error
    except Exception as error:  # any exception of the file system's client
        detail = f"the artifact store {store.root} cannot be read ({type(error).__name__}: {error})"
        if uri and isinstance(error, _UNLIKE):
            detail = f"{uri} is damaged ({error}); restore it, or clear the task that wrote it"
        # The error may quote credentials and surrogates of the file, and answers with other contents quote the error.
        raise HTTPException(502, redacted(detail).encode(errors="backslashreplace").decode()) from error


def manifest_at(store: ArtifactStore, uri: str) -> Manifest | None:
    """Returns the manifest at an address, or None if there is no artifact.

    Raises:
        HTTPException: 502, the store or the manifest cannot be read.
    """
    with reaching(store):
        try:
            return store.manifest(uri)
        except ArtifactNotFound:
            return None


def open_artifact(store: ArtifactStore, artifact: Artifact) -> tuple[Artifact, Manifest]:
    """Returns a referenced artifact with its manifest; for one that was replaced, the retained version.

    Raises:
        HTTPException: 410, it was deleted or replaced; 502, the store cannot be read.
    """
    there = manifest_at(store, artifact.uri)
    if there is not None and there.fingerprint == artifact.fingerprint:
        return artifact, there
    retained = kept_version(artifact.uri, artifact.fingerprint)
    manifest = manifest_at(store, retained)
    if manifest is not None:
        return replace(artifact, uri=retained), manifest
    if there is not None:
        raise Gone(f"{artifact.uri} was replaced by a later try or run of its task")
    raise Gone(f"{artifact.uri} was deleted from the store")


def _open(user: GetUserDep, dag_id: str, hook: RuntimeHook, artifact: Artifact) -> FoundArtifact:
    result = FoundArtifact.open(hook, artifact)
    maker = result.manifest.producer.dag_id
    if maker != dag_id and not may_read(user, maker, DagAccessEntity.XCOM):
        raise HTTPException(403, "Forbidden")
    return result


def is_of(model: Any, task: Producer) -> tuple[Any, ...]:
    """Returns the conditions on rows of ``TaskInstance`` or ``XComModel`` of a task instance."""
    return (
        model.dag_id == task.dag_id,
        model.run_id == task.run_id,
        model.task_id == task.task_id,
        map_index_of(model) == task.map_index,
        iteration_of(model) == task.iteration,
    )


def _returned(session: Session, task: Producer, kind: str) -> Artifact | None:
    """Returns the artifact of a kind that the task instance returned or pushed."""
    rows: Iterable[Any] = session.execute(
        select(XComModel.key, XComModel.value).where(*is_of(XComModel, task), XCOM_IS_CURRENT)
    )
    for row in sorted(rows, key=lambda row: row.key != XCOM_RETURN_KEY):
        artifact = artifact_in(row)
        if artifact is not None and artifact.kind == kind:
            return artifact
    return None


def published(store: ArtifactStore, producer: Producer, kind: str) -> Artifact | None:
    """Returns the artifact of a task that has not returned it, because it failed afterwards or waits for a person."""
    try:
        uri = store.address(producer, kind)
    except BadInput:
        return None
    manifest = manifest_at(store, uri)
    if manifest is None or replace(manifest.producer, try_number=1) != producer:
        return None
    return manifest.reference(uri)
