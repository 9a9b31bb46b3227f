"""Unequal shares of the rows in ``context.fit(balance=True)``: Keras's losses, and the weights of its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import keras
from tensorflow.python.framework.config import is_op_determinism_enabled

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.training import HOROVOD
from airflow_hops.ml.training.balance import Balance, refuse_deterministic
from airflow_hops.ml.training.keras.exchange import StepWeights
from airflow_hops.ml.training.keras.optimizer import exchange_seconds, weigh_ranks

if TYPE_CHECKING:
    from airflow_hops.ml.training.session import Session


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
    refuse_deterministic(options.deterministic or is_op_determinism_enabled())


class KerasBalance(Balance):
    """Divides the rows of a split among the ranks by their speeds, and weighs their gradients.

    Args:
        session: The training on this rank.
        model: The compiled model.
        split: The split.
        batch_size: Rows of a step over all ranks.
        columns: Features to read; None for all.

    Raises:
        BadInput: the optimizer does not average the gradients of every step, or a loss is not a mean over rows.
    """

    def __init__(
        self, session: Session, model: Any, split: str, batch_size: int, columns: Sequence[str] | None
    ) -> None:
        target = session.source.target
        _check_losses(model, has_weights=target is not None and target.weight is not None)
        self._model, self._step_weights = model, StepWeights()
        weigh_ranks(model, self._step_weights)
        super().__init__(session, split, batch_size, columns)

    def begin(self, first_batch: int) -> bool:
        """Divides the rows as the position says, for an epoch from a batch on; returns whether the share is another."""
        is_another = super().begin(first_batch)
        self._step_weights.begin(self.weights, 0)
        return is_another

    def exchange_seconds(self) -> float:
        """Returns the seconds so far in which this rank exchanged gradients, including the wait for others."""
        return exchange_seconds(self._model.optimizer)

    def row_seconds(self) -> float:
        """Returns the seconds of a row in this epoch, without the exchange; 0 after a single execution.

        Raises:
            BadInput: the model has not exchanged gradients once in each step.
        """
        if self._step_weights.steps != self.steps_done:
            raise BadInput(
                f"balance is True, but {self._step_weights.steps} exchanges of gradients in {self.steps_done} steps "
                "were counted, so their weights are wrong; apply gradients once in each step, or set balance=False"
            )
        return super().row_seconds()


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
