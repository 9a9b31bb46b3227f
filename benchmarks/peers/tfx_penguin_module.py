"""The penguin example in TFX's way: what ``docs/start/from_tfx.md`` migrates."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
import tensorflow_transform as tft
from tfx_training import fit_and_save

LABEL = "species"
MEASURED = ("bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g")
SPECIES = 3


def preprocessing_fn(inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    """Raw measurements to z-scores; the species are numbers."""
    return {name: tft.scale_to_z_score(inputs[name]) for name in MEASURED} | {LABEL: inputs[LABEL]}


def run_fn(fn_args: Any) -> None:
    """TFX's Trainer calls this: forty epochs."""
    fit_and_save(fn_args, LABEL, _model, names=MEASURED, output="probabilities", epochs=40, batch_rows=20)


def _model(transform: tft.TFTransformOutput) -> tf.keras.Model:
    inputs = {name: tf.keras.Input([1], name=name, dtype=tf.float32) for name in MEASURED}
    hidden = tf.keras.layers.Concatenate()([*inputs.values()])
    for _ in range(2):
        hidden = tf.keras.layers.Dense(8, activation="relu")(hidden)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(SPECIES, activation="softmax")(hidden))
    model.compile(tf.keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy")
    return model
