"""What is done with what the ranks of a training say: progress for people, metrics for MLflow, checkpoints kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from airflow_hops.protocol import format_record
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.tracking import TrainingRun
from airflow_hops.runtime.train.checkpoint_state import CheckpointState


class Listener:
    """Takes the messages of a gang's ranks.

    What may take long (a checkpoint to a store, MLflow) a thread does, in order: who watches the ranks must not wait.
    An error of the thread is raised by the next call.

    Args:
        context: The step's.
        state: Where checkpoints outlive the try.
        checkpoints: Folder that rank 0 writes them to.
        tracking: The MLflow run.
        begin: Begins that run; called once ranks have started, as they are forked from a process that has done little.
    """

    def __init__(
        self,
        context: StepContext,
        state: CheckpointState,
        checkpoints: Path,
        tracking: TrainingRun,
        begin: Callable[[], None],
    ) -> None:
        self._context, self._state, self._checkpoints = context, state, checkpoints
        self._tracking, self._begin = tracking, begin
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def __call__(self, rank: int, message: Mapping[str, Any]) -> None:
        """Takes a message of a rank."""
        self._raise_error()
        kind = message["type"]
        if kind == "started" and rank == 0:
            self._do(self._begin)
        elif kind == "checkpoint":
            self._do(partial(self._publish, self._checkpoints / message["name"]))
        elif kind == "progress":
            self._context.progress(message["fraction"], message["text"], message["metrics"])
            self._do(partial(self._tracking.log_metrics, message["metrics"], message["epoch"]))
        elif kind == "report":
            figures = " ".join(f"{name}={value:.4g}" for name, value in message["metrics"].items())
            print(format_record(f"step {message['step']} {figures}", metrics=message["metrics"]), flush=True)
            self._do(partial(self._tracking.log_metrics, message["metrics"], message["step"]))

    def finish(self) -> None:
        """Waits until all is done.

        Raises:
            HopsError: a checkpoint could not be written.
        """
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join()
            self._thread = None
        self._raise_error()

    def _do(self, task: Callable[[], None]) -> None:
        # The thread begins with the first message: by then all ranks have been forked.
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="messages", daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except BaseException as error:
                self._error = self._error or error

    def _raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _publish(self, checkpoint: Path) -> None:
        try:
            self._state.publish(checkpoint)
        except FileNotFoundError:
            if checkpoint.exists():
                raise
            # The ranks are faster than the store, and keep only their last few: one of those comes next.
