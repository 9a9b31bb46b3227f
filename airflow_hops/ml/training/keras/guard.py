"""The guard: stops a training if its loss is not a number, ranks' weights diverge, or rows are missing or repeated."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.ml.training.collectives import hvd
from airflow_hops.ml.training.keras.weights import short_checksum, weights_differ

# Each check is one all-reduce with a row per rank: 1, checksum, epoch, step, end of epoch, rows. Ranks check after the
# same numbers of steps, so that the all-reduce has the same meaning on all; a rank that is elsewhere shows by its
# position, one that has joined by a row of zeros. All ranks see all rows and raise the same error, so no rank waits for
# another that has ended.

GUARD_EVERY_STEPS = 500
"""Steps between two checks. Each takes about as long as one small step, so that the overhead is below 1%."""

_END_OF_EPOCH = -1


class Guard(keras.callbacks.Callback):
    """Checks the loss, the ranks' weights, and the rows that they have seen against those of the split.

    The epoch's mean loss so far is checked after each execution, which takes a microsecond.

    After the first step, after every ``every_steps`` steps and at each epoch's end, a checksum of the trainable weights
    (:func:`airflow_hops.ml.training.keras.weights.short_checksum`) is gathered from all ranks: 48 bytes a rank. With
    ``steps_per_execution`` above 1 a check happens at the end of the execution in which it is due. Every rank sees the
    same values, and therefore raises the same error.

    Args:
        every_steps: Steps between two checks of the weights; 0 for none of weights and rows.
        rows_seen: Returns the number of rows that this rank has read in the current epoch; None to not check rows.
        rows_expected: Number of rows that all ranks together must read in an epoch, or a function that returns it.

    Attributes:
        checks: Number of comparisons made.
        checksums: Checksums of the weights at the end of each epoch, 16 hex digits.
        rows: Number of rows that all ranks together have read in each epoch; None for an epoch that was stopped early.
        seconds: Seconds that the comparisons took, including the wait for other ranks.

    Raises:
        BadInput: ``every_steps`` is not a number of steps. During training: the loss is NaN or infinite, weights
            differ, ranks are at different steps, or rows are missing or were read twice.

    Example:
        >>> import keras, numpy as np
        >>> from airflow_hops import Guard
        >>> model = keras.Sequential([keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> guard = Guard(every_steps=2)
        >>> _ = model.fit(np.ones((8, 2)), np.ones(8), batch_size=2, callbacks=[guard], verbose=0)
        >>> guard.checks
        3
    """

    def __init__(
        self,
        every_steps: int = GUARD_EVERY_STEPS,
        rows_seen: Callable[[], int] | None = None,
        rows_expected: int | Callable[[], int] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(every_steps, bool) or not isinstance(every_steps, int) or every_steps < 0:
            raise InvalidArgument("guard_every_steps", every_steps, ", expected a number of steps, or 0 for no guard")
        self.every_steps = every_steps
        self.checks = 0
        self.checksums: list[str] = []
        self.rows: list[int | None] = []
        self.seconds = 0.0
        self._rows_seen, self._rows_expected = rows_seen, rows_expected
        self._epoch = self._step = self._unchecked = 0

    def on_train_begin(self, logs: dict[str, object] | None = None) -> None:
        """Makes the first check due after the first step."""
        self._unchecked = self.every_steps

    def on_epoch_begin(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        """Stores the epoch."""
        self._epoch, self._step = epoch, 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Checks the loss, and compares the weights if a check is due."""
        loss = float((logs or {}).get("loss", 0.0))
        if not math.isfinite(loss):
            raise BadInput(
                f"the loss is {loss} at step {batch + 1} of epoch {self._epoch + 1}; lower the learning rate, clip "
                "gradients, or look for values that are not numbers in the examples"
            )
        self._unchecked += batch + 1 - self._step
        self._step = batch + 1
        if self.every_steps and self._unchecked >= self.every_steps:
            self._compare(f"after step {self._step} of epoch {self._epoch + 1}")

    def on_epoch_end(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        """Compares the weights, and the number of rows with the expected one."""
        if not self.every_steps:
            return
        checksum, rows = self._compare(f"at the end of epoch {epoch + 1}", end=True)
        self.checksums.append(f"{checksum & 0xFFFFFFFFFFFFFFFF:016x}")
        if min(rows) < 0:
            self.rows.append(None)
            return
        expected = self._rows_expected() if callable(self._rows_expected) else self._rows_expected
        if expected is not None and sum(rows) != expected:
            by_rank = ", ".join(f"rank {rank}: {seen}" for rank, seen in enumerate(rows))
            raise BadInput(
                f"epoch {self._epoch + 1} has given the model {sum(rows)} rows over all ranks ({by_rank}), but the "
                f"split holds {expected}: rows are {'lost' if sum(rows) < expected else 'repeated'}; each rank must "
                "read its own share, whole"
            )
        self.rows.append(sum(rows))

    def _compare(self, when: str, *, end: bool = False) -> tuple[int, list[int]]:
        """Gathers the ranks' figures; returns the checksum and the rows by rank, negative if unknown."""
        self._unchecked = 0
        self.checks += 1
        known = end and self._rows_seen is not None and not self.model.stop_training
        rows = self._rows_seen() if known and self._rows_seen is not None else -1
        began = time.monotonic()
        checksum = short_checksum(self.model.trainable_weights)
        result = _gather([checksum, self._epoch, self._step, _END_OF_EPOCH if end else 0, rows])
        self.seconds += time.monotonic() - began
        ended = np.flatnonzero(result[:, 0] == 0).tolist()
        if ended:
            raise BadInput(
                f"rank {', '.join(map(str, ended))} has ended epoch {self._epoch + 1} before step {self._step}, which "
                "others have done: its batches ran out; each rank must be given equally many an epoch"
            )
        result = result[:, 1:]
        where = {(int(epoch), int(step), int(is_end)) for epoch, step, is_end in result[:, 1:4]}
        if len(where) > 1:
            places = ", ".join(
                f"rank {rank} {'at the end of' if is_end else 'within'} epoch {epoch + 1} after step {step}"
                for rank, (_, epoch, step, is_end, _) in enumerate(result.tolist())
            )
            raise BadInput(
                f"the ranks are at different steps: {places}; each must be given equally many batches an epoch"
            )
        if len(set(result[:, 0].tolist())) > 1:
            hexadecimal = [f"{int(value) & 0xFFFFFFFFFFFFFFFF:016x}" for value in result[:, 0]]
            raise weights_differ(hexadecimal, when, self.model.optimizer)
        return int(result[0, 0]), [int(value) for value in result[:, 4]]


def _gather(figures: list[int]) -> np.ndarray:
    """Returns a 1 and the figures of each rank, int64 of shape ``[ranks, 1 + figures]``.

    It is an all-reduce in which each rank fills its row, because a rank that has joined (in Horovod's terms) still
    takes part in all-reduces; its row is zeros.
    """
    rows = np.zeros((hvd.size(), 1 + len(figures)), np.int64)
    rows[hvd.rank()] = [1, *figures]
    if hvd.size() == 1:
        return rows
    gathered: np.ndarray = hvd.allreduce(tf.constant(rows), op=hvd.Sum, name="hops_guard").numpy()
    return gathered
