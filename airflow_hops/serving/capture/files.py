"""Destinations of captured files: a local folder, or any store that fsspec opens.

Files are complete when they appear. A name begins with the time at which the file appears, and is later than all
names already in the folder, so a reader that remembers the last name it has read does not miss a file.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow_hops.core.capture_layout import name_time, time_of
from airflow_hops.core.processes.files import locked, make_private, sync
from airflow_hops.core.processes.remote_files import RemoteFiles

# Order of publishing a local file: write a hidden temporary file, fsync it, take the lock of the base folder, choose a
# name later than all names in the folder, rename, fsync the folder. The lock makes names appear in order, also with
# several writers, so that a reader can use the last name that it has read as its cursor.
# A kill leaves at most a hidden temporary file, which is removed after an hour by the next writer of the folder.
_STALE_TEMPORARY_S = 3600


def _next_name(last: dict[str, datetime], folder: str, names: Iterable[str], tail: str) -> str:
    """Returns a name later than all in the folder, and than the last one there, whose time it replaces."""
    times = [*filter(None, map(time_of, names)), *filter(None, [last.get(folder)])]
    last[folder] = max([datetime.now(UTC), *(time + timedelta(microseconds=1) for time in times)])
    return f"{name_time(last[folder])}-{tail}"


class LocalCaptureFiles:
    """Local files: synced, and renamed into place under a lock that keeps names in order."""

    def __init__(self, base_path: str) -> None:
        self._base = Path(base_path)
        self._last: dict[str, datetime] = {}

    def publish(self, folder: str, tail: str, content: bytes) -> str:
        """Makes a complete file appear, and returns its name.

        Args:
            folder: Folder of the file, relative to the base path; created if it is missing.
            tail: File name without the time, but with the suffix.
            content: Content of the file.
        """
        place = self._base / folder
        if folder not in self._last:
            make_private(self._base)
            place.mkdir(parents=True, exist_ok=True)
            _remove_stale_temporaries(place)
        temporary = place / f".{tail}.{secrets.token_hex(6)}.tmp"
        try:
            with temporary.open("xb") as file:  # others may write to the folder, too, and plant a link
                file.write(content)
            sync(temporary)
            with locked(self._base):  # names must appear in order, even with two writers
                name = _next_name(self._last, folder, (path.name for path in place.iterdir()), tail)
                temporary.rename(place / name)
                sync(place)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        return name

    def sizes(self, folder: str) -> dict[str, int]:
        """Returns the size of each captured file of a folder by name; empty if the folder does not exist."""
        results = {}
        try:
            with os.scandir(self._base / folder) as entries:
                for entry in entries:
                    if time_of(entry.name) is not None:
                        with contextlib.suppress(FileNotFoundError):
                            results[entry.name] = entry.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            pass
        return results

    def remove(self, folder: str, name: str) -> None:
        """Removes a captured file."""
        (self._base / folder / name).unlink(missing_ok=True)


class StoredFiles:
    """Files of a store that fsspec opens; without options, the store's library reads them from the environment.

    Raises ImportError if the protocol's library is not installed, and ValueError if the protocol is unknown.
    """

    def __init__(self, base_path: str, options: Mapping[str, object] | None = None) -> None:
        self._remote = RemoteFiles(base_path, options or {})
        self._last: dict[str, datetime] = {}

    def publish(self, folder: str, tail: str, content: bytes) -> str:
        """Makes a file appear."""
        # Listed only once, as no other process adds files.
        name = _next_name(self._last, folder, self.sizes(folder) if folder not in self._last else (), tail)
        self._remote.write(self._address(folder, name), content, staging=f".{tail}.tmp")
        return name

    def sizes(self, folder: str) -> dict[str, int]:
        """Returns the size of each captured file of a folder by name."""
        listed = self._remote.entries(self._address(folder))
        named = {entry["name"].rsplit("/", 1)[-1]: int(entry["size"] or 0) for entry in listed}
        return {name: size for name, size in named.items() if time_of(name) is not None}

    def remove(self, folder: str, name: str) -> None:
        """Removes a captured file."""
        self._remote.remove(self._address(folder, name))

    def _address(self, *names: str) -> str:
        return "/".join([self._remote.root, *names])


CapturedFiles = LocalCaptureFiles | StoredFiles
"""Files below a base path; folder names are relative to it."""


def open_files(base_path: str, options: Mapping[str, object] | None = None) -> CapturedFiles:
    """Opens a base path, which is a folder or an fsspec URL; ``options`` are those of fsspec."""
    return StoredFiles(base_path, options) if "://" in base_path else LocalCaptureFiles(base_path)


def _remove_stale_temporaries(folder: Path) -> None:
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _STALE_TEMPORARY_S:
                path.unlink()
