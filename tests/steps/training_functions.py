"""Training functions for tests: what a user would write, and what a user should not have."""

from __future__ import annotations

import os
import signal
import time
from itertools import count
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.hops import DistributedOptimizer, StepContext, TrainContext
from airflow_hops.ml.training.session import Session
from airflow_hops.ml.training.stage import keras_export, run
from airflow_hops.ml.training.stage.checkpoint_state import CheckpointState


def build(context: TrainContext) -> keras.Model:
    """A small model with an embedding."""
    numeric = keras.Input((2,), name="numeric")
    kind_id = keras.Input((), dtype="int64", name="kind_id")
    hidden = keras.layers.Concatenate()([numeric, keras.layers.Embedding(5, 2)(kind_id)])
    hidden = keras.layers.Dense(8, activation="tanh")(hidden)
    return keras.Model({"numeric": numeric, "kind_id": kind_id}, keras.layers.Dense(1, activation="sigmoid")(hidden))


def compiled(context: TrainContext, optimizer: Any = None) -> keras.Model:
    """The model, compiled."""
    model = build(context)
    optimizer = optimizer or DistributedOptimizer(keras.optimizers.Adam(context.params.get("lr", 0.01)))
    model.compile(optimizer, "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    return model


def poison(model: keras.Model, after: int) -> keras.callbacks.Callback:
    """Makes a weight no number, after one epoch."""
    variable = model.trainable_weights[0]

    def spoil(epoch: int, logs: Any) -> None:
        if epoch == after:
            variable.assign(variable * float("nan"))

    return keras.callbacks.LambdaCallback(on_epoch_begin=spoil)


def accident(context: TrainContext) -> keras.callbacks.Callback:
    """Something happens to one rank, after one epoch, once."""
    params = context.params

    def happen(epoch: int, logs: Any) -> None:
        if context.rank != params.get("rank", 1) or epoch + 1 != params["accident_after"]:
            return
        marker = Path(params["marker"]) if "marker" in params else None
        if marker is not None and marker.exists():
            return
        print(f"rank {context.rank} is about to have an accident", flush=True)
        if marker is not None:
            marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    return keras.callbacks.LambdaCallback(on_epoch_end=happen)


def train(context: TrainContext) -> keras.Model:
    """Trains; what else it does, params say."""
    model = compiled(context)
    callbacks: list[Any] = [accident(context)] if "accident_after" in context.params else []
    if "poison_after" in context.params:
        callbacks.append(poison(model, context.params["poison_after"]))
    context.fit(model, epochs=context.params.get("epochs", 3), batch_size=100, callbacks=callbacks)
    context.report(7, gradient_norm=0.25)
    return model


def train_with_a_slow_store(context: StepContext, **params: Any) -> Artifact:
    """The step, whose first checkpoint takes longer than all epochs, and whose export computes for as long."""
    publish, calls, export = CheckpointState.publish, count(), keras_export.export_keras

    def export_slowly(model: object, session: Session) -> dict[str, object]:
        began_s = time.process_time()
        while time.process_time() < began_s + 5.5:
            pass
        return export(model, session)

    keras_export.export_keras = export_slowly

    def publish_slowly(state: CheckpointState, checkpoint: Path) -> None:
        time.sleep(0.1 if next(calls) else 5.5)
        publish(state, checkpoint)

    CheckpointState.publish = publish_slowly  # type: ignore[method-assign]
    return run(context, **params)


def train_slowly(context: TrainContext) -> keras.Model:
    """Says which processes it runs in, and does not end."""
    print(f"pids {os.getpid()}", flush=True)
    compiled(context)
    time.sleep(120)
    raise AssertionError("nobody ended it")


def train_on_statistics_of_batches(context: TrainContext) -> keras.Model:
    """Normalizes with the mean and deviation of the rows that happen to be asked together."""

    class Standardized(keras.layers.Layer):  # type: ignore[misc]
        def call(self, values: Any) -> Any:
            return (values - keras.ops.mean(values, axis=0)) / keras.ops.std(values, axis=0)

    numeric = keras.Input((2,), name="numeric")
    answers = keras.layers.Dense(1, activation="sigmoid")(Standardized()(numeric))
    return keras.Model({"numeric": numeric}, answers)


def train_with_tables(context: TrainContext) -> keras.Model:
    """One layer has the table, or, with ``untracked``, none has it."""
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0, 1], [0.5, 1.5], tf.int64), 0.0)

    class Looked(keras.layers.Layer):  # type: ignore[misc]
        def call(self, values: Any) -> Any:
            return table.lookup(values)[:, None]

    kind = keras.Input((), dtype="int64", name="kind_id")
    looked_up = keras.layers.IntegerLookup(vocabulary=[0, 1, 2], output_mode="one_hot")
    answers = keras.layers.Dense(1, activation="sigmoid")(
        (Looked() if context.params.get("untracked") else looked_up)(kind)
    )
    model = keras.Model({"kind_id": kind}, answers)
    model.compile(DistributedOptimizer(keras.optimizers.Adam(0.01)), "binary_crossentropy")
    context.fit(model, epochs=1, batch_size=100)
    return model


def train_with_monte_carlo_dropout(context: TrainContext) -> keras.Model:
    """Dropout stays on when the model serves."""

    class Dropout(keras.layers.Layer):  # type: ignore[misc]
        def call(self, values: Any) -> Any:
            return tf.nn.dropout(values, 0.5)

    numeric = keras.Input((2,), name="numeric")
    answers = keras.layers.Dense(1, activation="sigmoid")(Dropout()(keras.layers.Dense(8)(numeric)))
    return keras.Model({"numeric": numeric}, answers)


def return_nothing(context: TrainContext) -> None:
    """Forgets to return the model."""


def outgrow(context: TrainContext) -> keras.Model:
    """Rank 1 asks for more memory than the kernel gives to a control group."""
    if context.rank == 1:
        Path(context.params["group"]).write_text(str(os.getpid()))
        return len(b"x" * (256 << 20))
    return train(context)


def read_another_split(context: TrainContext) -> keras.Model:
    """Asks for a split that there is not."""
    return context.examples("test", 100)


def without_context() -> None:
    """Takes no argument."""
