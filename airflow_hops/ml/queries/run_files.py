"""Files that were logged with a run of MLflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.ml.queries.place import Place
from airflow_hops.ml.queries.runs import find_run
from airflow_hops.ml.tracking.client import mlflow_errors

__all__ = ["read", "tree"]
_MAX_FILES = 2000
_MAX_BYTES = 256 << 20


def tree(place: Place, params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the files of run ``run_id`` of ``experiment``.

    Returns:
        ``files``, each with ``path`` and ``size_bytes`` (null if the server does not report it), in order; ``whole``:
        false if the run has more than two thousand files, and the rest is left out.

    Raises:
        FileNotFoundError: the DAG has no run with this ID, or it was deleted.
    """
    client, run = find_run(place, params)
    files: list[dict[str, Any]] = []
    with mlflow_errors(client):
        for entry in _walk(client, run.info.run_id, None):
            if len(files) == _MAX_FILES:
                return {"files": files, "whole": False}
            files.append({"path": entry.path, "size_bytes": entry.file_size})
    return {"files": files, "whole": True}


def read(place: Place, params: Mapping[str, Any]) -> bytes:
    """Returns the bytes of one file of a run.

    Args:
        place: Tracking server.
        params: ``experiment``, ``run_id``, ``path``, and ``max_bytes``: number of bytes that suffice, or null.

    Raises:
        BadInput: the path is not within the run's files, or a link that leads out of them, or the file is too large.
        FileNotFoundError: the DAG has no run with this ID, the run has no such file, or one of them was deleted.
    """
    path = PurePosixPath(params["path"])
    if path.is_absolute() or not path.parts or {"..", "~"} & set(path.parts) or set("\\\0%") & set(params["path"]):
        raise BadInput(f"path is {params['path']!r}; expected one of the run's files, such as training.json")
    client, run = find_run(place, params)
    run_id = run.info.run_id
    with mlflow_errors(client):
        # The server may read more than the user who logged a link: links must not lead out.
        address = urlsplit(run.info.artifact_uri)
        top = Path(unquote(address.path)).resolve()
        if address.scheme in ("", "file") and not (top / path).resolve().is_relative_to(top):
            raise BadInput(f"path: {path} leads out of the run's files, and is not shown")
        folder = None if path.parent == PurePosixPath() else str(path.parent)
        entry = next((each for each in client.list_artifacts(run_id, folder) if each.path == str(path)), None)
        if entry is None or entry.is_dir:
            raise FileNotFoundError(f"{path} of MLflow's run {run_id}")
        _check_size(path, entry.file_size or 0)
        with temporary_folder("run-file") as scratch:
            copied = Path(client.download_artifacts(run_id, str(path), str(scratch)))
            if params.get("max_bytes") is None:  # not every server reports sizes
                _check_size(path, copied.stat().st_size)
            with copied.open("rb") as stream:
                return stream.read(params.get("max_bytes") or -1)


def _check_size(path: PurePosixPath, size_bytes: int) -> None:
    if size_bytes > _MAX_BYTES:
        raise BadInput(f"path: {path} has {size_bytes:,} bytes, expected at most {_MAX_BYTES:,}: see MLflow for it")


def _walk(client: Any, run_id: str, folder: str | None) -> Iterator[Any]:
    for entry in sorted(client.list_artifacts(run_id, folder), key=lambda each: (not each.is_dir, each.path)):
        if entry.is_dir:
            yield from _walk(client, run_id, entry.path)
        else:
            yield entry
