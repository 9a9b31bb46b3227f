"""The files of an artifact, to keep on one's own machine."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, HTTPException
from fastapi.params import Path as PathParameter
from fastapi.responses import StreamingResponse

from airflow_hops.api.artifacts.lookup import TaskArtifact, reaching

router = APIRouter(prefix="/api/dags/{dag_id}/runs/{run_id}/artifacts/{task_id}/{map_index}/{kind}", tags=["artifacts"])
# What lies in a store is nobody's page: it is kept and never shown, whatever its name ends with.
_HEADERS = {
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "Cache-Control": "private, no-store",
}


@router.get(
    "/files/{file:path}",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}},
)
def download_file(
    found: TaskArtifact,
    file: Annotated[str, PathParameter(max_length=4096, description="Path in the artifact's manifest")],
) -> StreamingResponse:
    """A file of an artifact, as an attachment.

    Raises:
        HTTPException: 404, the file is not in the manifest; 410, it was deleted; 502, the store cannot be read.
    """
    if not found.has(file):
        raise HTTPException(404, f"the {found.artifact.kind} has no file {file!r}")
    with reaching(found.store):
        try:
            content = found.store.stream(found.store.file(found.artifact.uri, file))
        except FileNotFoundError:
            raise HTTPException(410, f"{file} of {found.artifact.uri} was deleted") from None
    name = quote(file.rpartition("/")[2], safe="")
    headers = {**_HEADERS, "Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    return StreamingResponse(content, media_type="application/octet-stream", headers=headers)
