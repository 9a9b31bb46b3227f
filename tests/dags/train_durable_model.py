"""A small model that is trained as far as a file says."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_hops.hops import TrainContext


def train(context: TrainContext) -> Any:
    """Says which process trains, and, after each epoch, waits for the number in ``allowed`` to be greater."""
    import keras

    from airflow_hops.hops import DistributedOptimizer

    folder = Path(context.params["folder"])
    with (folder / "ranks").open("a") as stream:
        stream.write(f"{os.getpid()}\n")

    def wait(epoch: int, logs: Any) -> None:
        print(f"rank {context.rank} has done epoch {epoch + 1}", flush=True)
        while int((folder / "allowed").read_text()) <= epoch + 1:
            time.sleep(0.1)

    numeric, kind = keras.Input((2,), name="numeric"), keras.Input((), dtype="int64", name="kind_id")
    every = keras.layers.Concatenate()([numeric, keras.layers.Embedding(5, 2)(kind)])
    model = keras.Model({"numeric": numeric, "kind_id": kind}, keras.layers.Dense(1, activation="sigmoid")(every))
    model.compile(DistributedOptimizer(keras.optimizers.Adam(0.01)), "binary_crossentropy")
    callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=wait)]
    context.fit(model, epochs=context.params["epochs"], batch_size=100, callbacks=callbacks)
    return model
