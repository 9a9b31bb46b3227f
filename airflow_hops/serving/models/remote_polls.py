"""Lists base paths in stores in background threads, so that a slow or unreachable store delays only its own models."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from airflow_hops.serving.models.model_cache import ModelCache
from airflow_hops.serving.models.remote_storage import RemoteBasePath, RemoteVersion

_THREADS = 8
# Callers do not wait for polls that take longer than this.
_SLOW_S = 10.0
# A poll that takes this long has failed, and the next may begin beside it.
_LONGEST_S = 30.0

OnLook = Callable[[str, "list[RemoteVersion] | Exception"], None]


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
        """Prevents further polls."""
        self._stopped = True
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

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
