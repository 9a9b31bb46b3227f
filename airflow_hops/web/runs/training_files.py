"""Files that a training run logged to MLflow: listed, shown as plain text or pictures, and downloaded.

What a run has logged is anybody's text. A browser gets it as plain text, as one of four raster formats, or to be saved:
never as something that could run here.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Response

from airflow_hops.web.access import READS_ARTIFACTS, READS_RUNS
from airflow_hops.web.queries.client import ask, ask_bytes
from airflow_hops.web.runs.trainings import RunId, tracking_hook
from airflow_hops.web.types import Model

router = APIRouter(
    prefix="/api/dags/{dag_id}/training-runs/{mlflow_run_id}/files",
    tags=["training runs"],
    dependencies=[READS_RUNS, READS_ARTIFACTS],
)
_PREVIEW_BYTES = 256 << 10
_PICTURES = {
    ".gif": "image/gif",
    ".jpeg": "image/jpeg",
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, no-cache",
}
_BINARY: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}
FilePath = Annotated[str, Query(max_length=1000, description="Path in the list of the run's files")]


class RunFile(Model):
    """A file."""

    path: str
    size_bytes: int | None


class RunFiles(Model):
    """A run's files; ``whole`` is false if there are too many to list."""

    files: list[RunFile]
    whole: bool


@router.get("")
def list_run_files(dag_id: str, mlflow_run_id: RunId) -> RunFiles:
    """The files of a training run."""
    return RunFiles(**ask(tracking_hook(dag_id), "run_files/tree", {"experiment": dag_id, "run_id": mlflow_run_id}))


@router.get("/preview", response_class=Response, responses=_BINARY)
def preview_run_file(dag_id: str, mlflow_run_id: RunId, path: FilePath) -> Response:
    """The first 256 KiB of a file as plain text; a picture in full."""
    picture = _PICTURES.get(PurePosixPath(path).suffix.lower())
    content = _read(dag_id, mlflow_run_id, path, None if picture else _PREVIEW_BYTES)
    return Response(content, headers=_HEADERS, media_type=picture or "text/plain; charset=utf-8")


@router.get("/download", response_class=Response, responses=_BINARY)
def download_run_file(dag_id: str, mlflow_run_id: RunId, path: FilePath) -> Response:
    """Downloads a file."""
    name = quote(PurePosixPath(path).name)
    headers = {**_HEADERS, "Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    content = _read(dag_id, mlflow_run_id, path, None)
    return Response(content, headers=headers, media_type="application/octet-stream")


def _read(dag_id: str, run_id: str, path: str, max_bytes: int | None) -> bytes:
    params = {"experiment": dag_id, "run_id": run_id, "path": path, "max_bytes": max_bytes}
    return ask_bytes(tracking_hook(dag_id), "run_files/read", params)
