"""Keras 3 over Horovod: an optimizer that averages gradients across ranks, and the callbacks that go with it.

Horovod's own ``DistributedOptimizer`` was made for the Keras before 3: around a Keras 3 optimizer it trains without
exchanging a single gradient, and says nothing. This one overrides the method that Keras 3 calls, and
:class:`WeightsChecksumCallback` proves at every epoch that it did.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from airflow_hops.artifacts import BadInput

_JIT_COMPILE = (
    "the model is compiled with jit_compile=True, but XLA has no Horovod all-reduce, so no gradient could be "
    "exchanged; compile it with jit_compile=False"
)
_optimizers_made = 0


class _AveragingOptimizer:
    """Mixed in before a Keras optimizer's class."""

    _hops_compression: Any
    _hops_sparse_as_dense: bool
    _hops_name: str

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Averages the gradients across ranks, then updates the variables with them."""
        super().apply(self._hops_average(list(grads)), trainable_variables)  # type: ignore[misc]

    def _hops_average(self, grads: list[Any]) -> list[Any]:
        if self._hops_sparse_as_dense:
            grads = [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in grads]
        if hvd.size() == 1:
            return grads
        from tensorflow.python.ops import control_flow_util

        if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            raise BadInput(_JIT_COMPILE)
        given = [i for i, g in enumerate(grads) if g is not None]
        # A name of its own, the same on all ranks: one derived from the graph's differs as soon as one rank builds a
        # layer more than the others, and the all-reduce hangs.
        averaged = hvd.grouped_allreduce(
            [grads[i] for i in given],
            op=hvd.Average,
            compression=self._hops_compression,
            name=self._hops_name,
            ignore_name_scope=True,
        )
        for i, gradient in zip(given, averaged, strict=True):
            grads[i] = gradient
        return grads


def DistributedOptimizer(optimizer: Any, *, compression: Any = None, sparse_as_dense: bool = True) -> Any:
    """Makes a Keras 3 optimizer average its gradients across all ranks before it applies them.

    Equal batches on N ranks then train as one batch of N times the size would in a single process.

    Args:
        optimizer: A Keras 3 optimizer. It is changed in place, keeps its state, and serializes as what it was.
        compression: How gradients travel: ``horovod.tensorflow.Compression.none`` (the default) or ``.fp16``.
        sparse_as_dense: Whether an embedding's sparse gradients become dense ones, on one rank as on many. That makes
            ranks equal to the last bit, is faster but for very large vocabularies, and sums what a batch says of one
            row, which Keras's sparse Adam applies one after the other.

    Returns:
        The optimizer.

    Raises:
        BadInput: it is not a Keras 3 optimizer, or Horovod is not initialized.
    """
    global _optimizers_made
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise BadInput(
            f"DistributedOptimizer wants a Keras 3 optimizer, found {type(optimizer).__module__}."
            f"{type(optimizer).__name__}; tf_keras optimizers go to horovod.tensorflow.keras.DistributedOptimizer"
        )
    if not hvd.is_initialized():
        raise BadInput(
            "DistributedOptimizer: Horovod is not initialized; call it in the function that HorovodTrainOperator runs, "
            "or call horovod.tensorflow.init() first"
        )
    if isinstance(optimizer, _AveragingOptimizer):
        return optimizer
    kind = type(optimizer)
    # Under its own name: a saved model must load where this package is not.
    averaging = type(
        kind.__name__, (_AveragingOptimizer, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__}
    )
    object.__setattr__(optimizer, "__class__", averaging)
    object.__setattr__(optimizer, "_hops_compression", compression or hvd.Compression.none)
    object.__setattr__(optimizer, "_hops_sparse_as_dense", sparse_as_dense)
    object.__setattr__(optimizer, "_hops_name", f"hops_gradients_{_optimizers_made}")
    _optimizers_made += 1
    return optimizer


def is_distributed(optimizer: Any) -> bool:
    """Whether :func:`DistributedOptimizer` has made the optimizer average."""
    return isinstance(optimizer, _AveragingOptimizer)


def average_before_loss_scaling(optimizer: Any) -> None:
    """Has the gradients of a scaled loss averaged before they are looked at.

    Keras wraps the optimizer of a ``mixed_float16`` model in one that leaves a step out when a gradient overflows.
    Were they averaged behind it, a rank that leaves a step out would keep the others waiting for its gradients.

    Args:
        optimizer: A compiled model's optimizer; any but a ``LossScaleOptimizer`` stays as it is.
    """
    inner: Any = getattr(optimizer, "inner_optimizer", None)
    if is_distributed(optimizer) or not is_distributed(inner):
        return
    DistributedOptimizer(optimizer, compression=inner._hops_compression, sparse_as_dense=inner._hops_sparse_as_dense)
    object.__setattr__(inner, "__class__", type(inner).__bases__[1])


def broadcast_weights(model: Any, root_rank: int = 0) -> None:
    """Gives every rank the weights, and the optimizer's state, of one rank.

    The states of random number generators are left alone: ranks should drop out different units.
    """
    variables = list(model.weights)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        variables += optimizer.variables
    if hvd.size() > 1 and variables:
        hvd.broadcast_variables([variable.value for variable in variables], root_rank=root_rank)


def weights_checksum(model: Any) -> str:
    """SHA-256 (hex) of the trainable weights' bytes.

    Only these must be equal across ranks: moving averages of batch normalization are each rank's own.
    """
    digest = hashlib.sha256()
    for variable in model.trainable_weights:
        digest.update(np.ascontiguousarray(variable.numpy()))
    return digest.hexdigest()


def check_weights(model: Any, when: str) -> str:
    """Compares the checksum of the weights across ranks; every rank must call it.

    Args:
        model: A Keras model.
        when: For the message: ``at the end of epoch 2``.

    Returns:
        The checksum.

    Raises:
        BadInput: the ranks' weights differ; each rank raises the same.
    """
    checksum = weights_checksum(model)
    if hvd.size() == 1:
        return checksum
    mine = tf.constant(np.frombuffer(bytes.fromhex(checksum), dtype=np.uint8)[None, :])
    every = [row.tobytes().hex() for row in hvd.allgather(mine, name="hops_weights_checksum").numpy()]
    if len(set(every)) > 1:
        found = ", ".join(f"rank {rank}: {value[:12]}" for rank, value in enumerate(every))
        optimizer = getattr(model, "optimizer", None)
        hint = (
            "something changes weights on one rank only"
            if is_distributed(optimizer)
            else f"the optimizer {type(optimizer).__name__} does not exchange gradients: wrap it in "
            "airflow_hops.hops.keras.DistributedOptimizer"
        )
        raise BadInput(f"the ranks' weights differ {when} (SHA-256 by rank: {found}); {hint}")
    return checksum


class BroadcastCallback(keras.callbacks.Callback):
    """Starts all ranks from one rank's weights, and sees to it that gradients can travel.

    Args:
        root_rank: Whose weights.
    """

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        self.root_rank = root_rank

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Broadcasts the weights."""
        if hvd.size() > 1 and self.model.jit_compile:
            raise BadInput(_JIT_COMPILE)
        average_before_loss_scaling(self.model.optimizer)
        broadcast_weights(self.model, self.root_rank)


class MetricAverageCallback(keras.callbacks.Callback):
    """Replaces each epoch's metrics by their means over the ranks.

    For sums over rows (loss, accuracy) that is exact, as shards are equal; an AUC becomes the mean of the ranks'.
    Place it before every callback that reads metrics.
    """

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Averages the epoch's metrics in place."""
        if not logs or hvd.size() == 1:
            return
        names = sorted(logs)
        values = tf.constant([float(logs[name]) for name in names], tf.float64)
        averaged = hvd.allreduce(values, op=hvd.Average, name="hops_metrics").numpy()
        logs.update(zip(names, (float(value) for value in averaged), strict=True))


class WeightsChecksumCallback(keras.callbacks.Callback):
    """Compares a checksum of the weights across ranks after every epoch; a difference stops training with an error.

    Args:
        every_steps: Compare after so many steps, too; with ``steps_per_execution``, at the next execution's end.

    Attributes:
        checksums: Of each epoch.
    """

    def __init__(self, every_steps: int | None = None) -> None:
        super().__init__()
        self.every_steps = every_steps
        self.checksums: list[str] = []
        self._epoch = 0
        self._checked_at = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Remembers the epoch."""
        self._epoch, self._checked_at = epoch, 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Compares where ``every_steps`` says so."""
        if self.every_steps and batch + 1 - self._checked_at >= self.every_steps:
            self._checked_at = batch + 1
            check_weights(self.model, f"after step {batch + 1} of epoch {self._epoch + 1}")

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Compares."""
        self.checksums.append(check_weights(self.model, f"at the end of epoch {epoch + 1}"))


class NanStopCallback(keras.callbacks.Callback):
    """Stops training with an error as soon as the loss is not a number."""

    def __init__(self) -> None:
        super().__init__()
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Remembers the epoch."""
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Looks at the loss."""
        loss = float((logs or {}).get("loss", 0.0))
        if not math.isfinite(loss):
            raise BadInput(
                f"the loss is {loss} at step {batch + 1} of epoch {self._epoch + 1}; lower the learning rate, clip "
                "gradients, or look for values that are no numbers in the examples"
            )
