"""Thread for slow work in order: calls of a tracking server, copies of checkpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait


class OrderedTasks:
    """Thread that runs tasks in order; it starts with the first task, when all ranks are already forked."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._begun: deque[Future[None]] = deque()

    def do(self, task: Callable[[], None]) -> None:
        """Queues a task."""
        self._begun.append(self._pool.submit(task))

    def finish(self) -> None:
        """Waits until all tasks are done."""
        wait(self._begun)

    def raise_error(self) -> None:
        """Raises the error of a task that has failed since the last call."""
        while self._begun and self._begun[0].done():
            self._begun.popleft().result()
