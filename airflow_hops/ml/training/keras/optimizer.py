"""An optimizer of Keras 3 whose gradients are averaged across ranks.

Horovod's own ``DistributedOptimizer`` was made for Keras 2: with a Keras 3 optimizer it trains without exchanging
gradients, and without an error. This one overrides the method that Keras 3 calls, and
:class:`airflow_hops.ml.training.keras.Guard` checks that it takes effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.training.keras.exchange import GradientExchange

_optimizers_made = 0


class _DistributedOptimizer:
    """Mixin that precedes a Keras optimizer's class."""

    _hops_exchange: GradientExchange

    def apply(self, grads: Sequence[object], trainable_variables: Sequence[object] | None = None) -> None:
        """Averages the gradients across ranks, then updates the variables with them."""
        grads = self._hops_exchange.dense(grads)
        if not accumulation_steps(self):
            grads = self._hops_exchange.combine(grads)
        super().apply(grads, trainable_variables)  # type: ignore[misc]

    def _clip_gradients(self, grads: Sequence[object]) -> list[object]:
        # Keras 3.15: calls this once per update if it accumulates gradients, and must clip the average.
        if accumulation_steps(self):
            grads = self._hops_exchange.combine(grads)
        clipped: list[object] = super()._clip_gradients(grads)  # type: ignore[misc]
        return clipped


def DistributedOptimizer(
    optimizer: object,
    *,
    compression: object = None,
    sparse_as_dense: bool = True,
    op: object = None,
) -> Any:
    """Makes a Keras 3 optimizer average its gradients across all ranks before it clips and applies them.

    Equal batches on N ranks then train like one batch of N times the size in a single process. With Keras's
    ``gradient_accumulation_steps``, gradients that a rank has accumulated are exchanged; with a ``LossScaleOptimizer``,
    those of every batch, because the ranks must agree on which to skip.

    Args:
        optimizer: A Keras 3 optimizer. It is changed in place, keeps its state, and is serialized as the original.
        compression: Compression of the exchanged gradients: ``horovod.tensorflow.Compression.none`` (the default) or
            ``.fp16``.
        sparse_as_dense: Whether to convert an embedding's sparse gradients to dense ones, on one rank as on many. This
            makes ranks equal to the last bit, is faster except for very large vocabularies, and sums a batch's
            gradients of the same row, which Keras's sparse Adam applies one after the other.
        op: ``horovod.tensorflow.Average`` (the default) or ``.Sum``.

    Returns:
        The optimizer.

    Raises:
        BadInput: it is not a Keras 3 optimizer, Horovod is not initialized, or an argument has another value.
    """
    global _optimizers_made
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise BadInput(
            f"DistributedOptimizer expects a Keras 3 optimizer, found {type(optimizer).__module__}."
            f"{type(optimizer).__name__}; tf_keras optimizers go to horovod.tensorflow.keras.DistributedOptimizer"
        )
    if is_distributed(optimizer):
        return optimizer
    name = f"hops_gradients_{_optimizers_made}"
    exchange = GradientExchange.of("DistributedOptimizer", compression, sparse_as_dense, op, name, timed=True)
    if not sparse_as_dense and accumulation_steps(getattr(optimizer, "inner_optimizer", optimizer)) > 1:
        raise BadInput("accumulated gradients are dense: sparse_as_dense must be True")
    _distribute(optimizer, exchange)
    _optimizers_made += 1
    return optimizer


def is_distributed(optimizer: object) -> bool:
    """Returns whether :func:`DistributedOptimizer` was applied to the optimizer."""
    return isinstance(optimizer, _DistributedOptimizer)


def distributed_optimizer(optimizer: object) -> Any:
    """Returns the optimizer of :func:`DistributedOptimizer` that an optimizer is or wraps; None if there is none."""
    holder: Any = optimizer if is_distributed(optimizer) else getattr(optimizer, "inner_optimizer", None)
    return holder if is_distributed(holder) else None


def exchange_seconds(optimizer: object) -> float:
    """Returns the seconds that this rank's steps spent exchanging gradients, including the wait for other ranks.

    They are measured in the graph, from the last gradient until the averages are available. On a GPU, a gradient counts
    as available once its computation is queued, so the value is an upper bound.

    Args:
        optimizer: An optimizer of :func:`DistributedOptimizer`, or Keras's wrapper of it; for any other, 0 is returned.
    """
    holder = distributed_optimizer(optimizer)
    return 0.0 if holder is None else float(holder._hops_exchange.seconds.numpy())


def average_before_loss_scaling(optimizer: object) -> None:
    """Makes a ``LossScaleOptimizer`` average gradients before it checks them for overflow; does not change others.

    Keras wraps the optimizer of a ``mixed_float16`` model in one that skips a step when a gradient overflows. If
    gradients were averaged inside it, a rank that skips a step would block the others.
    """
    inner: Any = getattr(optimizer, "inner_optimizer", None)
    if is_distributed(optimizer) or not is_distributed(inner):
        return
    _distribute(optimizer, inner._hops_exchange)
    object.__setattr__(inner, "__class__", type(inner).__bases__[1])


def _distribute(optimizer: object, exchange: GradientExchange) -> None:
    kind = type(optimizer)
    # Keeps the class's name, because a saved model must load without this package.
    mixed = type(kind.__name__, (_DistributedOptimizer, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})
    object.__setattr__(optimizer, "__class__", mixed)
    object.__setattr__(optimizer, "_hops_exchange", exchange)


def accumulation_steps(optimizer: object) -> int:
    """Returns the number of batches whose gradients an optimizer accumulates; 0 if it does not."""
    return getattr(optimizer, "gradient_accumulation_steps", None) or 0
