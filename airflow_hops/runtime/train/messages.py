"""What is done with what the ranks of a training say: progress for people, metrics for MLflow, checkpoints kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from airflow_hops.contract.protocol import format_record
from airflow_hops.runtime.step.context import StepContext
from airflow_hops.runtime.tracking import TrainingRun
from airflow_hops.runtime.train.checkpoint_state import CheckpointState


class Listener:
    """Takes the messages of a gang's ranks.

    What may take long threads do, each in order: one copies checkpoints to the store, another speaks to MLflow, so
    that neither who watches the ranks nor a checkpoint waits for a tracking server. Their errors are raised by the
    next call.

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
        self._checkpoint_tasks, self._tracking_tasks = _Worker("checkpoints"), _Worker("tracking")

    def __call__(self, rank: int, message: Mapping[str, Any]) -> None:
        """Takes a message of a rank."""
        self._raise_error()
        kind = message["type"]
        if kind == "started" and rank == 0:
            self._tracking_tasks.do(self._begin)
        elif kind == "checkpoint":
            self._checkpoint_tasks.do(partial(self._publish, self._checkpoints / message["name"]))
        elif kind == "progress":
            self._context.progress(message["fraction"], message["text"], message["metrics"])
            self._tracking_tasks.do(partial(self._tracking.log_metrics, message["metrics"], message["epoch"]))
        elif kind == "report":
            figures = " ".join(f"{name}={value:.4g}" for name, value in message["metrics"].items())
            print(format_record(f"step {message['step']} {figures}", metrics=message["metrics"]), flush=True)
            self._tracking_tasks.do(partial(self._tracking.log_metrics, message["metrics"], message["step"]))

    def finish(self) -> None:
        """Waits until all is done.

        Raises:
            HopsError: a checkpoint could not be written.
        """
        self._checkpoint_tasks.finish()
        self._tracking_tasks.finish()
        self._raise_error()

    def _raise_error(self) -> None:
        self._checkpoint_tasks.raise_error()
        self._tracking_tasks.raise_error()

    def _publish(self, checkpoint: Path) -> None:
        try:
            self._state.publish(checkpoint)
        except FileNotFoundError:
            if checkpoint.exists():
                raise
            # The ranks are faster than the store, and keep only their last few: one of those comes next.


class _Worker:
    """A thread that does what it is given, in order; it begins with the first task: by then all ranks are forked."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def do(self, task: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._tasks.put(task)

    def finish(self) -> None:
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join()
            self._thread = None

    def raise_error(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except BaseException as error:
                self._error = self._error or error
