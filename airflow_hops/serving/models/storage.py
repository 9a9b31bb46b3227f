"""Which version folders a model has on disk, and which of them its policy wants."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_hops.serving.models.formats import format_of

log = logging.getLogger(__name__)

# ModelSpec has 64 bits for a version: a folder whose number takes more is none.
_MAX_VERSION = 2**63 - 1

# A folder that was not renamed into place counts as whole once nothing in it has changed for so long.
_QUIET_S = 1.0

Fingerprint = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class VersionFolder:
    """One version on disk."""

    number: int
    path: Path

    def fingerprint(self) -> Fingerprint:
        """Names, sizes and times of its files: it changes while the folder is still being copied."""
        return tuple(sorted((str(file), status.st_size, status.st_mtime_ns) for file, status in _stats(self.path)))

    def is_quiet(self) -> bool:
        """Whether nobody is writing to it any more: it was renamed into place, or nothing changed for a second.

        A vocabulary of which half has arrived would load without an error.
        """
        own = self.path.stat()
        # A rename touches the folder's ctime alone, where a new entry touches both times.
        if own.st_ctime_ns > own.st_mtime_ns:
            return True
        newest_s = max((status.st_ctime for _, status in _stats(self.path)), default=own.st_ctime)
        return not 0 <= time.time() - newest_s < _QUIET_S


def _stats(folder: Path) -> list[tuple[Path, os.stat_result]]:
    found = []
    for path in folder.rglob("*"):
        # What is gone by now was a temporary file.
        with contextlib.suppress(OSError):
            found.append((path, path.stat()))
    return found


@dataclass(frozen=True)
class FoundVersions:
    """What a look at a base path finds.

    Attributes:
        ready: Version folders that hold a model and are whole.
        growing: Versions that are still being written.
        empty: Version folders that hold no model.
    """

    ready: dict[int, VersionFolder]
    growing: tuple[int, ...] = ()
    empty: tuple[int, ...] = ()


def find_versions(base_path: str, known: Mapping[int, Path] | None = None) -> FoundVersions:
    """Looks for versions under a base path: integer-named folders.

    Args:
        base_path: The folder, or a ``file://`` URI of it.
        known: Versions that were whole before, by number: they are not looked at again.

    Raises:
        OSError: The base path is missing or cannot be listed.
    """
    ready: dict[int, VersionFolder] = {}
    growing, empty = [], []
    for entry in sorted(os.scandir(base_path.removeprefix("file://")), key=lambda entry: entry.name):
        if not (entry.name.isascii() and entry.name.isdigit()):
            continue
        folder = VersionFolder(int(entry.name), Path(entry.path))
        if folder.number in ready or folder.number > _MAX_VERSION:
            continue
        try:
            if format_of(folder.path) is None:
                empty.append(folder.number)
            elif (known or {}).get(folder.number) == folder.path or folder.is_quiet():
                ready[folder.number] = folder
            else:
                growing.append(folder.number)
        except OSError:
            # Removed since it was listed.
            continue
    return FoundVersions(ready, tuple(growing), tuple(empty))


def wanted_versions(model: Any, found: dict[int, VersionFolder]) -> dict[int, VersionFolder]:
    """Returns the versions that a ``ModelConfig``'s policy asks for, of those that are there."""
    policy = model.model_version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return dict(found)
    if choice == "specific":
        return {number: found[number] for number in policy.specific.versions if number in found}
    newest_first = sorted(found, reverse=True)
    # TensorFlow Serving reads 0, the default, as 1.
    count = policy.latest.num_versions or 1
    return {number: found[number] for number in newest_first[:count]}


class StorageLog:
    """Says what is wrong with a base path once, and again only when that changes."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def check(self, model: Any, found: FoundVersions | OSError) -> None:
        """Logs a missing base path, an empty one, a folder without a model, or a specific version that is not there."""
        problem = ""
        if isinstance(found, OSError):
            problem = f"Could not find base path {model.base_path} for servable {model.name}: {found.strerror}"
        elif found.growing:
            problem = f"Version {found.growing[0]} of servable {model.name} is still being written; it is loaded after"
        elif found.empty:
            problem = (
                f"Could not find SavedModel .pb or .pbtxt at supplied export directory path: "
                f"{model.base_path}/{found.empty[0]}. Version {found.empty[0]} of servable {model.name} is passed over"
            )
        elif not found.ready:
            problem = (
                f"No versions of servable {model.name} found under base path {model.base_path}. Did you forget to name "
                f"your leaf directory as a number (eg. '/1/')?"
            )
        else:
            missing = [number for number in model.model_version_policy.specific.versions if number not in found.ready]
            if missing:
                problem = (
                    f"Version {missing[0]} of servable {model.name}, which was requested to be served as a 'specific' "
                    f"version in the servable's config, was not found in the file system"
                )
        if problem and self._said.get(model.name) != problem:
            log.warning("%s", problem)
        self._said[model.name] = problem
