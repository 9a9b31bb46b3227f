"""Ranks of different speeds: shares of the rows by measured speed, and the gradients' weights."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf
from balanced_batches import Batches, descend, read_batches

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import HopsError, Preempted
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.ranks import BySpeed
from airflow_hops.extensions.ranks.ml.balance import divide_rows
from airflow_hops.ml.training.context import TrainContext
from airflow_hops.ml.training.keras import DistributedOptimizer
from tests.ml.training.trainings import Trainings, rank_session

ROWS, BATCH, RATE = 391, 40, 0.5
STEPS = -(-ROWS // BATCH)
BALANCED, EPOCHS = 3, 4  # the last one has equal shares again
ROW_S = 2e-3


KILLS = {"unequal shares": 1, "equal shares after unequal ones": BALANCED}
"""Epochs in which a training is killed."""


class SlowModel(keras.Model):  # type: ignore[misc]
    """Takes its rank's time for each row of a step, and writes down the step's rows."""

    row_s = 0.0
    notes = Path()

    def train_step(self, data: Any) -> Any:
        features, labels = data

        def wait(step: Any, rows: Any, classes: Any) -> Any:
            time.sleep(self.row_s * len(rows))
            with self.notes.open("a") as stream:
                stream.write(json.dumps([int(step), rows.tolist(), classes.tolist()]) + "\n")
            return step

        done = tf.numpy_function(wait, [self.optimizer.iterations.value, features["numeric"], labels], tf.int64)
        with tf.control_dependencies([done]):
            labels = tf.identity(labels)
        return super().train_step((features, labels))


def network(context: TrainContext) -> Any:
    inputs = keras.Input((2,), name="numeric")
    fixed = keras.layers.BatchNormalization(trainable=False, epsilon=1e-9, name="fixed")(inputs)
    outputs = keras.layers.Dense(1, "sigmoid", kernel_initializer="zeros")(fixed)
    model = SlowModel({"numeric": inputs}, outputs)
    model.row_s = ROW_S * (1 + 2 * (context.rank == 1))
    return model


def train(context: TrainContext) -> keras.Model:
    """Trains; rank 1 takes three times as long for a row; each try gets the signal of its number after a step."""
    notes = Path(context.params["notes"])
    model = network(context)
    model.notes = notes / f"rank-{context.rank}"
    fixed = model.get_layer("fixed")

    class Disturbance(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            fixed.moving_mean.assign([float(context.rank == 0)] * 2)
            signals = context.params.get("signals", {})  # by step; a signal leaves a note, and is sent once
            note = notes / f"sent-{context.position.step}"
            if context.rank == 0 and str(context.position.step) in signals and not note.exists():
                note.touch()
                os.kill(os.getpid(), signals[str(context.position.step)])

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            fixed.moving_mean.assign([0.0, 0.0])

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if context.rank == 0 and context.position.fit == 0:
                (notes / f"statistic-{epoch}").write_text(str(float(fixed.moving_mean.numpy()[0])))
            fixed.moving_mean.assign([0.0, 0.0])

    model.compile(
        DistributedOptimizer(keras.optimizers.SGD(RATE)),
        "binary_crossentropy",
        steps_per_execution=context.params.get("steps_per_execution", 1),
    )
    how = {"batch_size": BATCH, "validation_split": None, "callbacks": [Disturbance()]}
    context.fit(model, epochs=BALANCED, shares=BySpeed, **how)
    context.fit(model, epochs=EPOCHS - BALANCED, **how)
    if context.rank == 0:
        (notes / "weights").write_text(
            json.dumps([np.ravel(each.numpy()).tolist() for each in model.trainable_weights])
        )
    return model


@pytest.fixture(scope="module")
def examples_folder(two_files: Artifact, shared_store: ArtifactStore) -> Path:
    return shared_store.local(two_files)


@pytest.fixture(scope="module")
def fit(trainings: Trainings, two_files: Artifact) -> Callable[..., dict[str, Any]]:
    """Trains; returns ``training.json``."""

    def fit(notes: Path, **params: Any) -> dict[str, Any]:
        values = {"run_id": notes.name, "notes": str(notes), **params}
        folder = trainings.store.local(trainings("test_by_speed:train", two_files, **values))
        summary: dict[str, Any] = json.loads((folder / "training.json").read_text())
        return summary

    return fit


def check(summary: dict[str, Any], notes: Path) -> Batches:
    """Compares a training with one of a single rank on the same rows of all ranks."""
    batches = read_batches(notes, steps=STEPS, rows=ROWS)
    assert len(batches) == EPOCHS * STEPS
    kernel, bias = json.loads((notes / "weights").read_text())
    trained = np.array([*kernel, *bias])
    assert trained == pytest.approx(descend(batches, RATE, BALANCED * STEPS)[0], rel=1e-4)
    assert trained != pytest.approx(descend(batches, RATE, 0)[0], rel=1e-3), "weights make a difference"
    assert summary["guard"]["rows"][-1] == ROWS and summary["synchronized"]
    return batches


def test_slow_rank_gets_fewer_rows(fit: Any, trainings: Trainings, tmp_path: Path) -> None:
    summary = fit(tmp_path, np=2, steps_per_execution=4)
    batches = check(summary, tmp_path)
    first = summary["shares"][0]
    assert first["from_epoch"] == 2 and sum(first["rows"]) == ROWS
    assert 0.55 < first["rows"][0] / ROWS < 0.8, "three quarters by the time of a row, less by that of a step"
    (line,) = [line for line in trainings.lines if line.startswith("from epoch 2 on, rank 1 takes")]
    assert f"takes {first['rows'][1] / ROWS:.0%} of the rows (it has 0." in line
    assert line.endswith(f"of rank 0's speed), and rank 0 {first['rows'][0] / ROWS:.0%}")
    losses = np.reshape(descend(batches, RATE, BALANCED * STEPS)[1], (EPOCHS, STEPS)).sum(axis=1) / ROWS
    assert [epoch["loss"] for epoch in summary["epochs"]] == pytest.approx(losses, rel=1e-4)
    shares = {each["from_epoch"]: each["rows"][0] for each in summary["shares"]}
    expected = 195
    for epoch in range(BALANCED):
        rows = sum(len(batches[epoch * STEPS + step][0][0]) for step in range(STEPS))
        expected = shares.get(epoch + 1, expected)
        assert rows == expected
        statistic = float((tmp_path / f"statistic-{epoch}").read_text())
        assert statistic == pytest.approx(rows / ROWS), "statistics weigh as the rows that they are of"


def test_killed_epochs_are_resumed(fit: Any, tmp_path: Path) -> None:
    steps = [epoch * STEPS + 6 for epoch in KILLS.values()]
    how = {"np": 2, "checkpoint_every_steps": 4, "signals": {str(step): int(signal.SIGKILL) for step in steps}}
    for _ in KILLS:
        with pytest.raises(HopsError, match="SIGKILL"):
            fit(tmp_path, **how)
    summary = fit(tmp_path, **how)
    assert BALANCED * STEPS < summary["resumed_at_step"] < BALANCED * STEPS + 6
    assert summary["shares"][0]["from_epoch"] == 2
    check(summary, tmp_path)


def test_other_number_of_ranks_resumes_unequal_shares(fit: Any, tmp_path: Path) -> None:
    def attempt(slots: int) -> Any:
        services = {"ranks": json.dumps({"kind": "local", "slots": slots})}
        return fit(tmp_path, np=[2, 3], signals={str(STEPS + 3): int(signal.SIGTERM)}, services=services)

    with pytest.raises(Preempted, match="of epoch 2"):
        attempt(2)
    summary = attempt(3)
    assert summary["ranks"] == 3 and len(summary["shares"][0]["rows"]) == 2
    batches = check(summary, tmp_path)
    assert {len(by_rank) for by_rank in batches} == {2, 3}


class DoubleModel(keras.Model):  # type: ignore[misc]
    def train_step(self, data: Any) -> Any:
        super().train_step(data)
        return super().train_step(data)


def fit_plainly(examples: Path, folder: Path, how: str, **options: Any) -> list[dict[str, Any]]:
    """Fits on this rank in ways that ``BySpeed`` does not go with; returns what is said of the shares."""
    session = rank_session(examples, folder / str(hvd.rank()), **options)
    context = TrainContext(session)
    inputs = keras.Input((2,), name="numeric")
    outputs = keras.layers.Dense(1, "sigmoid")(inputs)
    model = (DoubleModel if how == "twice" else keras.Model)({"numeric": inputs}, outputs)
    optimizer = keras.optimizers.SGD(RATE, gradient_accumulation_steps=2 if how == "accumulated" else None)
    if how not in ("plain", "single"):
        optimizer = DistributedOptimizer(optimizer, op=hvd.Sum if how == "summed" else None)
    loss: Any = keras.losses.BinaryCrossentropy(reduction="sum") if how == "sum" else "binary_crossentropy"
    model.compile(optimizer, loss, steps_per_execution=STEPS if how == "once" else 1)
    try:
        context.fit(model, epochs=2, batch_size=BATCH, shares=BySpeed)
    finally:
        context.session.close()
    return [message for message in session.rank.channel.sent if message["type"] == "shares"]


UNSUITABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("the optimizer SGD exchanges no gradients; wrap it", {}),
    "accumulated": ("accumulates gradients of several batches", {}),
    "sum": ("the loss BinaryCrossentropy has reduction='sum'", {}),
    "summed": ("the DistributedOptimizer sums gradients: give it op=Average", {}),
    "twice": ("20 exchanges of gradients in 10 steps were counted", {}),
    "single": ("the strategy is 'single'; expected Horovod's ranks", {"strategy": "single"}),
    "deterministic": ("shares by speed and deterministic are set", {"deterministic": True}),
}


@pytest.mark.parametrize("how", UNSUITABLE)
def test_unsuitable_training_is_refused(two_ranks: Any, examples_folder: Path, tmp_path: Path, how: str) -> None:
    message, options = UNSUITABLE[how]
    assert all(message in error for error in two_ranks.errors(fit_plainly, examples_folder, tmp_path, how, **options))


def test_unmeasured_epoch_is_reported(two_ranks: Any, examples_folder: Path, tmp_path: Path) -> None:
    first, second = two_ranks(fit_plainly, examples_folder, tmp_path, "once")
    assert [warning["text"].startswith("the ranks' speeds were not measured in epoch 1") for warning in first] == [
        True
    ] and not second


@pytest.mark.parametrize(
    ("rows", "row_seconds", "shares"),
    [
        ((500, 499), [1, 2], (666, 333)),
        ((250, 250, 250, 251), [5, 5, 5, 1], (125, 125, 125, 626)),
        ((50, 50), [1, 1000], (90, 10)),
        ((10, 10), [1, 3], (10, 10)),
        ((495, 496), [1.0, 1.09], (495, 496)),
        ((666, 333), [1.0, 2.1], (666, 333)),
        ((666, 333), [1.0, 1.0], (500, 499)),
    ],
)
def test_rows_follow_measured_speeds(rows: tuple[int, ...], row_seconds: list[float], shares: tuple[int, ...]) -> None:
    assert divide_rows(rows, row_seconds, steps=10) == shares
