"""Keras callbacks for training on several ranks, under Horovod's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.training.collectives import hvd
from airflow_hops.ml.training.keras.exchange import JIT_COMPILE
from airflow_hops.ml.training.keras.optimizer import average_before_loss_scaling
from airflow_hops.ml.training.keras.weights import average_statistics, broadcast_weights, sum_over_ranks


class BroadcastCallback(keras.callbacks.Callback):
    """Starts all ranks from the weights of ``root_rank``, and checks that gradients are exchanged.

    Example:
        >>> from airflow_hops import BroadcastCallback
        >>> BroadcastCallback(root_rank=0).root_rank
        0
    """

    def __init__(self, root_rank: int = 0) -> None:
        super().__init__()
        self.root_rank = root_rank

    def on_train_begin(self, logs: dict[str, object] | None = None) -> None:
        """Broadcasts the weights."""
        if hvd.size() > 1 and self.model.jit_compile:
            raise BadInput(JIT_COMPILE)
        average_before_loss_scaling(self.model.optimizer)
        broadcast_weights(self.model, self.root_rank)


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the ranks' non-trainable weights, and replaces each epoch's metrics with those over all ranks' rows.

    Non-trainable weights, such as a batch normalization's moving statistics, are averaged after each epoch's steps,
    before the validation, and so before the model is saved or exported.

    Keras's metrics keep sums: of losses and rows, of true and false positives at each threshold. They are added over
    the ranks, so the result is that of one process on all rows: exact for shards of different sizes, and for an AUC,
    which is not the mean of the ranks' AUCs. A variable whose ``aggregation`` is ``mean`` is averaged; one with
    ``none`` is left unchanged. Other values in the logs become means over the ranks.

    Place it before every callback that reads metrics: those that reduce the learning rate or stop when a metric stops
    improving then decide the same on all ranks.

    Example:
        >>> import keras, numpy as np
        >>> from airflow_hops import BroadcastCallback, Guard, MetricAverageCallback
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> ours = [BroadcastCallback(), MetricAverageCallback(), Guard()]
        >>> history = model.fit(np.ones((8, 2)), np.ones(8), callbacks=ours, verbose=0)
        >>> list(history.history)
        ['loss']

    Args:
        weight: Returns this rank's weight in the means of non-trainable weights; those of all ranks have the mean 1.
    """

    def __init__(self, weight: Callable[[], float] = lambda: 1.0) -> None:
        super().__init__()
        self._weight, self._exact = weight, dict[str, float]()
        self._in_epoch = self._has_own_statistics = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        """Resets the values of the previous epoch."""
        self._exact, self._in_epoch, self._has_own_statistics = {}, True, True

    def on_test_begin(self, logs: dict[str, object] | None = None) -> None:
        """Averages the weights, and collects the training metrics before the validation metrics replace them."""
        self._average_statistics()
        if self._in_epoch:
            self._exact = self._over_all_ranks()

    def on_test_end(self, logs: dict[str, object] | None = None) -> None:
        """Collects the validation metrics."""
        if self._in_epoch:
            self._exact |= {f"val_{name}": value for name, value in self._over_all_ranks().items()}

    def on_epoch_end(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        """Averages the weights if there was no validation, and updates the logs with the metrics over all ranks."""
        self._average_statistics()
        self._in_epoch = False
        if not logs or hvd.size() == 1:
            return
        exact = self._exact or self._over_all_ranks()
        logs.update({name: value for name, value in exact.items() if name in logs})
        names = sorted(set(logs) - set(exact))
        if names:
            values = tf.constant([metric_value(name, logs[name]) for name in names], tf.float64)
            averaged = hvd.allreduce(values, op=hvd.Average, name="hops_logs").numpy()
            logs.update(zip(names, (float(value) for value in averaged), strict=True))

    def _average_statistics(self) -> None:
        if self._has_own_statistics:
            self._has_own_statistics = False
            average_statistics(self.model, self._weight())

    def _over_all_ranks(self) -> dict[str, float]:
        if hvd.size() == 1:
            return {}
        variables = [variable for metric in self.model.metrics for variable in metric.variables]
        summed = [variable for variable in variables if variable.aggregation in ("sum", "mean")]
        sum_over_ranks(summed, "hops_metrics")
        for variable in summed:
            if variable.aggregation == "mean":
                variable.assign(variable / hvd.size())
        return {name: metric_value(name, value) for name, value in self.model.get_metrics_result().items()}


def metric_value(name: str, value: Any) -> float:
    """Returns a metric as a number.

    Raises:
        BadInput: it has several values, such as an F1 score for each class.
    """
    if np.ndim(value):
        raise BadInput(
            f"metric {name!r} has shape {tuple(np.shape(value))}, expected a number; make the metric average, for "
            "example with average='macro'"
        )
    return float(value)
