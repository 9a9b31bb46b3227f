"""Training functions whose ranks are killed and resumed, or run out of data; and what may befall a checkpoint."""

from __future__ import annotations

import json
import os
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from airflow_hops.artifacts import BadInput, HopsError
from airflow_hops.hops.checkpoints import CheckpointWriter, Position, Snapshot, copy_variables, latest_checkpoint
from airflow_hops.hops.context import TrainContext
from airflow_hops.hops.keras import DistributedGradientTape, DistributedOptimizer
from airflow_hops.runtime.context import StepContext


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


def train_by_oneself(context: TrainContext) -> keras.Model:
    """A training loop of one's own; rank 1 is killed after ``context.params['step']`` steps of the first try."""
    params = context.params
    marker = Path(params["marker"]) if "marker" in params else None
    model = keras.Sequential(
        [keras.Input((2,), name="numeric"), keras.layers.GaussianNoise(0.3), keras.layers.Dense(1, "sigmoid")]
    )
    optimizer = keras.optimizers.Adam(0.02)
    optimizer.build(model.trainable_variables)
    loss_function = keras.losses.BinaryCrossentropy()
    start = context.restore(model, optimizer)
    step = start.step

    @tf.function
    def train_step(features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_function(labels[:, tf.newaxis], model(features["numeric"], training=True))
        tape = DistributedGradientTape(tape)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    for epoch in range(start.epoch, params["epochs"]):
        context.begin_epoch(epoch)
        first = start.batch if epoch == start.epoch else 0
        dataset = context.examples("train", params["batch_size"], shuffle=True, first_step=first)
        for batch, (features, labels) in enumerate(dataset, first + 1):
            loss = train_step(features, labels)
            step += 1
            if step % 3 == 0:
                context.report(step, loss=loss)
                context.checkpoint(model, step=step, epoch=epoch, batch=batch, optimizer=optimizer)
            if marker is not None and not marker.exists() and context.rank == 1 and step == params["step"]:
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if context.should_stop(every=5):
                return model
        metrics = {"loss": float(loss)}
        context.checkpoint(model, step=step, epoch=epoch + 1, optimizer=optimizer, metrics=metrics)
    return model


def train_on_uneven_batches(context: TrainContext) -> keras.Model:
    """A ``model.fit`` of one's own, of the examples, and with data of one's own, of which rank 1 has less."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    examples = context.examples("train", 40).map(lambda features, label: (features["numeric"], label))
    model.fit(examples, verbose=0, callbacks=context.callbacks(epochs=1, reader=context.reader("train")))
    print(f"rows over all ranks: {context.guards[-1].rows}", flush=True)
    batches = tf.data.Dataset.from_tensors((tf.ones([4, 2]), tf.ones([4, 1]))).repeat(5 - 2 * context.rank)
    try:
        model.fit(batches, verbose=0, callbacks=context.callbacks(epochs=1))
    except BadInput as error:
        print(f"told before: {error}", flush=True)
    unknown = batches.filter(lambda x, y: True)
    model.fit(unknown, verbose=0, callbacks=context.callbacks(epochs=1, guard_every_steps=0))
    return model


def corner_cases(context: StepContext, *, small: str) -> dict[str, Any]:
    """Checkpoints of another number of ranks, of weights that are no numbers, and on a full disk."""
    import horovod.tensorflow as hvd

    hvd.init()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    folder = Path(small) / "checkpoints"
    kept: list[str] = []
    writer = CheckpointWriter(folder, 3, lambda path: kept.append(path.name))
    good = Snapshot(Position(step=14, epoch=1, batch=4), copy_variables(model), (b"", b""))
    writer.write(good)
    writer.finish()
    found: dict[str, Any] = {"kept": list(kept)}
    full = replace(good, position=Position(step=20), variables={"model-0000|kernel": np.zeros(1 << 20)})
    poisoned = replace(good, position=Position(step=21), variables={"model-0000|kernel": np.array([np.nan])})
    for name, snapshot in (("full", full), ("poisoned", poisoned)):
        writer.write(snapshot)
        try:
            writer.finish()
        except HopsError as error:
            found[name] = [type(error).__name__, str(error)]
    found["left"] = sorted(path.name for path in folder.iterdir())
    checkpoint = latest_checkpoint(folder)
    for variable in model.weights:
        variable.assign(variable + 1)
    training = TrainContext(
        rank=0,
        size=1,
        local_rank=0,
        params={},
        seed=0,
        feature_outputs={},
        label="late",
        examples_dir=context.scratch,
        checkpoint_dir=context.scratch,
        tensorboard_dir=context.scratch,
        resumed_from=checkpoint,
    )
    position = training.restore(model)
    found["other_ranks"] = [position.step, position.epoch, position.batch]
    restored = copy_variables(model)
    found["restored"] = all(np.array_equal(restored[name], values) for name, values in good.variables.items())
    return found
