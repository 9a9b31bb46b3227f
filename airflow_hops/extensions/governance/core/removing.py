"""Removes artifacts and empty folders of a store while tasks write to it."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid

from airflow_hops.core.artifacts.artifact import MANIFEST_NAME
from airflow_hops.core.store.files import STAGING, Files, LocalFiles


def take_away(files: Files, uri: str) -> bool:
    """Removes an artifact without a manifest; returns False if it has one, as it was published again.

    Raises:
        OSError: It cannot be removed.
    """
    if not isinstance(files, LocalFiles):
        if files.exists(f"{uri}/{MANIFEST_NAME}"):
            return False
        files.remove_folder(uri)
        return True
    path = files.path(uri)
    away = path.with_name(f"{path.name}{STAGING}removed-{uuid.uuid4().hex[:8]}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(away)  # so that nobody publishes there while its files are removed
        if (away / MANIFEST_NAME).exists():
            with contextlib.suppress(OSError):  # another task has published it again
                away.rename(path)
            return False
        shutil.rmtree(away)
    return True


def remove_empty_folders(files: Files, uri: str) -> None:
    """Removes the empty folders at and below an address, and those above that are then empty.

    Other stores than local ones have no folders.
    """
    if not isinstance(files, LocalFiles):
        return
    path = files.path(uri)
    for place in (*(place for place, _, _ in os.walk(path, topdown=False)), str(path.parent)):
        if STAGING not in place:
            with contextlib.suppress(OSError):
                os.removedirs(place)
