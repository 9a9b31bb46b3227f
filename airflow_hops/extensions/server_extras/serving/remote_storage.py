"""Lists versions in stores that fsspec opens, and copies them to this machine.

An object store cannot rename folders. A version therefore counts as complete once two listings in succession are equal,
and a copy counts only if the listing is still the same afterwards.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from airflow_hops.core.processes.remote_files import open_url, without_markers
from airflow_hops.extensions.server_extras.serving.model_cache import ModelCache
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.formats import model_files
from airflow_hops.serving.models.storage import QUIET_S, version_number
from airflow_hops.serving.parts import OnLook

if TYPE_CHECKING:
    from airflow_hops.serving.models.servable import Servable

# Polls of a store: at most one runs per base path. ask() numbers requests; a poll answers those before it began, and is
# followed by another if more were asked for meanwhile. After 30 s it counts as failed and may be replaced; its late
# result is ignored, because `current` has changed.
# A version is loaded in steps: a listing that is unchanged for QUIET_S, a copy in parts, the listing again, the load
# from the copy. If the listing has changed, the copy is discarded. Copies are in a folder that this process locks; what
# a killed process leaves is removed by the next one (.model_cache).


log = logging.getLogger(__name__)

_STREAMS = 8
_PART_BYTES = 2 << 20
# A copy has failed if no part arrives for this long, so an unreachable store does not block a load forever. With
# eight parts in flight, 300 KB/s are still fast enough.
_STALLED_S = 60.0
# Names of an object's checksum, version and time in listings of the various stores.
_STAMPS = (
    *("ETag", "etag", "md5Hash", "generation", "LastModified", "last_modified", "updated", "mtime", "created"),
    "modification_time",
)


class RemoteFile(NamedTuple):
    """A file in a listing.

    Attributes:
        name: Path relative to the listed folder.
        size_bytes: None if the store does not return sizes.
        stamp: Changes when the file is replaced.
    """

    name: str
    size_bytes: int | None
    stamp: str


@dataclass(frozen=True)
class RemoteVersion:
    """One version in a store, as listed by a poll of its base path.

    Attributes:
        number: The version.
        place: URL of its folder.
        files: Its files, sorted.
        quiet: Whether its listing has not changed for a second.
    """

    number: int
    place: str
    files: tuple[RemoteFile, ...]
    quiet: bool
    base_path: RemoteBasePath = field(repr=False, compare=False)

    def has_model(self) -> bool:
        """Returns whether the files include those of a model."""
        return any(file.name in model_files() for file in self.files)

    def fingerprint(self) -> tuple[RemoteFile, ...]:
        """Returns the fingerprint of its files at the last poll."""
        return self.files

    def is_quiet(self) -> bool:
        """Returns whether its listing has not changed for a second."""
        return self.quiet

    def open(self, open_folder: Callable[[Path], Servable]) -> Servable:
        """Opens a copy of the version; the copy is removed if it does not load."""
        copy = self.base_path.copy(self)
        try:
            return open_folder(copy)
        except ServingError as error:
            self.base_path.cache.remove(copy)
            raise ServingError(error.code, error.message.replace(str(copy), self.place)) from error
        except BaseException:
            self.base_path.cache.remove(copy)
            raise


class RemoteBasePath:
    """A base path in a store; the store's library reads its options from the environment."""

    def __init__(self, url: str, cache: ModelCache) -> None:
        self.url = url.rstrip("/")
        self.cache = cache
        self._seen: dict[str, tuple[tuple[RemoteFile, ...], float]] = {}

    def look(self) -> list[RemoteVersion]:
        """Lists the integer-named folders with all of their files.

        Raises:
            FileNotFoundError: The base path is empty.
            Exception: The store cannot be reached or refuses, or its library is not installed.
        """
        began_s = time.monotonic()
        result = list(self._list(self.url))
        if not result:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        listed: dict[str, list[RemoteFile]] = {}
        for file in result:
            folder, _, name = file.name.partition("/")
            if name and version_number(folder) is not None:
                listed.setdefault(folder, []).append(file._replace(name=name))
        now_s, seen, versions = time.monotonic(), {}, []
        for folder, files in sorted(listed.items()):
            content = tuple(sorted(files))
            earlier, since_s = self._seen.get(folder, ((), 0.0))
            seen[folder] = (content, since_s if earlier == content else now_s)
            quiet = began_s - seen[folder][1] >= QUIET_S
            versions.append(RemoteVersion(int(folder), f"{self.url}/{folder}", content, quiet, self))
        self._seen = seen
        return versions

    def copy(self, version: RemoteVersion) -> Path:
        """Copies a version to this machine, several parts in parallel; the caller must remove the folder.

        Raises:
            ServingError: Copying failed, or the version changed meanwhile; the incomplete copy is removed.
        """
        started_s = time.monotonic()
        executor = ThreadPoolExecutor(_STREAMS, "copy")
        folder = None
        try:
            folder = self.cache.new_folder(version.number)
            _wait([executor.submit(copy_part) for copy_part in self._parts(version, folder)])
            (files,) = _wait([executor.submit(lambda: tuple(sorted(self._list(version.place))))])
            if files != version.files:
                raise _changed(version.place)
        except BaseException as error:
            if folder is not None:
                self.cache.remove(folder)
            if isinstance(error, Exception) and not isinstance(error, ServingError):
                raise _copy_error(version.place, error) from error
            raise
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
        size_bytes = sum(file.size_bytes or 0 for file in version.files)
        log.info(
            "%s copied in %.2f s: %d bytes, %d files",
            version.place,
            time.monotonic() - started_s,
            size_bytes,
            len(version.files),
        )
        return folder

    def _parts(self, version: RemoteVersion, folder: Path) -> Iterator[Callable[[], None]]:
        """Creates the files, and yields a function that copies each part."""
        store, root = _open(version.place)
        for file in version.files:
            path = folder / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as made:
                made.truncate(file.size_bytes or 0)
            source = f"{root}/{file.name}"
            if file.size_bytes is None:
                yield functools.partial(_copy_part, store, source, path, 0, None)
            for start in range(0, file.size_bytes or 0, _PART_BYTES):
                end = min(start + _PART_BYTES, file.size_bytes or 0)
                yield functools.partial(_copy_part, store, source, path, start, end)

    def _list(self, url: str) -> Iterator[RemoteFile]:
        store, root = _open(url)
        store.invalidate_cache()
        for entry in _tree(store, root):
            name = entry["name"].removeprefix(f"{root}/")
            # Objects may have any name; skip those that are not paths below the folder.
            if all(part not in ("", ".", "..") for part in name.split("/")):
                size = entry.get("size")
                stamp = " ".join(str(entry[key]) for key in _STAMPS if entry.get(key) is not None)
                yield RemoteFile(name, None if size is None else int(size), stamp)


def _open(url: str) -> tuple[Any, str]:
    """Returns the store and the path in it; fsspec caches the store."""
    store, root = open_url(url)
    return store, root.rstrip("/")


def _tree(store: Any, root: str) -> Iterable[Mapping[str, Any]]:
    """Yields the entries of all files: in one listing if the store supports that, else folder by folder.

    fsspec's ``walk`` does not work here: it skips folders that cannot be listed, so their versions would seem deleted.
    """
    from fsspec.asyn import AsyncFileSystem

    if getattr(type(store), "_find", AsyncFileSystem._find) is not AsyncFileSystem._find:
        yield from without_markers(store.find(root, detail=True).values())
        return
    for entry in without_markers(store.ls(root, detail=True)):
        if entry["type"] == "directory":
            yield from _tree(store, entry["name"].rstrip("/"))
        else:
            yield entry


def _copy_part(store: Any, source: str, path: Path, start: int, end: int | None) -> None:
    content = store.cat_file(source, start=start, end=end)
    if end is not None and len(content) != end - start:
        raise _changed(source)
    with path.open("r+b") as file:
        file.seek(start)
        file.write(content)


def _wait(futures: list[Future[object]]) -> list[object]:
    """Returns the results of all futures; raises the first exception, or TimeoutError if all stall."""
    ended: queue.SimpleQueue[Future[object]] = queue.SimpleQueue()
    for future in futures:
        future.add_done_callback(ended.put)
    for _ in futures:
        try:
            ended.get(timeout=_STALLED_S).result()
        except queue.Empty:
            raise TimeoutError(f"nothing came for {_STALLED_S:g} s") from None
    return [future.result() for future in futures]


def _changed(place: str) -> ServingError:
    return ServingError(grpc.StatusCode.ABORTED, f"{place} changed while it was read")


def _copy_error(place: str, error: Exception) -> ServingError:
    code = grpc.StatusCode.UNAVAILABLE
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
    return ServingError(
        code, f"Could not copy {place} to this machine (--model_cache_path): {type(error).__name__}: {error}"
    )


_THREADS = 8
# Callers do not wait for polls that take longer than this.
_SLOW_S = 10.0
# A poll that takes this long has failed, and the next may begin beside it.
_LONGEST_S = 30.0


class _Looks:
    """Polls of one base path; at most one runs at a time."""

    def __init__(self, base_path: RemoteBasePath) -> None:
        self.base_path = base_path
        self.asked = 0
        self.answered = 0
        self.away = False
        self.began_s = 0.0
        self.current: object | None = None


class RemoteLooks:
    """Polls base paths in stores on request.

    Args:
        changed: The caller's lock, which guards the state, is not held during a poll, and is notified after it.
        cache: Cache for copies of versions.
        on_look: Called under the lock with a base path and its versions, or the exception of the poll.
    """

    def __init__(self, changed: threading.Condition, cache: ModelCache, on_look: OnLook) -> None:
        self._changed = changed
        self._cache = cache
        self._on_look = on_look
        self._looks: dict[str, _Looks] = {}
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._stopped = False

    def ask(self, base_paths: Collection[str]) -> None:
        """Requests a new poll of each base path; base paths that are not listed are dropped."""
        self._looks = {path: looks for path, looks in self._looks.items() if path in base_paths}
        for path in base_paths:
            looks = self._looks.setdefault(path, _Looks(RemoteBasePath(path, self._cache)))
            looks.asked += 1
            if looks.current is not None and time.monotonic() - looks.began_s > _LONGEST_S:
                looks.away, looks.current = True, None
                self._on_look(path, TimeoutError(f"no answer for {_LONGEST_S:g} s"))
            if looks.current is None:
                self._begin(path, looks)

    @property
    def awaited(self) -> bool:
        """Whether a requested poll is still running; polls that are slow, or of an unreachable store, do not count."""
        return any(
            looks.answered < looks.asked and not looks.away and time.monotonic() - looks.began_s < _SLOW_S
            for looks in self._looks.values()
        )

    def stop(self) -> None:
        """Prevents further polls, and removes all copies."""
        self._stopped = True
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        self._cache.close()

    def closed(self, path: str | os.PathLike[str]) -> None:
        """Removes the copy that a closed version was loaded from; does nothing for other folders."""
        self._cache.remove(path)

    def _begin(self, path: str, looks: _Looks) -> None:
        if self._stopped:
            return
        store = "/".join(path.split("/", 3)[:3])
        if store not in self._pools:
            self._pools[store] = ThreadPoolExecutor(_THREADS, "look")
        looks.began_s, looks.current = time.monotonic(), object()
        self._pools[store].submit(self._run, path, looks, looks.current, looks.asked)

    def _run(self, path: str, looks: _Looks, current: object, asked: int) -> None:
        result: list[RemoteVersion] | Exception
        try:
            result = looks.base_path.look()
        except Exception as error:
            result = error
        with self._changed:
            if looks.current is not current or self._looks.get(path) is not looks:
                return
            looks.current = None
            looks.answered = asked
            # FileNotFoundError is the answer of a reachable store.
            looks.away = isinstance(result, Exception) and not isinstance(result, FileNotFoundError)
            self._on_look(path, result)
            if looks.asked > asked:
                self._begin(path, looks)
            self._changed.notify_all()
