"""Trainings with TensorFlow's own strategies."""

from __future__ import annotations

import json
import os
from typing import Any

from airflow_hops.hops.context import TrainContext


def _compiled(tf: Any, seed: int) -> Any:
    tf.keras.utils.set_random_seed(seed)
    numeric = tf.keras.Input((2,), name="numeric")
    kind = tf.keras.Input((), dtype=tf.int64, name="kind_id")
    every = tf.keras.layers.Concatenate()([numeric, tf.keras.layers.Embedding(5, 2)(kind)])
    model = tf.keras.Model({"numeric": numeric, "kind_id": kind}, tf.keras.layers.Dense(1, activation="sigmoid")(every))
    model.compile(tf.keras.optimizers.SGD(0.5), "binary_crossentropy")
    return model


def mirrored(context: TrainContext) -> Any:
    """Workers that mirror one model; each says what it found."""
    import tensorflow as tf

    steps = context.steps("train", 100)
    with context.strategy.scope():
        model = _compiled(tf, seed=7)
    rows = context.strategy.distribute_datasets_from_function(
        lambda _: context.examples("train", 100, shuffle=True, repeat=True)
    )
    model.fit(rows, epochs=2, steps_per_epoch=steps, verbose=0)
    print(f"TF_CONFIG {os.environ['TF_CONFIG']} replicas {context.strategy.num_replicas_in_sync}", flush=True)
    return model


def apart(context: TrainContext) -> Any:
    """Forgets the scope: each worker trains a model of its own."""
    import tensorflow as tf

    model = _compiled(tf, seed=context.rank)
    return model


def with_parameter_servers(context: TrainContext) -> Any:
    """The chief's side: variables lie on the parameter server, and workers read what they train on themselves."""
    import tensorflow as tf

    with context.strategy.scope():
        model = _compiled(tf, seed=7)

    def rows(_: Any) -> Any:
        numeric = tf.random.stateless_normal((256, 2), (1, 2))
        features = {"numeric": numeric, "kind_id": tf.zeros((256,), tf.int64)}
        labels = tf.cast(numeric[:, 0] > 0, tf.float32)
        return tf.data.Dataset.from_tensor_slices((features, labels)).repeat().batch(32)

    history = model.fit(
        tf.keras.utils.experimental.DatasetCreator(rows), epochs=3, steps_per_epoch=20, verbose=0
    ).history["loss"]
    devices = sorted({variable.device for variable in model.trainable_variables})
    print("FOUND " + json.dumps({"loss": history, "devices": devices}), flush=True)
    print(f"TF_CONFIG {os.environ['TF_CONFIG']}", flush=True)
    return model
