"""Downloads of an artifact's files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, HTTPException
from fastapi.params import Path as PathParameter
from fastapi.responses import StreamingResponse

from airflow_hops.airflow_internals.api_server import DagAccessEntity, GetUserDep
from airflow_hops.web.access import may_read
from airflow_hops.web.artifacts.lookup import FoundArtifact, TaskArtifact, reaching

_LOGS = "logs/"
"""Folder of a model with the logs of its training's ranks."""

ARTIFACT_PREFIX = "/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{instance}/{kind}"

router = APIRouter(prefix=ARTIFACT_PREFIX, tags=["artifacts"])
# Files of a store are untrusted: browsers save them and never show them, whatever their extension.
_HEADERS = {"Content-Security-Policy": "sandbox; default-src 'none'", "Cache-Control": "private, no-store"}


@router.get(
    "/files/{file:path}",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
def download_file(
    user: GetUserDep,
    found: TaskArtifact,
    file: Annotated[str, PathParameter(max_length=4096, description="Path in the artifact's manifest")],
) -> StreamingResponse:
    """Downloads a file of an artifact.

    Raises:
        HTTPException: 403, it is a log of a task whose logs the user may not read; 404, the file is not in the
            manifest; 410, it was deleted; 502, the store cannot be read.
    """
    dag_id = found.manifest.producer.dag_id
    if file.startswith(_LOGS) and not may_read(user, dag_id, DagAccessEntity.TASK_LOGS):
        raise HTTPException(403, f"{file} is a log; you need permission to read the logs of DAG {dag_id!r}")
    content = stream_file(found, file)
    name = quote(file.rpartition("/")[2], safe="")
    headers = {**_HEADERS, "Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    return StreamingResponse(content, media_type="application/octet-stream", headers=headers)


def stream_file(result: FoundArtifact, file: str) -> Iterator[bytes]:
    """Yields a file of an artifact. Raises HTTPException as :func:`download_file`."""
    if not result.has(file):
        raise HTTPException(404, f"the {result.artifact.kind} has no file {file!r}")
    with reaching(result.store, f"{result.artifact.uri}/{file}"):
        return result.store.stream(result.store.file(result.artifact.uri, file))
