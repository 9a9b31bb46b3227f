"""The taxi example in TFX's way: what ``docs/start/from_tfx.md`` migrates."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow_transform as tft
from tfx_training import fit_and_save

LABEL = "big_tip"
SCALED = ("trip_miles", "fare", "trip_seconds")
BUCKETS = ("pickup_latitude", "pickup_longitude")
WORDS = ("payment_type", "company")
HOURS = 24


def preprocessing_fn(inputs: dict[str, Any]) -> dict[str, tf.Tensor]:
    """Raw features to z-scores, numbers of buckets and of words."""
    outputs = {name: tft.scale_to_z_score(_dense(tf.cast(inputs[name], tf.float32))) for name in SCALED}
    outputs |= {name: tft.bucketize(_dense(inputs[name]), 10) for name in BUCKETS}
    for name in WORDS:
        outputs[name] = tft.compute_and_apply_vocabulary(
            _dense(inputs[name]), top_k=1000, num_oov_buckets=1, vocab_filename=name
        )
    outputs["trip_start_hour"] = _dense(inputs["trip_start_hour"])
    outputs[LABEL] = inputs[LABEL]
    return outputs


def _dense(values: Any) -> tf.Tensor:
    """Fills in 0 or an empty text."""
    if not isinstance(values, tf.SparseTensor):
        return values
    shape = [values.dense_shape[0], 1]
    default = "" if values.dtype == tf.string else 0
    return tf.sparse.to_dense(tf.SparseTensor(values.indices, values.values, shape), default)


def run_fn(fn_args: Any) -> None:
    """TFX's Trainer calls this: ten epochs."""
    names = (*SCALED, *BUCKETS, *WORDS, "trip_start_hour")
    fit_and_save(fn_args, LABEL, _model, names=names, output="probability", epochs=10, batch_rows=256)


def _model(transform: tft.TFTransformOutput) -> tf.keras.Model:
    inputs = {name: tf.keras.Input([1], name=name, dtype=tf.float32) for name in SCALED}
    parts = list(inputs.values())
    sizes = dict.fromkeys(BUCKETS, 10) | {"trip_start_hour": HOURS}
    for name, size in sizes.items():
        inputs[name] = tf.keras.Input([1], name=name, dtype=tf.int64)
        parts.append(tf.keras.layers.CategoryEncoding(size, output_mode="one_hot")(inputs[name]))
    for name in WORDS:
        inputs[name] = tf.keras.Input([1], name=name, dtype=tf.int64)
        size = transform.vocabulary_size_by_name(name) + 1
        parts.append(tf.keras.layers.Flatten()(tf.keras.layers.Embedding(size, 8)(inputs[name])))
    hidden = tf.keras.layers.Dense(64, activation="relu")(tf.keras.layers.Concatenate()(parts))
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(tf.keras.optimizers.Adam(1e-3), "binary_crossentropy")
    return model
