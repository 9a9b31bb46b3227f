"""The training of the balance benchmark: ranks that take a certain time for each row."""

from __future__ import annotations

import itertools
import time
from typing import Any

import keras
import tensorflow as tf

from airflow_hops.extensions.ranks import BySpeed
from airflow_hops.ml.training.context import TrainContext
from airflow_hops.ml.training.keras import DistributedOptimizer
from benchmarks.measurement.training_ways import NUMBERS


class Device(keras.Model):  # type: ignore[misc]
    """Waits for each row of a step, as the host of a slow accelerator does."""

    row_s = 0.0

    def train_step(self, data: Any) -> Any:
        """Waits before the step's gradients."""
        features, labels = data

        def wait(rows: Any) -> Any:
            time.sleep(self.row_s * rows)
            return rows

        waited = tf.numpy_function(wait, [tf.size(labels, tf.int64)], tf.int64)
        with tf.control_dependencies([waited]):
            labels = tf.identity(labels)
        return super().train_step((features, labels))


def train(context: TrainContext) -> list[float]:
    """Trains on ranks of which each has its time for a row; returns the seconds from each epoch's end to the next."""

    inputs = keras.Input((len(NUMBERS),), name="numbers")
    hidden = keras.layers.Dense(64, activation="relu")(inputs)
    model = Device({"numbers": inputs}, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.row_s = context.params["row_s"][context.rank]
    model.compile(DistributedOptimizer(keras.optimizers.Adam(1e-3)), "binary_crossentropy")
    ends: list[float] = []
    clock = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends.append(time.monotonic()))
    how = {key: context.params[key] for key in ("epochs", "batch_size")}
    shares = BySpeed if context.params["balance"] else None
    context.fit(model, **how, shares=shares, validation_split=None, callbacks=[clock])
    return [end - begin for begin, end in itertools.pairwise(ends)]
