"""Versions of a model under its base path, and those that its policy selects."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_hops.serving.models.formats import format_of
from airflow_hops.serving.models.stored_version import Fingerprint, StoredVersion

if TYPE_CHECKING:
    from airflow_hops.serving.models.servable import Servable

# When a version is complete cannot be known for certain. A folder that was renamed into place is: a rename changes its
# ctime but not its mtime. Any other counts as complete after one second without a change; the loader compares the
# fingerprint before and after the load, and the load fails and is tried again if it differs. Folders of the same number
# are resolved in the order of their names, so that restarts choose the same.

log = logging.getLogger(__name__)

# ModelSpec has 64 bits for a version.
_MAX_VERSION = 2**63 - 1

QUIET_S = 1.0
"""A version that was not renamed into place counts as complete if its contents were unchanged for this time."""


@dataclass(frozen=True)
class VersionFolder:
    """One version on disk."""

    number: int
    path: Path

    @property
    def place(self) -> str:
        """Folder of the version."""
        return str(self.path)

    def has_model(self) -> bool:
        """Returns whether the files include those of a model."""
        return format_of(self.path) is not None

    def fingerprint(self) -> Fingerprint:
        """Returns the current fingerprint of the files."""
        return tuple(sorted((str(file), status.st_size, status.st_mtime_ns) for file, status in _stats(self.path)))

    def is_quiet(self) -> bool:
        """Returns whether the folder was renamed into place, or its contents have been unchanged for a second.

        A partly copied vocabulary would load without an error. Raises OSError if the folder no longer exists.
        """
        own = self.path.stat()
        # A rename changes only the folder's ctime, a new entry changes mtime, too.
        if own.st_ctime_ns > own.st_mtime_ns:
            return True
        newest_s = max((status.st_ctime for _, status in _stats(self.path)), default=own.st_ctime)
        return not 0 <= time.time() - newest_s < QUIET_S

    def open(self, open_folder: Callable[[Path], Servable]) -> Servable:
        """Opens the folder itself, not a copy."""
        return open_folder(self.path)


def _stats(folder: Path) -> list[tuple[Path, os.stat_result]]:
    results = []
    for path in folder.rglob("*"):
        # Files that have disappeared were temporary.
        with contextlib.suppress(OSError):
            results.append((path, path.stat()))
    return results


def version_number(name: str) -> int | None:
    """Returns the version that a folder's name stands for, or None."""
    return int(name) if name.isascii() and name.isdigit() and int(name) <= _MAX_VERSION else None


def is_remote(base_path: str) -> bool:
    """Returns whether fsspec opens a base path, which is then not in the local file system."""
    return "://" in base_path.removeprefix("file://")


def version_folders(base_path: str) -> list[VersionFolder]:
    """Returns the integer-named folders under a local base path, which may be a ``file://`` URI.

    Raises:
        OSError: The base path is missing or cannot be listed.
    """
    entries = sorted(os.scandir(base_path.removeprefix("file://")), key=lambda entry: entry.name)
    numbers = ((version_number(entry.name), Path(entry.path)) for entry in entries)
    return [VersionFolder(number, path) for number, path in numbers if number is not None]


@dataclass(frozen=True)
class FoundVersions:
    """The versions under a base path.

    Attributes:
        ready: Complete versions with a model.
        growing: Versions that are still being written.
        empty: Complete versions without a model.
        same: Folders of one number, such as ``1`` and ``001``: the one that is used, and an ignored one.
    """

    ready: dict[int, StoredVersion]
    growing: tuple[int, ...] = ()
    empty: tuple[int, ...] = ()
    same: tuple[str, str] | None = None


def sort_versions(versions: Iterable[StoredVersion], known: Mapping[int, str]) -> FoundVersions:
    """Sorts versions into complete ones, incomplete ones, and those without a model.

    Args:
        versions: Versions under a base path; the first of several with the same number counts.
        known: Number to place of the versions that were complete before, which are not checked again.
    """
    ready: dict[int, StoredVersion] = {}
    growing, empty, same = [], [], None
    for version in versions:
        number = version.number
        if number in ready:
            same = (ready[number].place, version.place)
            continue
        try:
            if not (known.get(number) == version.place or version.is_quiet()):
                growing.append(number)
            elif version.has_model():
                ready[number] = version
            else:
                empty.append(number)
        except OSError:
            # Removed since it was listed.
            continue
    return FoundVersions(ready, tuple(growing), tuple(empty), same)


def wanted_versions(model: Any, found: Mapping[int, StoredVersion]) -> dict[int, StoredVersion]:
    """Returns the available versions that the policy of a ``ModelConfig`` selects."""
    policy = model.model_version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice == "all":
        return dict(found)
    if choice == "specific":
        return {number: found[number] for number in policy.specific.versions if number in found}
    newest_first = sorted(found, reverse=True)
    # As in TensorFlow Serving, 0, the default, means 1.
    count = policy.latest.num_versions or 1
    return {number: found[number] for number in newest_first[:count]}


class StorageLog:
    """Logs a problem with a base path once, and again only when it changes."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._growing_since_s: dict[str, float] = {}

    def check(self, model: Any, found: FoundVersions | Exception) -> None:
        """Logs a missing or empty base path, a folder that is not served, or a missing specific version."""
        problem = ""
        if isinstance(found, Exception) or not found.growing:
            self._growing_since_s.pop(model.name, None)
        if isinstance(found, Exception):
            reason = getattr(found, "strerror", None) or str(found) or type(found).__name__
            problem = f"Could not find base path {model.base_path} for servable {model.name}: {reason}"
        elif found.growing:
            now_s = time.monotonic()
            # Do not log versions that have just appeared and may be complete.
            if now_s - self._growing_since_s.setdefault(model.name, now_s) < 1.5 * QUIET_S:
                return
            problem = f"Version {found.growing[0]} of servable {model.name} is still being written; it is loaded after"
        elif found.empty:
            problem = (
                f"Could not find SavedModel .pb or .pbtxt at supplied export directory path: "
                f"{model.base_path}/{found.empty[0]}. Version {found.empty[0]} of servable {model.name} is skipped"
            )
        elif found.same is not None:
            problem = (
                f"Two folders of servable {model.name} are the same version: {found.same[0]}, which is served, and "
                f"{found.same[1]}, which is ignored; remove one of them"
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
