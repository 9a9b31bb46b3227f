"""Training functions whose ranks are killed, once a try, and what is left of their generators at the end."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from airflow_hops.hops.context import TrainContext
from airflow_hops.hops.keras import DistributedOptimizer


class Kill(keras.callbacks.Callback):
    """Kills this rank's process after so many steps.

    Args:
        context: The rank's.
        step: After how many.
        marker: File that says that it was done.
    """

    def __init__(self, context: TrainContext, step: int, marker: Path) -> None:
        super().__init__()
        self._context, self._step, self._marker = context, step, marker

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._context.position.step + 1 >= self._step:  # the context counts after the user's callbacks
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Draws(keras.callbacks.Callback):
    """Draws from each generator at an epoch's end."""

    def __init__(self) -> None:
        super().__init__()
        self.last: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.last = [
            random.random(),
            np.random.random(),
            float(tf.random.get_global_generator().uniform([])),
            float(keras.random.uniform([])),
        ]


def train(context: TrainContext) -> keras.Model:
    """The flights model's layers and a batch normalization.

    ``context.params``: ``epochs``, ``batch_size``; ``kills``, of each try the rank, the step, and steps per execution;
    ``markers``, a folder.
    """
    params = context.params
    kills, markers = params.get("kills", []), Path(params.get("markers", "/nowhere"))
    attempt = len(list(markers.glob("*")))
    numeric = keras.Input((2,), name="numeric")
    kind_id = keras.Input((), dtype="int64", name="kind_id")
    parts = [keras.layers.GaussianNoise(0.3)(numeric), keras.layers.Embedding(5, 2)(kind_id)]
    hidden = keras.layers.Dense(8, activation="relu")(keras.layers.Concatenate()(parts))
    hidden = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(hidden))
    model = keras.Model({"numeric": numeric, "kind_id": kind_id}, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(
        DistributedOptimizer(keras.optimizers.Adam(0.02)),
        "binary_crossentropy",
        metrics=[keras.metrics.AUC(name="auc")],
        steps_per_execution=kills[attempt]["steps_per_execution"] if attempt < len(kills) else 1,
    )
    draws = Draws()
    callbacks: list[Any] = [
        draws,
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10.0),
        keras.callbacks.EarlyStopping("val_loss", patience=50, restore_best_weights=True),
    ]
    if attempt < len(kills) and kills[attempt]["rank"] == context.rank:
        callbacks.append(Kill(context, kills[attempt]["step"], markers / str(attempt)))
    context.fit(model, epochs=params["epochs"], batch_size=params["batch_size"], callbacks=callbacks)
    facts = {"draws": draws.last, "learning_rate": float(model.optimizer.learning_rate.numpy())}
    (context.checkpoint_dir.parent / f"facts-{context.rank}.json").write_text(json.dumps(facts))
    return model
