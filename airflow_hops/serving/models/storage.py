"""Versions of a model under its base path, and those that its policy selects."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from airflow_hops.serving.models.formats import format_of

if TYPE_CHECKING:
    from airflow_hops.serving.models.servable import Servable

log = logging.getLogger(__name__)

# ModelSpec has 64 bits for a version: a folder whose number takes more is none.
_MAX_VERSION = 2**63 - 1

QUIET_S = 1.0
"""A version that was not renamed into place counts as whole once nothing in it has changed for so long."""

Fingerprint = tuple[tuple[str | int | None, ...], ...]
"""Names, sizes and times of a version's files: it changes while they are still being written."""


class StoredVersion(Protocol):
    """One version under a base path."""

    @property
    def number(self) -> int:
        """The version."""
        ...

    @property
    def place(self) -> str:
        """Its folder, or the URL of it."""
        ...

    def has_model(self) -> bool:
        """Whether one of its files makes it a model.

        Raises:
            OSError: It is not there any more.
        """
        ...

    def fingerprint(self) -> Fingerprint:
        """Returns the fingerprint of its files."""
        ...

    def is_quiet(self) -> bool:
        """Whether nobody is writing to it any more; a vocabulary of which half has arrived would load without an error.

        Raises:
            OSError: It is not there any more.
        """
        ...

    def open(self, open_folder: Callable[[Path], Servable]) -> Servable:
        """Opens it.

        Args:
            open_folder: Opens the version that lies in a folder of this machine.

        Raises:
            ServingError: It cannot be had, or does not load.
        """
        ...


@dataclass(frozen=True)
class VersionFolder:
    """One version on disk."""

    number: int
    path: Path

    @property
    def place(self) -> str:
        """Its folder."""
        return str(self.path)

    def has_model(self) -> bool:
        """Whether one of its files makes it a model."""
        return format_of(self.path) is not None

    def fingerprint(self) -> Fingerprint:
        """Returns the fingerprint of its files, as they are now."""
        return tuple(sorted((str(file), status.st_size, status.st_mtime_ns) for file, status in _stats(self.path)))

    def is_quiet(self) -> bool:
        """Whether it was renamed into place, or nothing in it has changed for a second."""
        own = self.path.stat()
        # A rename touches the folder's ctime alone, where a new entry touches both times.
        if own.st_ctime_ns > own.st_mtime_ns:
            return True
        newest_s = max((status.st_ctime for _, status in _stats(self.path)), default=own.st_ctime)
        return not 0 <= time.time() - newest_s < QUIET_S

    def open(self, open_folder: Callable[[Path], Servable]) -> Servable:
        """Opens it where it lies."""
        return open_folder(self.path)


def _stats(folder: Path) -> list[tuple[Path, os.stat_result]]:
    results = []
    for path in folder.rglob("*"):
        # What is gone by now was a temporary file.
        with contextlib.suppress(OSError):
            results.append((path, path.stat()))
    return results


def version_number(name: str) -> int | None:
    """Returns the version that a folder's name stands for, or None."""
    return int(name) if name.isascii() and name.isdigit() and int(name) <= _MAX_VERSION else None


def is_remote(base_path: str) -> bool:
    """Whether a base path lies in a store that fsspec opens, and not on this machine's file system."""
    return "://" in base_path.removeprefix("file://")


def version_folders(base_path: str) -> list[VersionFolder]:
    """Returns the integer-named folders under a base path of this machine.

    Args:
        base_path: The folder, or a ``file://`` URI of it.

    Raises:
        OSError: The base path is missing or cannot be listed.
    """
    entries = sorted(os.scandir(base_path.removeprefix("file://")), key=lambda entry: entry.name)
    numbers = ((version_number(entry.name), Path(entry.path)) for entry in entries)
    return [VersionFolder(number, path) for number, path in numbers if number is not None]


@dataclass(frozen=True)
class FoundVersions:
    """The versions that were found under a base path.

    Attributes:
        ready: Versions that hold a model and are whole.
        growing: Versions that are still being written.
        empty: Versions that hold no model.
    """

    ready: dict[int, StoredVersion]
    growing: tuple[int, ...] = ()
    empty: tuple[int, ...] = ()


def sort_versions(versions: Iterable[StoredVersion], known: Mapping[int, str]) -> FoundVersions:
    """Tells whole versions from others.

    Args:
        versions: What lies under a base path; of two that have one number, the first counts.
        known: Places of the versions that were whole before, by number: whether they are is not asked again.
    """
    ready: dict[int, StoredVersion] = {}
    growing, empty = [], []
    for version in versions:
        number = version.number
        if number in ready:
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
    return FoundVersions(ready, tuple(growing), tuple(empty))


def wanted_versions(model: Any, found: Mapping[int, StoredVersion]) -> dict[int, StoredVersion]:
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
        self._growing_since_s: dict[str, float] = {}

    def check(self, model: Any, found: FoundVersions | Exception) -> None:
        """Logs a missing base path, an empty one, a folder without a model, or a specific version that is not there."""
        problem = ""
        if isinstance(found, Exception) or not found.growing:
            self._growing_since_s.pop(model.name, None)
        if isinstance(found, Exception):
            reason = getattr(found, "strerror", None) or str(found) or type(found).__name__
            problem = f"Could not find base path {model.base_path} for servable {model.name}: {reason}"
        elif found.growing:
            now_s = time.monotonic()
            # One that has just appeared, and may be whole, is not worth a line.
            if now_s - self._growing_since_s.setdefault(model.name, now_s) < 1.5 * QUIET_S:
                return
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
