"""Where captured files go: a folder of this machine, or any store that fsspec opens.

A file is complete when it appears. Its name begins with the time at which it does, later than every name in the folder
before it, so that a reader who remembers the last name it has seen misses nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

_TIME_FORMAT = "%Y%m%dT%H%M%S.%fZ"
_NAME = re.compile(r"(\d{8}T\d{6}\.\d{6}Z)-.*\.(?:parquet|tfrecord)")
_STALE_TEMPORARY_S = 3600
# Stores in which an object appears whole once it is written; elsewhere a file is renamed into place.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "memory"}


class CapturedFiles(ABC):
    """Files below a base path; names of folders are relative to it."""

    def __init__(self) -> None:
        self._last_name_at: dict[str, datetime] = {}

    @abstractmethod
    def publish(self, folder: str, tail: str, content: bytes) -> str:
        """Makes a file appear.

        Args:
            folder: Its folder, made where it is missing.
            tail: Its name behind the time, with the ending.
            content: All of it.

        Returns:
            Its name.
        """

    @abstractmethod
    def sizes(self, folder: str) -> dict[str, int]:
        """Returns the size of each captured file of a folder by name; empty where there is no folder."""

    @abstractmethod
    def folders(self) -> list[str]:
        """Returns the folders of models."""

    @abstractmethod
    def read(self, folder: str, name: str) -> bytes:
        """Returns a file's content."""

    @abstractmethod
    def remove(self, folder: str, name: str) -> None:
        """Removes a file; one that is gone is fine."""

    def _next_name(self, folder: str, names: Iterable[str], tail: str) -> str:
        newest = max((at for at in map(time_of, names) if at is not None), default=None)
        last = max(filter(None, (newest, self._last_name_at.get(folder))), default=None)
        now = datetime.now(UTC)
        at = now if last is None else max(now, last + timedelta(microseconds=1))
        self._last_name_at[folder] = at
        return f"{at.strftime(_TIME_FORMAT)}-{tail}"


class LocalFiles(CapturedFiles):
    """Files of this machine: synced, and renamed into place under a lock that gives names their order.

    Args:
        base_path: The base path.
    """

    def __init__(self, base_path: str) -> None:
        super().__init__()
        self._base = Path(base_path)

    def publish(self, folder: str, tail: str, content: bytes) -> str:
        """Makes a file appear."""
        place = self._base / folder
        if folder not in self._last_name_at:
            place.mkdir(parents=True, exist_ok=True)
            _remove_stale_temporaries(place)
        temporary = place / f".{tail}.{os.getpid()}.tmp"
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            with self._exclusive(), self._synced(place):
                name = self._next_name(folder, (path.name for path in place.iterdir()), tail)
                temporary.rename(place / name)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        return name

    def sizes(self, folder: str) -> dict[str, int]:
        """Returns the size of each captured file of a folder by name."""
        found = {}
        try:
            with os.scandir(self._base / folder) as entries:
                for entry in entries:
                    if time_of(entry.name) is not None:
                        with contextlib.suppress(FileNotFoundError):
                            found[entry.name] = entry.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            pass
        return found

    def folders(self) -> list[str]:
        """Returns the folders of models."""
        with os.scandir(self._base) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))

    def read(self, folder: str, name: str) -> bytes:
        """Returns a file's content."""
        return (self._base / folder / name).read_bytes()

    def remove(self, folder: str, name: str) -> None:
        """Removes a file."""
        (self._base / folder / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Holds the base path: of two writers, the later name must not appear first."""
        descriptor = os.open(self._base, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _synced(self, place: Path) -> Iterator[None]:
        descriptor = os.open(place, os.O_RDONLY)
        try:
            yield
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class RemoteFiles(CapturedFiles):
    """Files of a store that fsspec opens; its options come from the environment, as the store's library reads them.

    Args:
        base_path: URL of the base path.

    Raises:
        ImportError: The protocol's library is not installed.
        ValueError: The protocol is not known.
    """

    def __init__(self, base_path: str) -> None:
        super().__init__()
        import fsspec

        self._fs, root = fsspec.url_to_fs(base_path)
        self._root = root.rstrip("/")
        protocols = {self._fs.protocol} if isinstance(self._fs.protocol, str) else set(self._fs.protocol)
        self._whole = bool(protocols & _OBJECT_STORES)

    def publish(self, folder: str, tail: str, content: bytes) -> str:
        """Makes a file appear."""
        place = f"{self._root}/{folder}"
        # Names are looked for once: this process is the only one that adds any.
        known = self.sizes(folder) if folder not in self._last_name_at else ()
        name = self._next_name(folder, known, tail)
        if self._whole:
            self._fs.pipe_file(f"{place}/{name}", content)
            return name
        self._fs.makedirs(place, exist_ok=True)
        temporary = f"{place}/.{tail}.tmp"
        self._fs.pipe_file(temporary, content)
        self._fs.mv(temporary, f"{place}/{name}")
        return name

    def sizes(self, folder: str) -> dict[str, int]:
        """Returns the size of each captured file of a folder by name."""
        listed = self._list(f"{self._root}/{folder}")
        named = {entry["name"].rsplit("/", 1)[-1]: int(entry["size"] or 0) for entry in listed}
        return {name: size for name, size in named.items() if time_of(name) is not None}

    def folders(self) -> list[str]:
        """Returns the folders of models."""
        listed = self._list(self._root)
        names = [e["name"].rstrip("/").rsplit("/", 1)[-1] for e in listed if e["type"] == "directory"]
        return sorted(name for name in names if not name.startswith("."))

    def read(self, folder: str, name: str) -> bytes:
        """Returns a file's content."""
        content: bytes = self._fs.cat_file(f"{self._root}/{folder}/{name}")
        return content

    def remove(self, folder: str, name: str) -> None:
        """Removes a file."""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(f"{self._root}/{folder}/{name}")

    def _list(self, path: str) -> list[dict[str, Any]]:
        self._fs.invalidate_cache()
        try:
            listed: list[dict[str, Any]] = self._fs.ls(path, detail=True)
        except FileNotFoundError:
            return []
        return listed


def open_files(base_path: str) -> CapturedFiles:
    """Opens a base path: a folder or an fsspec URL."""
    return RemoteFiles(base_path) if "://" in base_path else LocalFiles(base_path)


def time_of(name: str) -> datetime | None:
    """Returns the time in a captured file's name; None for the name of anything else."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    try:
        return datetime.strptime(match[1], _TIME_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None


def _remove_stale_temporaries(folder: Path) -> None:
    for path in folder.glob(".*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > _STALE_TEMPORARY_S:
                path.unlink()
