"""Folders of versions, in which models appear atomically.

On a local file system a finished copy is renamed into place. An object store cannot rename folders: there the file by
which the server recognizes a model, such as ``saved_model.pb``, is uploaded last and removed first.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_hops.core.errors import ArtifactNotFound, BadInput, ConnectionFieldError
from airflow_hops.core.processes.files import staged
from airflow_hops.core.processes.remote_files import RemoteFiles
from airflow_hops.core.serving_api.server_kinds import BUNDLED, model_server_kinds
from airflow_hops.core.steps.shared_places import SharedPlaces
from airflow_hops.core.store import ArtifactStore
from airflow_hops.serving.models.formats import ModelFormat, format_of, formats, model_files

# A version's folder appears once and never changes. Locally: copy to .<version>.…, add the marker, rename.
# In a store: the marker first, then the files, and last the file by which servers recognize a model; removal in
# reverse. A kill leaves a hidden folder, or files without the recognized one: the next publish() removes them, or
# with the same marker keeps what is there. Callers hold ModelServer.exclusive().

MARKER = "assets.extra/hops.json"
"""Identifies the model in a version folder; a SavedModel may hold files that it does not load in ``assets.extra``."""


class LocalFolders:
    """Versions on a file system that worker and server share.

    Args:
        base_path: Folder of the models.
        own_folder: Whether each version is in a folder of its own, ``<version>/<version>``, for a server that is given
            this folder only.
    """

    def __init__(self, base_path: Path, *, own_folder: bool = False) -> None:
        self.base_path, self._own_folder = base_path, own_folder

    def uri(self, model_name: str, version: int | None = None) -> str:
        """Returns the path of a model's folder, or of a version's."""
        folder = self.base_path / model_name
        return str(folder if version is None else folder / _inside(version, self._own_folder))

    def format(self, model_name: str, version: int) -> ModelFormat | None:
        """Returns the format of a version."""
        return format_of(Path(self.uri(model_name, version)))

    def has(self, model_name: str, version: int) -> bool:
        """Returns whether a complete version exists."""
        folder = Path(self.uri(model_name, version))
        return any((folder / name).is_file() for name in model_files())

    def read(self, model_name: str, version: int, name: str) -> bytes | None:
        """Returns the content of a version's file; None if there is none."""
        path = Path(self.uri(model_name, version)) / name
        return path.read_bytes() if path.is_file() else None

    def publish(self, model: Path, model_name: str, version: int, fingerprint: str) -> bool:
        """Copies a model to a temporary folder, and renames that folder."""
        target = Path(self.uri(model_name, version))
        if target.exists():
            marker = target / MARKER
            _check_same(target, marker.read_text() if marker.is_file() else None, fingerprint)
            return False
        for rubbish in target.parent.glob(".[0-9]*"):
            shutil.rmtree(rubbish, ignore_errors=True)
        with staged(target) as staging:
            shutil.copytree(model, staging)
            (staging / MARKER).parent.mkdir(exist_ok=True)
            (staging / MARKER).write_text(_marker(version, fingerprint))
        return True

    def unpublish(self, model_name: str, version: int) -> None:
        """Renames the folder, and removes it."""
        target = Path(self.uri(model_name, version))
        staging = target.parent / f".{version}.removed-{uuid.uuid4().hex[:8]}"
        with contextlib.suppress(FileNotFoundError):
            target.rename(staging)
        shutil.rmtree(staging, ignore_errors=True)


class RemoteFolders:
    """Versions in a store that fsspec opens; ``own_folder`` is as in :class:`LocalFolders`."""

    def __init__(self, base_path: str, storage_options: Mapping[str, object], *, own_folder: bool = False) -> None:
        self.base_path, self._own_folder = base_path.rstrip("/"), own_folder
        try:
            self._files = RemoteFiles(base_path, storage_options)
        except (ImportError, ValueError) as error:
            raise ConnectionFieldError("serving_base_path", f" is {base_path!r}: {error}") from error

    def uri(self, model_name: str, version: int | None = None) -> str:
        """Returns the URI of a model's folder, or of a version's."""
        folder = f"{self.base_path}/{model_name}"
        return folder if version is None else f"{folder}/{_inside(version, self._own_folder)}"

    def format(self, model_name: str, version: int) -> ModelFormat | None:
        """Returns the format of a version."""
        folder = self.uri(model_name, version)
        exists = self._files.exists
        return next(
            (known for known in formats().values() if any(exists(f"{folder}/{name}") for name in known.files)), None
        )

    def has(self, model_name: str, version: int) -> bool:
        """Returns whether a complete version exists."""
        return any(self._files.exists(f"{self.uri(model_name, version)}/{name}") for name in model_files())

    def read(self, model_name: str, version: int, name: str) -> bytes | None:
        """Returns the content of a version's file; None if there is none."""
        try:
            return self._files.read(f"{self.uri(model_name, version)}/{name}")
        except FileNotFoundError:
            return None

    def publish(self, model: Path, model_name: str, version: int, fingerprint: str) -> bool:
        """Uploads a model, with the file that identifies it last."""
        folder = self.uri(model_name, version)
        try:
            present = self._files.read(f"{folder}/{MARKER}").decode()
        except FileNotFoundError:
            present = None
        if self.has(model_name, version):
            _check_same(folder, present, fingerprint)
            return False
        marker = _marker(version, fingerprint)
        files = {p.relative_to(model).as_posix(): p for p in sorted(model.rglob("*")) if p.is_file()}
        self._files.clear(folder, kept=() if present != marker else {*files, MARKER})  # removes files of another try
        self._files.fs.makedirs(folder, exist_ok=True)  # and the bucket, if it does not exist
        self._files.write(f"{folder}/{MARKER}", marker.encode())
        files.pop(MARKER, None)
        self._files.publish(files, folder, last=model_files())
        return True

    def unpublish(self, model_name: str, version: int) -> None:
        """Removes the file that identifies the model, then the others."""
        self._files.clear(self.uri(model_name, version), first=model_files())


VersionFolders = LocalFolders | RemoteFolders


def version_folders(base_path: str, storage_options: Mapping[str, Any], *, own_folder: bool = False) -> VersionFolders:
    """Returns the versions below a base path: an absolute path, or any URI that fsspec opens."""
    local = base_path.removeprefix("file://")
    if "://" in local:
        return RemoteFolders(base_path, storage_options, own_folder=own_folder)
    return LocalFolders(Path(local), own_folder=own_folder)


def own_folders(services: Mapping[str, str], store: ArtifactStore) -> tuple[SharedPlaces, VersionFolders]:
    """Returns the places of a server that is given the folder of one version, and its folders.

    They are below the connection's ``serving_base_path``, or else in the store.
    """
    models = services.get("serving_base_path") or f"{store.root}/_serving/models"
    places = SharedPlaces.of({**services, "serving_base_path": models}, store)
    return places, version_folders(places.base_path, places.storage_options, own_folder=True)


def _inside(version: int, own_folder: bool) -> str:
    return f"{version}/{version}" if own_folder else str(version)


def check_model(folder: Path, *, served_by: str = BUNDLED) -> None:
    """Checks that a folder holds a model, without loading it.

    Raises:
        BadInput: it does not, or a server of that kind does not support the format.
    """
    model_format = format_of(folder)
    if model_format is None:
        raise ArtifactNotFound(folder, f": no model; expected one of {', '.join(model_files())}")
    served = model_server_kinds()[served_by].formats
    if served is not None and model_format.name not in served:
        raise BadInput(
            f"{folder}: the model is of the format {model_format.name}, and the connection's server is a {served_by}, "
            f"which serves only {' and '.join(served)}; serve it with 'airflow hops serve' (kind 'bundled')"
        )


def _marker(version: int, fingerprint: str) -> str:
    return json.dumps({"fingerprint": fingerprint, "version": version})


def _check_same(target: Path | str, marker: str | None, fingerprint: str) -> None:
    try:
        result = str(json.loads(marker or "")["fingerprint"])
    except (ValueError, KeyError, TypeError):
        result = "none"
    if result != fingerprint:
        raise BadInput(
            f"{target}: holds another model (fingerprint {result[:12]}, expected {fingerprint[:12]}): the registry and "
            "this folder do not belong together; clear the folder, or name another serving_base_path"
        )
