"""Measures the first steps of a training, and ends it then: how ``np="auto"`` compares numbers of ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras

MEASURED_S = 1.0
"""Seconds of steps that a measurement takes at least."""


class Measured(BaseException):
    """Ends a training that has been measured; no user's ``except Exception`` may keep it from ending.

    Args:
        rows_per_second: Rows that all ranks together train on in a second; None where the training was over before.
        most_ranks: More ranks than this would leave some without a row in a step.
    """

    def __init__(self, rows_per_second: float | None, most_ranks: int) -> None:
        super().__init__(f"{rows_per_second} rows a second")
        self.rows_per_second, self.most_ranks = rows_per_second, most_ranks


class Pace(keras.callbacks.Callback):
    """Times steps until a stretch of them has taken :data:`MEASURED_S` on some rank; then all ranks stop together.

    The first execution, which traces the model, does not count. Ends of epochs count as they come.

    Args:
        any_rank: Whether a flag is set on any rank; asked after 2, 4, 8 and so on executions, on every rank.
        step_rows: Rows of a step over all ranks, on average: an epoch's last step has fewer.
        most_ranks: More ranks than this would leave some without a row in a step.
    """

    def __init__(self, any_rank: Callable[[bool], bool], step_rows: float, most_ranks: int) -> None:
        super().__init__()
        self._any_rank, self._step_rows, self._most_ranks = any_rank, step_rows, most_ranks
        self._executions = self._steps = self._in_epoch = 0
        self._began = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Steps are counted from 0 again."""
        self._in_epoch = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts an execution; looks at the clock where their number is a power of two."""
        self._executions += 1
        self._steps += batch + 1 - self._in_epoch
        self._in_epoch = batch + 1
        if self._executions & (self._executions - 1):
            return
        seconds = time.monotonic() - self._began
        if self._executions > 1 and self._any_rank(seconds >= MEASURED_S):
            raise Measured(self._steps * self._step_rows / seconds, self._most_ranks)
        self._steps, self._began = 0, time.monotonic()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """The training was shorter than a measurement."""
        raise Measured(None, self._most_ranks)
