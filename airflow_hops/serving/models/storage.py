"""Which version folders a model has on disk, and which of them its policy wants."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_hops.serving.models.formats import format_of

log = logging.getLogger(__name__)

Fingerprint = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True)
class VersionFolder:
    """One complete version on disk."""

    number: int
    path: Path

    def fingerprint(self) -> Fingerprint:
        """Names, sizes and times of its files: it changes while the folder is still being copied."""
        found = []
        for file in self.path.rglob("*"):
            try:
                status = file.stat()
            except OSError:
                continue
            found.append((str(file), status.st_size, status.st_mtime_ns))
        return tuple(sorted(found))


def find_versions(base_path: str) -> dict[int, VersionFolder]:
    """Returns the complete versions under a base path: integer-named folders that hold a model.

    Raises:
        OSError: The base path is missing or cannot be listed.
    """
    versions: dict[int, VersionFolder] = {}
    for entry in sorted(os.scandir(base_path), key=lambda entry: entry.name):
        if not (entry.name.isascii() and entry.name.isdigit()):
            continue
        path = Path(entry.path)
        if format_of(path) is not None:
            versions.setdefault(int(entry.name), VersionFolder(int(entry.name), path))
    return versions


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

    def check(self, model: Any, found: dict[int, VersionFolder] | OSError) -> None:
        """Logs a missing base path, an empty one, or a specific version that is not there."""
        problem = ""
        if isinstance(found, OSError):
            problem = f"Could not find base path {model.base_path} for servable {model.name}: {found.strerror}"
        elif not found:
            problem = f"No versions of servable {model.name} found under base path {model.base_path}"
        else:
            missing = [number for number in model.model_version_policy.specific.versions if number not in found]
            if missing:
                problem = (
                    f"Version {missing[0]} of servable {model.name}, which was requested to be served as a 'specific' "
                    f"version in the servable's config, was not found in the file system"
                )
        if problem and self._said.get(model.name) != problem:
            log.warning("%s", problem)
        self._said[model.name] = problem
