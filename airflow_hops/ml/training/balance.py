"""Unequal shares of the rows for ranks of different speeds: ``context.fit(balance=True)``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from tensorflow.python.framework.config import is_op_determinism_enabled

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.training import HOROVOD
from airflow_hops.ml.training.keras import exchange_seconds
from airflow_hops.ml.training.keras.exchange import StepWeights
from airflow_hops.ml.training.keras.optimizer import weigh_ranks

if TYPE_CHECKING:
    from airflow_hops.ml.training.session import Session

# An epoch has the same steps, of as many rows over all ranks, whatever the shares: a rank with fewer rows has them in
# each step. A step's gradient is the mean over all its rows, so a rank's own mean weighs as many times the ranks as the
# part of the step's rows that it has.
# After each epoch the ranks gather the seconds that a row took each, without the exchange, in which they wait for each
# other. All decide the same from these. A rank's time also has a part for each step, not each row, so the shares that
# make ranks equally fast are reached over some epochs.

TOLERATED = 1.1
"""Times of an epoch, of the slowest rank by the fastest one, below which shares are left as they are."""


def check_balance(session: Session, balance: bool) -> None:
    """Checks that a call of ``fit`` can have balanced shares, if it asks for them.

    Raises:
        BadInput: it cannot.
    """
    options, position = session.options, session.state.position
    if not isinstance(balance, bool):
        raise BadInput(f"balance is {balance!r}, expected True or False")
    if not balance:
        if position.batch and position.shares and position.shares[-1][0] == position.fit == session.fits:
            raise BadInput(
                f"balance is False, but the checkpoint {position} is of an epoch with unequal shares of the rows; set "
                "balance=True, or delete the checkpoint to start again"
            )
        return
    if options.strategy != HOROVOD:
        raise BadInput(
            f"balance is True, but the strategy is {options.strategy!r}; expected Horovod's ranks, or balance=False"
        )
    if options.deterministic or is_op_determinism_enabled():
        raise BadInput(
            "balance is True and deterministic is True, but shares by measured speeds, and so the weights, differ from "
            "run to run; set one of them to False"
        )


class Balance:
    """Divides the rows of a split among the ranks by their speeds, and weighs their gradients.

    Args:
        session: The training on this rank.
        model: The compiled model.
        split: The split.
        batch_size: Rows of a step over all ranks.
        columns: Features to read; None for all.

    Attributes:
        reader: Reader of this rank's rows.

    Raises:
        BadInput: the optimizer does not average the gradients of every step, or a loss is not a mean over rows.
    """

    def __init__(
        self, session: Session, model: Any, split: str, batch_size: int, columns: Sequence[str] | None
    ) -> None:
        target = session.source.target
        _check_losses(model, has_weights=target is not None and target.weight is not None)
        self._session, self._model, self._split, self._batch_size = session, model, split, batch_size
        self._weights = StepWeights()
        weigh_ranks(model, self._weights)
        self.reader = session.data.open(split, columns)

    def begin(self, first_batch: int) -> bool:
        """Divides the rows as the position says, for an epoch from a batch on; returns whether the share is another."""
        session, before = self._session, self.reader.share
        rest = session.data.rest(first_batch)
        self.reader.divide(session.state.position.rows_by_rank(session.rank.size))
        session.data.rows[self._split] = self.reader.rows
        self._rows, self._all_rows = self.reader.step_rows(self._batch_size, rest)
        self._done_before = rest.steps if rest else 0
        self._measured_from: tuple[int, float, float] | None = None
        self._weights.begin(self._rows * session.rank.size / self._all_rows, first_batch - self._done_before)
        return self.reader.share != before

    def weight(self) -> float:
        """Returns this rank's part of the epoch's rows, as a multiple of an equal part."""
        return float(self._rows.sum() * self._session.rank.size / self._all_rows.sum())

    def note(self, steps_done: int) -> None:
        """Notes the time after an execution; the first one of an epoch, which may trace the model, is not measured."""
        self._last = (steps_done, time.monotonic())
        if self._measured_from is None:
            self._measured_from = (*self._last, exchange_seconds(self._model.optimizer))

    def row_seconds(self) -> float:
        """Returns the seconds of a row in this epoch, without the exchange; 0 after a single execution.

        Raises:
            BadInput: the model has not exchanged gradients once in each step.
        """
        assert self._measured_from is not None
        (first, began, exchanged), (last, ended) = self._measured_from, self._last
        steps = last - self._session.first_batch
        if self._weights.steps != steps:
            raise BadInput(
                f"balance is True, but {self._weights.steps} exchanges of gradients in {steps} steps were counted, so "
                "their weights are wrong; apply gradients once in each step, or set balance=False"
            )
        seconds = ended - began - (exchange_seconds(self._model.optimizer) - exchanged)
        rows = self._rows[first - self._done_before : last - self._done_before].sum()
        return max(seconds, 0.0) / rows if rows else 0.0

    def decide(self, row_seconds: Sequence[float]) -> None:
        """Sets the shares of the epoch at the position, from the ranks' :meth:`row_seconds`; the same on all ranks."""
        position, share = self._session.state.position, self.reader.share
        if min(row_seconds) <= 0:
            self._say(
                f"balance=True has not measured epoch {position.epoch}, as that takes two executions of the training "
                "step or more; shares of the rows stay as they are"
            )
            return
        new = divide_rows(share.by_rank, row_seconds, self.reader.steps(self._batch_size))
        if new == share.by_rank:
            return
        self._session.state.move(shares=(*position.shares, (position.fit, position.epoch, new)))
        slow, fast = int(np.argmax(row_seconds)), int(np.argmin(row_seconds))
        self._say(
            f"from epoch {position.epoch + 1} on, rank {slow} takes {new[slow] / share.total_rows:.0%} of the rows (it "
            f"has {row_seconds[fast] / row_seconds[slow]:.2f} of rank {fast}'s speed), and rank {fast} "
            f"{new[fast] / share.total_rows:.0%}"
        )

    def _say(self, text: str) -> None:
        if self._session.rank.number == 0:
            self._session.rank.channel.send("shares", text=text)


def divide_rows(by_rank: Sequence[int], row_seconds: Sequence[float], steps: int) -> tuple[int, ...]:
    """Returns new rows of each rank, in proportion to speeds, but at least one in each step.

    Args:
        by_rank: Rows of each rank in the measured epoch; returned if ranks took about as long as each other.
        row_seconds: Seconds of a row on each rank.
        steps: Steps of an epoch.
    """
    rows, seconds = sum(by_rank), np.array(row_seconds)
    times = np.array(by_rank) * seconds
    if times.max() < TOLERATED * times.min():
        return tuple(by_rank)
    more = np.maximum(rows / seconds / (1 / seconds).sum() - steps, 0)
    ends = np.rint(np.cumsum(more) * (rows - steps * len(more)) / max(more.sum(), 1e-9)).astype(int)
    return tuple((steps + np.diff(ends, prepend=0)).tolist())


def _check_losses(model: Any, *, has_weights: bool) -> None:
    means = ("sum_over_batch_size", "mean", *(() if has_weights else ("mean_with_sample_weight",)))
    for loss in keras.tree.flatten(model.loss):
        reduction = getattr(loss, "reduction", "mean")
        if reduction not in means:
            raise BadInput(
                f"balance is True, but the loss {type(loss).__name__} has reduction={reduction!r}, which is not the "
                "mean over a batch's rows, so ranks with different numbers of rows cannot be averaged; set "
                "reduction='sum_over_batch_size'"
            )
