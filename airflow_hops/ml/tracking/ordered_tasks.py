"""Thread for slow work in order: calls of a tracking server, copies of checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class OrderedTasks:
    """Thread that runs tasks in order; it starts with the first task, when all ranks are already forked."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def do(self, task: Callable[[], None]) -> None:
        """Queues a task."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def finish(self) -> None:
        """Waits until all tasks are done."""
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join()
            self._thread = None

    def raise_error(self) -> None:
        """Raises the error of the first task that failed, once."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except BaseException as error:
                self._error = self._error or error
