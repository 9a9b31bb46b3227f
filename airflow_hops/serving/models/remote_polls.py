"""Looks at base paths in stores, in threads of their own: a store that is slow or away holds up nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

from airflow_hops.serving.models.model_cache import ModelCache
from airflow_hops.serving.models.remote_storage import RemoteBasePath, RemoteVersion

_THREADS = 8
# A look that takes longer is not waited for,
_SLOW_S = 10.0
# and one that takes this long has failed: another begins, whatever becomes of it.
_LONGEST_S = 30.0

OnLook = Callable[[str, "list[RemoteVersion] | Exception"], None]


class _Looks:
    """The looks at one base path: one at a time."""

    def __init__(self, base_path: RemoteBasePath) -> None:
        self.base_path = base_path
        self.asked = 0
        self.answered = 0
        self.away = False
        self.began_s = 0.0
        self.current: object | None = None


class RemoteLooks:
    """Looks at base paths in stores when it is asked to.

    Its state is touched under the caller's lock alone, which is never held while a store is asked.

    Args:
        changed: That lock; told when a look has ended.
        cache: Where copies of versions go.
        on_look: Called under the lock with a base path and what lies there, or why nobody knows.
    """

    def __init__(self, changed: threading.Condition, cache: ModelCache, on_look: OnLook) -> None:
        self._changed = changed
        self._cache = cache
        self._on_look = on_look
        self._looks: dict[str, _Looks] = {}
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._stopped = False

    def ask(self, base_paths: Collection[str]) -> None:
        """Asks for a look at each of these that begins from now on; what is not among them is forgotten."""
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
        """Whether a look that was asked for has not ended; one at a store that is known to be away does not count."""
        return any(
            looks.answered < looks.asked and not looks.away and time.monotonic() - looks.began_s < _SLOW_S
            for looks in self._looks.values()
        )

    def stop(self) -> None:
        """Begins no more looks."""
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
            # An empty base path is an answer, too.
            looks.away = isinstance(result, Exception) and not isinstance(result, FileNotFoundError)
            self._on_look(path, result)
            if looks.asked > asked:
                self._begin(path, looks)
            self._changed.notify_all()
