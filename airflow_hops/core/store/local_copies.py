"""Local copies of a remote store's artifacts, by fingerprint; the least recently used are removed first.

A copy is in use while a process that got it, or a fork, lives: the process holds a lock on the folder, which its end
releases. Damaged copies are fetched again.
"""

# The life of a copy; folders with a leading dot are not copies:
# 1. A process downloads into a hidden folder, which it locks exclusively, and compares all checksums.
# 2. It renames the folder to the fingerprint. If another process was faster, the rename fails, and its own is removed.
# 3. A reader takes a shared lock, and then checks that the locked folder still has this name, since it may have been
#    removed between opening and locking. The descriptor stays open until the process and its forks have ended.
# 4. Removal needs the exclusive lock, which fails while a reader lives. The folder is renamed before its files are
#    removed, so a reader that opens the name finds no copy. ``.lock`` lets one process at a time make room.
# A kill in 1 or 4 leaves a hidden folder without a lock; the next process that makes room removes it.

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import uuid
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path

from airflow_hops.core.artifacts.artifact import MANIFEST_NAME, Manifest
from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.files import lock_folder, locked
from airflow_hops.core.store.files import StoreFiles
from airflow_hops.core.store.integrity import additions, damaged, damages_in, paths_in
from airflow_hops.core.store.private_folders import cache_folder, private_folder

BYTES_VARIABLE = "HOPS_LOCAL_CACHE_BYTES"
"""Environment variable with the maximum size in bytes of all copies."""
_DEFAULT_BYTES = 50 << 30

log = logging.getLogger(__name__)

_in_use: dict[Path, int] = {}
"""Descriptors that hold this process's locks, by folder."""
_in_use_lock = threading.Lock()


class LocalCopies:
    """The copies in a folder, shared by this user's processes.

    Args:
        files: File operations of the store.
        folder: Folder of the copies; None for ``artifacts`` in this user's private folder.
    """

    def __init__(self, files: StoreFiles, folder: Path | None = None) -> None:
        self._files, self._given = files, folder

    @property
    def folder(self) -> Path:
        """Returns the folder of the copies. Raises BadInput if other users can write to it."""
        return private_folder(self._given or cache_folder() / "artifacts")

    def fetch(self, uri: str, manifest: Manifest, name: str) -> Path:
        """Returns a local folder with the files in a manifest, which is in use until this process ends.

        Copies with other files of the artifact must have other names.

        Raises:
            BadInput: the artifact is larger than the limit for all copies.
            DamagedArtifact: a file in the store is missing or differs from the manifest.
        """
        target = self.folder / name
        while True:
            if _use(target):
                added = additions(manifest, uri, paths_in(target, manifest))
                damage = next(chain(added, damages_in(target, manifest, uri)), None)
                if damage is None:
                    with contextlib.suppress(OSError):
                        os.utime(target)  # determines the least recently used copy
                    return target
                log.warning("the copy %s is fetched again: %s", target, damage)
                # Moves the copy away; processes that use it keep their files.
                with self._locked(), contextlib.suppress(FileNotFoundError):
                    with _in_use_lock:
                        held = _in_use.pop(target)
                    try:
                        if _is_at(held, target):
                            aside = target.rename(target.with_name(f".{target.name}.{uuid.uuid4().hex}"))
                            _remove_unused(aside)
                    finally:
                        os.close(held)
            self._make_room(sum(entry.size_bytes for entry in manifest.files), uri)
            self._download(uri, manifest, target)

    def _download(self, uri: str, manifest: Manifest, target: Path) -> None:
        staging = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        staging.mkdir(mode=0o700)
        lock = lock_folder(staging)
        try:
            for entry in manifest.files:
                path = staging / entry.path
                path.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):  # reported below
                    self._files.fetch(f"{uri}/{entry.path}", path)
            (staging / MANIFEST_NAME).write_text(manifest.to_json())
            for damage in damages_in(staging, manifest, uri):
                raise damaged(damage, manifest.producer, retryable=True)
            with contextlib.suppress(OSError):  # another process finished the same download first
                staging.rename(target)
        finally:
            os.close(lock)
            shutil.rmtree(staging, ignore_errors=True)

    def _make_room(self, size_bytes: int, uri: str) -> None:
        text = os.environ.get(BYTES_VARIABLE) or str(_DEFAULT_BYTES)
        if not text.isdecimal():
            raise BadInput(f"environment variable {BYTES_VARIABLE} is {text!r}; expected a number of bytes")
        most = int(text)
        if size_bytes > most:
            raise BadInput(
                f"{uri} has {size_bytes} bytes, more than the {most} that copies of artifacts may take in "
                f"{self.folder}; set the environment variable {BYTES_VARIABLE} to more"
            )
        with self._locked():
            results = []
            for path in self.folder.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if path.is_dir() and not (path.name.startswith(".") and _remove_unused(path)):
                        results.append((path.stat().st_mtime_ns, _size(path), path))
            excess = sum(size for _, size, _ in results) + size_bytes - most
            for _, size, path in sorted(results):
                if excess <= 0:
                    return
                if _remove_unused(path):
                    log.info("removed %s: copies of artifacts may take %d bytes (%s)", path, most, BYTES_VARIABLE)
                    excess -= size
        if excess > 0:
            log.warning(
                "the copies of artifacts in %s that are in use take %d bytes more than the %d of %s",
                *(self.folder, excess, most, BYTES_VARIABLE),
            )

    def _locked(self) -> AbstractContextManager[None]:
        """Lets one process at a time remove copies."""
        return locked(self.folder / ".lock")


def _use(folder: Path) -> bool:
    """Locks a copy until this process ends; returns False if there is none."""
    try:
        descriptor = lock_folder(folder, shared=True)
    except FileNotFoundError:
        return False
    if not _is_at(descriptor, folder):  # it was removed in the meantime
        os.close(descriptor)
        return False
    with _in_use_lock:
        held = _in_use.pop(folder, None)
        _in_use[folder] = descriptor
    if held is not None:
        os.close(held)
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    return False


def _remove_unused(folder: Path) -> bool:
    """Removes a copy that no process uses; returns whether it did."""
    try:
        descriptor = lock_folder(folder)
    except OSError:
        return False
    try:
        # Renamed at once, so that a process that waits for the lock finds no copy.
        aside = folder.rename(folder.with_name(f".removed.{uuid.uuid4().hex}"))
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        os.close(descriptor)
    return True


def _size(folder: Path) -> int:
    size = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size
    return size
