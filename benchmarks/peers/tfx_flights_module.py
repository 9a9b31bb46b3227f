"""The peer's user code: its preprocessing function (TensorFlow Transform) and its model (tf_keras)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow_transform as tft
from tfx_training import fit_and_save

LABEL = "late"
SCALED = ("month", "day", "hour", "sched_dep_time", "weekday", "distance")
EMBEDDED = {"carrier": 8, "origin": 2, "dest": 16}


def preprocessing_fn(inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Raw features, sparse or dense of shape [batch, 1], to z-scores and vocabulary ids."""
    outputs = {name: tft.scale_to_z_score(tf.cast(inputs[name], tf.float32)) for name in SCALED}
    for name in EMBEDDED:
        outputs[name] = tft.compute_and_apply_vocabulary(inputs[name], num_oov_buckets=1, vocab_filename=name)
    outputs[LABEL] = inputs[LABEL]
    return outputs


def run_fn(fn_args: Any) -> None:
    """TFX's Trainer calls this: two epochs."""
    names = (*SCALED, *EMBEDDED)
    fit_and_save(fn_args, LABEL, _model, names=names, output="probability", epochs=2, batch_rows=512)


def _model(transform: tft.TFTransformOutput) -> tf.keras.Model:
    inputs = {name: tf.keras.Input([1], name=name, dtype=tf.float32) for name in SCALED}
    parts = list(inputs.values())
    for name, width in EMBEDDED.items():
        inputs[name] = tf.keras.Input([1], name=name, dtype=tf.int64)
        size = transform.vocabulary_size_by_name(name) + 1
        parts.append(tf.keras.layers.Flatten()(tf.keras.layers.Embedding(size, width)(inputs[name])))
    hidden = tf.keras.layers.Concatenate()(parts)
    for _ in range(2):
        hidden = tf.keras.layers.Dense(64, activation="relu")(hidden)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(tf.keras.optimizers.Adam(1e-3), "binary_crossentropy")
    return model
