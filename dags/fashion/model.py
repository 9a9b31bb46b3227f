"""The fashion model: a small convolutional network, from pixels to ten probabilities."""

from __future__ import annotations

import keras
from keras import layers

from airflow_hops import DistributedOptimizer, TrainContext


def train(context: TrainContext) -> keras.Model:
    """Runs on every rank; what differs by rank is only ``context``."""
    params = {"lr": 2e-3, "epochs": 5, "batch_size": 256, **context.params}
    model = build(context)
    model.compile(
        optimizer=DistributedOptimizer(keras.optimizers.Adam(params["lr"])),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=8,
    )
    context.fit(model, epochs=params["epochs"], batch_size=params["batch_size"])
    return model


def build(context: TrainContext) -> keras.Model:
    """Two convolutions, each of half the height and width, and two dense layers."""
    feature = context.feature_outputs["image"]
    image = keras.Input(feature.shape, dtype=feature.dtype, name="image")
    hidden = image
    for filters in (16, 32):
        hidden = layers.Conv2D(filters, 3, padding="same", activation="relu")(hidden)
        hidden = layers.MaxPooling2D()(hidden)
    hidden = layers.Dense(64, activation="relu")(layers.Dropout(0.2)(layers.Flatten()(hidden)))
    return keras.Model({"image": image}, layers.Dense(10, activation="softmax")(hidden))
