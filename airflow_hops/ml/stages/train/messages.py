"""What is done with what the ranks of a training say: progress for people, metrics for MLflow, checkpoints kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.protocol import format_record
from airflow_hops.ml.stages.train.checkpoint_state import CheckpointState
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.tracking import TrainingRun
from airflow_hops.ml.tracking.ordered_tasks import OrderedTasks


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
        self._checkpoint_tasks, self._tracking_tasks = OrderedTasks("checkpoints"), OrderedTasks("tracking")

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
