"""Exchanges gradients with one grouped Horovod all-reduce, under the same name on all ranks."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.config import is_op_determinism_enabled

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.training.collectives import hvd

JIT_COMPILE = (
    "the model is compiled with jit_compile=True, but XLA has no Horovod all-reduce, so no gradient could be "
    "exchanged; compile it with jit_compile=False"
)


@dataclass(frozen=True)
class GradientExchange:
    """Combines the ranks' gradients.

    Attributes:
        compression: Compression of the gradients: ``horovod.tensorflow.Compression.none`` or ``.fp16``.
        sparse_as_dense: Whether to convert sparse gradients to dense ones first.
        op: ``horovod.tensorflow.Average`` or ``.Sum``.
        name: Name of the all-reduce; None for one made of the gradients' shapes. Horovod's names come from the graph:
            the all-reduce hangs if one rank has built a layer more than the others.
        seconds: Variable to which the seconds spent are added, or None.
        scale: Scales this rank's gradients before they are averaged; None if all ranks weigh equally.
    """

    compression: Any
    sparse_as_dense: bool
    op: Any
    name: str | None = None
    seconds: tf.Variable | None = None
    scale: Callable[[Sequence[Any]], list[Any]] | None = None

    @classmethod
    def of(
        cls, who: str, compression: object, sparse_as_dense: bool, op: object, name: str | None, *, timed: bool = False
    ) -> GradientExchange:
        """Creates an exchange, with Horovod's defaults for None.

        Raises:
            BadInput: Horovod is not initialized, or does not support these arguments.
        """
        if not hvd.is_initialized():
            raise BadInput(
                f"{who}: Horovod is not initialized; call it in the function of HorovodTrainOperator, or of "
                "SearchOperator with strategy='horovod', or call horovod.tensorflow.init() first"
            )
        op = hvd.Average if op is None else op
        if op == hvd.Adasum:
            raise BadInput(f"{who}: op is Adasum, which Horovod has for MPI only; expected Average or Sum")
        if op not in (hvd.Average, hvd.Sum):
            raise BadInput(f"{who}: op is {op!r}, expected horovod.tensorflow.Average or Sum")
        seconds = None
        if timed:
            with tf.device("CPU:0"):
                seconds = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="exchange_seconds")
        return cls(compression or hvd.Compression.none, sparse_as_dense, op, name, seconds)

    def dense(self, grads: Sequence[object]) -> list[object]:
        """Returns the gradients, with sparse ones converted to dense ones if requested."""
        if not self.sparse_as_dense:
            return list(grads)
        return [tf.convert_to_tensor(g) if isinstance(g, tf.IndexedSlices) else g for g in grads]

    @tf.autograph.experimental.do_not_convert  # converting it and Horovod would take seconds in custom loops
    def combine(self, grads: Sequence[Any]) -> list[object]:
        """Returns the gradients of all ranks, averaged or summed; None stays None.

        Raises:
            BadInput: XLA compiles the graph.
        """
        combined = list(grads)
        values = [i for i, gradient in enumerate(grads) if gradient is not None]
        if hvd.size() == 1 or not values:
            return combined
        from tensorflow.python.ops import control_flow_util

        if control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
            raise BadInput(JIT_COMPILE)
        present = [grads[i] for i in values]
        if self.scale is not None:
            present = self.scale(present)
        # TensorFlow 2.16: has no clock if operations must be deterministic.
        seconds = None if is_op_determinism_enabled() else self.seconds
        if seconds is not None:
            # The clock starts after the last gradient, which the all-reduce waits for anyway.
            ready = present
            if self.scale is not None:
                # A GPU's gradient counts as available when it is queued; a copy of a value waits until it is computed.
                with tf.control_dependencies(present):
                    value = tf.reshape(tf.convert_to_tensor(present[-1]), [-1])[:1]
                with tf.device("CPU:0"):
                    ready = [tf.identity(value)]
            with tf.device("CPU:0"), tf.control_dependencies(ready):
                began = tf.timestamp()
            with tf.control_dependencies([began]):
                present = [tf.identity(gradient) for gradient in present]
        shapes = str([(gradient.dtype.name, gradient.shape.as_list()) for gradient in present])
        exchanged = hvd.grouped_allreduce(
            present,
            op=self.op,
            compression=self.compression,
            name=self.name or f"hops_gradients_{zlib.crc32(shapes.encode()):08x}",
            ignore_name_scope=True,
        )
        if seconds is not None:
            with tf.device("CPU:0"), tf.control_dependencies(exchanged):
                seconds.assign_add(tf.timestamp() - began)
        for i, gradient in zip(values, exchanged, strict=True):
            combined[i] = gradient
        return combined


class DistributedGradientTape:
    """A ``tf.GradientTape`` whose gradients are averaged over all ranks, for your own training loops.

    Horovod's own accepts only TensorFlow's variables; this one also accepts those of Keras 3.

    .. code-block:: python

        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(features, training=True))
        tape = DistributedGradientTape(tape)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_weights), model.trainable_weights))

    Use a plain optimizer: with a :func:`DistributedOptimizer`, gradients would be averaged twice.

    Args:
        tape: The tape that recorded the forward pass.
        compression: Compression of the gradients: ``horovod.tensorflow.Compression.none`` (the default) or ``.fp16``.
        sparse_as_dense: Whether to convert an embedding's sparse gradients to dense ones.
        op: ``horovod.tensorflow.Average`` (the default) or ``.Sum``.
        name: Name of the all-reduce. Required if a step takes gradients of two sets of variables of the same shapes.

    Raises:
        BadInput: Horovod is not initialized, or does not support these arguments.
    """

    def __init__(
        self,
        tape: tf.GradientTape,
        *,
        compression: object = None,
        sparse_as_dense: bool = True,
        op: object = None,
        name: str | None = None,
    ) -> None:
        self._tape = tape
        self._exchange = GradientExchange.of("DistributedGradientTape", compression, sparse_as_dense, op, name)

    def gradient(self, target: object, sources: object, output_gradients: object = None) -> object:
        """Returns the gradients like :meth:`tf.GradientTape.gradient`, averaged over all ranks."""
        grads = self._tape.gradient(target, sources, output_gradients)
        flat = self._exchange.combine(self._exchange.dense(tf.nest.flatten(grads)))
        return tf.nest.pack_sequence_as(grads, flat)
