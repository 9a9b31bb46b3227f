"""Files of a training run: those of its model, its code and its libraries."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Query, Response
from fastapi.responses import StreamingResponse

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.core.artifacts.artifact import Artifact, FileEntry
from airflow_hops.core.errors import HopsError
from airflow_hops.core.steps.run_record import RunRecord
from airflow_hops.core.steps.run_records import read_code, read_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.training.record import TrainingRecord
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS, may_read
from airflow_hops.web.artifacts.files import stream_file
from airflow_hops.web.artifacts.lookup import FoundArtifact, reaching
from airflow_hops.web.runs.records import Trainings
from airflow_hops.web.runs.trainings import TrainingId, tracking_hook
from airflow_hops.web.types import Page

router = APIRouter(
    prefix="/api/dags/{dag_id}/training-runs/{training_id}/files",
    tags=["training runs"],
    dependencies=[READS_RUNS, READS_ARTIFACTS],
)
_LIBRARIES, _CODE, _LOGS = "environment/requirements.txt", "code/", "logs/"
_PREVIEW_BYTES = 256 << 10
_PICTURES = {
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
}
_HEADERS = {"Content-Security-Policy": "default-src 'none'; sandbox", "Cache-Control": "private, no-cache"}
_BINARY: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}
FilePath = Annotated[str, Query(max_length=1000, description="Path in the list of the run's files")]


@router.get("")
def list_run_files(user: GetUserDep, dag_id: str, training_id: TrainingId) -> Page[FileEntry]:
    """Lists the files of a training run: of its model, and code and libraries of its step's record.

    ``problems`` names parts that are gone, or that the user may not read.
    """
    hook, training, step = find_step(dag_id, training_id)
    files, problems = [], []
    if step is not None:
        files.append(_entry(_LIBRARIES, _requirements(step)))
        if step.code is not None and may_read(user, dag_id, DagAccessEntity.CODE):
            try:
                files += [_entry(path, content) for path, content in _code(hook, step).items()]
            except HopsError as error:
                problems.append(str(error))
    try:
        model = _model(hook, training)
    except HTTPException as error:
        problems.append(str(error.detail))
    else:
        shown = list(model.manifest.files) if model else []
        if not may_read(user, dag_id, DagAccessEntity.TASK_LOGS):
            shown = [each for each in shown if not each.path.startswith(_LOGS)]
        files += shown
    files.sort(key=lambda each: ("/" not in each.path, each.path))
    return Page[FileEntry](total_entries=len(files), entries=files, problems=problems)


def _entry(path: str, content: bytes) -> FileEntry:
    return FileEntry(path, len(content), hashlib.sha256(content).hexdigest())


@router.get("/preview", response_class=Response, responses=_BINARY)
def preview_run_file(user: GetUserDep, dag_id: str, training_id: TrainingId, path: FilePath) -> Response:
    """Returns the first 256 KiB of a file as plain text; images are complete."""
    pieces = _read(user, dag_id, training_id, path)
    picture = _PICTURES.get(PurePosixPath(path).suffix.lower())
    if picture:
        return StreamingResponse(pieces, headers=_HEADERS, media_type=picture)
    content = b""
    for piece in pieces:
        content += piece
        if len(content) >= _PREVIEW_BYTES:
            break
    return Response(content[:_PREVIEW_BYTES], headers=_HEADERS, media_type="text/plain; charset=utf-8")


@router.get("/download", response_class=Response, responses=_BINARY)
def download_run_file(user: GetUserDep, dag_id: str, training_id: TrainingId, path: FilePath) -> Response:
    """Downloads a file."""
    name = quote(PurePosixPath(path).name)
    headers = {**_HEADERS, "Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    pieces = _read(user, dag_id, training_id, path)
    return StreamingResponse(pieces, headers=headers, media_type="application/octet-stream")


def _read(user: GetUserDep, dag_id: str, training_id: str, path: str) -> Iterator[bytes]:
    """Yields the content of a file; raises HTTPException if there is none, or the user may not read it."""
    hook, training, step = find_step(dag_id, training_id)
    needed = {_CODE: DagAccessEntity.CODE, _LOGS: DagAccessEntity.TASK_LOGS}
    for folder, entity in needed.items():
        if path.startswith(folder) and not may_read(user, dag_id, entity):
            raise HTTPException(403, f"{path}: you may not read the {folder.rstrip('/')} of DAG {dag_id!r}")
    if path == _LIBRARIES and step is not None:
        return iter([_requirements(step)])
    if path.startswith(_CODE) and step is not None and step.code is not None:
        with reaching(hook.store):
            code = _code(hook, step)
        if path in code:
            return iter([code[path]])
    elif (model := _model(hook, training)) is not None:
        return stream_file(model, path)
    raise HTTPException(404, f"run {training_id} has no file {path!r}")


def find_step(dag_id: str, training_id: str) -> tuple[RuntimeHook, TrainingRecord, RunRecord | None]:
    """Returns the hook of a training, its record and that of its step; HTTPException (404) if there is none."""
    hook = tracking_hook(dag_id)
    _, training = Trainings(hook.store, dag_id).find(training_id)
    with reaching(hook.store):
        return hook, training, None if training.record is None else read_record(hook.store, dag_id, training.record)


def _model(hook: RuntimeHook, training: TrainingRecord) -> FoundArtifact | None:
    """Returns the model of a training; None if it made none. Raises HTTPException if it is gone."""
    uri, fingerprint = training.tags.get("hops.model"), training.tags.get("hops.fingerprint")
    if training.parent is not None or not uri or not fingerprint:
        return None
    return FoundArtifact.open(hook, Artifact(uri, "model", fingerprint))


def code_files(store: ArtifactStore, step: RunRecord) -> dict[str, bytes]:
    """Returns the user code of a step by path, a function of the DAG file as ``<name>.py``.

    Raises:
        BadInput: as :func:`~airflow_hops.core.steps.run_records.read_code`.
    """
    # Without the number of the first folder, which is mostly the only one.
    files = {path.removeprefix("0/"): content for path, content in read_code(store, step).items()}
    training = step.params.get("training") or step.params  # nested for a search
    shipped = training.get("shipped") or training
    if {"source", "function"} <= shipped.keys():
        files[f"<{shipped['function']}>.py"] = str(shipped["source"]).encode()  # not a possible name of a module
    return files


def _code(hook: RuntimeHook, step: RunRecord) -> dict[str, bytes]:
    return {f"{_CODE}{path}": content for path, content in code_files(hook.store, step).items()}


def _requirements(step: RunRecord) -> bytes:
    return "".join(f"{name}=={version}\n" for name, version in sorted(step.packages.items())).encode()
