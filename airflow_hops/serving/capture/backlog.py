"""Requests that were answered, and are not in the spool yet.

What a request does once, among all else that it does, costs several times what it costs in a loop: the caches hold
something else. So requests whose clients do not ask whether they are captured are spooled together, a moment later.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable

from airflow_hops.serving.capture.record import CapturedCall

log = logging.getLogger(__name__)

LONGEST_S = 0.05
"""How long a request stays in the backlog."""
_MOST_REQUESTS = 2_000
_LARGEST_BYTES = 32 * 2**10


class Backlog:
    """Hands requests on, many at a time, from a thread of its own.

    Args:
        take: Given requests, in order.
    """

    def __init__(self, take: Callable[[Iterable[CapturedCall]], object]) -> None:
        self._take = take
        self._calls: deque[CapturedCall] = deque()
        self._added = threading.Event()
        self._taking = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="capture-backlog", daemon=True)
        self._thread.start()

    def add(self, call: CapturedCall) -> bool:
        """Adds a request; False if it is large or there are too many: its own thread is to spool it."""
        calls = self._calls
        if len(calls) >= _MOST_REQUESTS or len(call.request) + len(call.response) > _LARGEST_BYTES:
            return False
        calls.append(call)
        if not self._added.is_set():
            self._added.set()
        return True

    def empty(self) -> None:
        """Returns once all that were added before are handed on."""
        with self._taking:
            self._take(self._popped())

    def close(self) -> None:
        """Hands the last ones on, and ends the thread; nothing is added any more."""
        self._closing.set()
        self._added.set()
        self._thread.join()
        self.empty()

    def _popped(self) -> Iterable[CapturedCall]:
        for _ in range(len(self._calls)):
            yield self._calls.popleft()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._added.wait()
            self._closing.wait(LONGEST_S)
            self._added.clear()
            try:
                self.empty()
            except Exception:
                log.exception("capture: requests could not be spooled")
