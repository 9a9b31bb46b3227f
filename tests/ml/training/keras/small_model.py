"""A model so small that a training of it takes no time, and rows for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from airflow_hops.ml.training.keras import BroadcastCallback

STEPS, BATCH = 6, 16


def small_model(seed: int) -> keras.Model:
    """Three columns, one of them an id that is embedded."""
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((3,))
    ids = keras.ops.cast(inputs[:, 2], "int64")
    hidden = keras.layers.Concatenate()([inputs[:, :2], keras.layers.Embedding(4, 3)(ids)])
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(5, activation="tanh")(hidden)))


def compiled(seed: int, optimizer: Any, *, jit: bool = False, **options: Any) -> keras.Model:
    """The small model, compiled, with more for Keras's ``compile``."""
    model = small_model(seed)
    model.compile(optimizer, "mse", jit_compile=jit, **options)
    return model


def rows_of(rank: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(rank)
    x = random.normal(size=(STEPS * BATCH, 3)).astype("float32")
    x[:, 2] = random.integers(0, 4, len(x))
    return x, x.sum(axis=1, keepdims=True)


def fit(model: keras.Model, x: Any, y: Any, *, epochs: int = 1, callbacks: Sequence[Any] = ()) -> Any:
    """Trains from rank 0's weights, in batches of one rank."""
    return model.fit(
        x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=[BroadcastCallback(), *callbacks]
    ).history
