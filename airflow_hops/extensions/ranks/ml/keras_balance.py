"""Rows of ``context.fit`` by the ranks' speeds: Keras's losses, and the weights of its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from airflow_hops.core.errors import BadInput
from airflow_hops.core.training.options import HOROVOD
from airflow_hops.extensions.ranks.ml.balance import Balance, refuse_deterministic
from airflow_hops.ml.training.collectives import hvd
from airflow_hops.ml.training.keras.optimizer import accumulation_steps, distributed_optimizer, exchange_seconds
from airflow_hops.ml.training.row_shares import RowShares

if TYPE_CHECKING:
    from airflow_hops.ml.training.session import Session


class BySpeed(Balance, RowShares):
    """Divides the rows of ``context.fit(shares=BySpeed)`` by the ranks' speeds, and weighs their gradients.

    Args:
        session: The training on this rank.
        model: The compiled model.
        split: The split.
        batch_size: Rows of a step over all ranks.
        columns: Features to read; None for all.

    Raises:
        BadInput: the ranks are not Horovod's, or are to be deterministic; the optimizer does not average the gradients
            of every step, or a loss is not a mean over rows.

    Example:
        >>> from airflow_hops.extensions.ranks import BySpeed
        >>> def train(context):
        ...     context.fit(make_model(context), epochs=4, batch_size=1024, shares=BySpeed)
    """

    def __init__(
        self, session: Session, model: keras.Model, split: str, batch_size: int, columns: Sequence[str] | None
    ) -> None:
        if session.options.strategy != HOROVOD:
            raise BadInput(
                f"shares is BySpeed, but the strategy is {session.options.strategy!r}; expected Horovod's ranks, or "
                "shares=None"
            )
        refuse_deterministic(session.options.deterministic or is_op_determinism_enabled())
        target = session.source.target
        _check_losses(model, has_weights=target is not None and target.weight is not None)
        self._model, self._step_weights = model, _StepWeights()
        _check_optimizer(model.optimizer)
        super().__init__(session, split, batch_size, columns)

    def __enter__(self) -> BySpeed:
        _scale_gradients(self._model, self._step_weights.scale)
        return self

    def __exit__(self, *_: object) -> None:
        _scale_gradients(self._model, None)

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
                f"shares is BySpeed, but {self._step_weights.steps} exchanges of gradients in {self.steps_done} steps "
                "were counted, so their weights are wrong; apply gradients once in each step, or set shares=None"
            )
        return super().row_seconds()


class _StepWeights:
    """This rank's weight in the average of each step's gradients, for ranks with different numbers of rows.

    The graph counts the steps, because Keras may run several of them in one execution.
    """

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            shape = tf.TensorShape([None])
            self._weights = tf.Variable(np.ones(1), shape=shape, dtype=tf.float64, trainable=False)
            self._step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._first = 0

    @property
    def steps(self) -> int:
        """Number of exchanges since :meth:`begin`."""
        return int(self._step.numpy()) - self._first

    def begin(self, weights: np.ndarray, first_step: int) -> None:
        """Sets the weights of the steps of an epoch, of which the next is ``first_step``."""
        self._first = first_step
        self._weights.assign(weights)
        self._step.assign(first_step)

    def scale(self, grads: Sequence[Any]) -> list[Any]:
        """Returns the next step's gradients by its weight."""
        with tf.device("CPU:0"):
            # After the last step, a second exchange of a step takes its weight again; the caller compares the steps.
            weight = self._weights[tf.minimum(self._step, tf.size(self._weights, tf.int64) - 1)]
            self._step.assign_add(1)
        return [tf.math.scalar_mul(tf.cast(weight, gradient.dtype), gradient) for gradient in grads]


def _scale_gradients(model: keras.Model, scale: Callable[[Sequence[Any]], list[Any]] | None) -> None:
    """Makes a model's optimizer scale this rank's gradients before they are averaged; None for equal weights."""
    holder = distributed_optimizer(model.optimizer)
    object.__setattr__(holder, "_hops_exchange", replace(holder._hops_exchange, scale=scale))
    model.make_train_function(force=True)  # the graph of an earlier fit has the exchange of before


def _check_optimizer(optimizer: object) -> None:
    holder = distributed_optimizer(optimizer)
    if holder is None:
        raise BadInput(
            f"shares is BySpeed, but the optimizer {type(optimizer).__name__} exchanges no gradients; wrap it in "
            "airflow_hops.DistributedOptimizer"
        )
    if holder._hops_exchange.op != hvd.Average:
        raise BadInput("shares is BySpeed, but the DistributedOptimizer sums gradients: give it op=Average")
    if accumulation_steps(optimizer):
        raise BadInput(
            "shares is BySpeed, but the optimizer accumulates gradients of several batches, which would all weigh "
            "equally; leave out gradient_accumulation_steps"
        )


def _check_losses(model: keras.Model, *, has_weights: bool) -> None:
    means = ("sum_over_batch_size", "mean", *(() if has_weights else ("mean_with_sample_weight",)))
    for loss in keras.tree.flatten(model.loss):
        reduction = getattr(loss, "reduction", "mean")
        if reduction not in means:
            raise BadInput(
                f"shares is BySpeed, but the loss {type(loss).__name__} has reduction={reduction!r}, which is not the "
                "mean over a batch's rows, so ranks with different numbers of rows cannot be averaged; set "
                "reduction='sum_over_batch_size'"
            )
