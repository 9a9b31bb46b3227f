"""Looks at a model artifact with TensorFlow, and returns what it finds."""

from __future__ import annotations

from typing import Any

from airflow_hops.artifacts import BadInput
from airflow_hops.hops.checkpoints import (
    Position,
    Snapshot,
    copy_variables,
    load_snapshot,
    restore_variables,
    write_checkpoint,
)
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.train.checkpoint_state import CheckpointState
from airflow_hops.store import ArtifactStore


def look_at(context: StepContext) -> dict[str, Any]:
    """Serves a few rows and reads the event files of an artifact in the role ``model``."""
    import tensorflow as tf

    folder = context.local("model")
    signature = tf.saved_model.load(str(folder / "saved_model")).signatures["serving_default"]
    answer = signature(
        a=tf.constant([-3.0, 0.0, 3.0]),
        b=tf.constant([-1.0, 0.0, 1.0]),
        kind=tf.constant([0, 1, 4], tf.int64),
        when=tf.constant([0, 0, 0], tf.int64),
    )
    events: dict[str, list[Any]] = {}
    for path in sorted((folder / "tensorboard").glob("*/events*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                events.setdefault(f"{path.parent.name}/{value.tag}", []).append(
                    [event.step, float(tf.make_ndarray(value.tensor))]
                )
    return {"probability": answer["probability"].numpy().tolist(), "events": events}


def keep_checkpoints_on_an_object_store(context: StepContext) -> dict[str, Any]:
    """Publishes and fetches checkpoints where a folder cannot be renamed; damages the last of them."""
    import fsspec
    import keras

    store = ArtifactStore("memory://hops")
    state = CheckpointState.of(context.spec, store)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    found: dict[str, Any] = {"before": state.fetch(context.scratch / "before")}
    for epochs in (1, 2):
        history = tuple({"loss": 1.0 / epoch} for epoch in range(1, epochs + 1))
        snapshot = Snapshot(Position(step=7 * epochs, epoch=epochs), copy_variables(model), history=history)
        state.publish(write_checkpoint(context.scratch / "local", snapshot, keep=3))
    fetched = state.fetch(context.scratch / "fetched")
    assert fetched is not None
    found["fetched"] = [fetched.position.epoch, fetched.history]
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    other.compile("adam", "mse")
    found["other_architecture"] = _bad_input(lambda: restore_variables(load_snapshot(fetched), other))
    memory = fsspec.filesystem("memory")
    (stored,) = (path for path in memory.find("/") if "step-00000014/variables.npz" in path)
    memory.pipe_file(stored, memory.cat_file(stored)[:-100])
    before = state.fetch(context.scratch / "damaged")
    assert before is not None
    found["damaged"] = [before.position.epoch, before.history]
    memory.pipe_file(stored.replace("variables.npz", "checkpoint.json"), b'{"epochs": 2, "history": []}')
    found["other_version"] = _bad_input(lambda: state.fetch(context.scratch / "other"))
    state.clear()
    found["after"] = state.fetch(context.scratch / "after")
    return found


def _bad_input(function: Any) -> str:
    try:
        function()
    except BadInput as error:
        return str(error)
    return "no error"
