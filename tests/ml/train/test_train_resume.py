"""Checkpoints and what comes of them: a training that was killed ends as one that was not."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf
from waiting import wait_for

from airflow_hops.core.contract.artifacts import Artifact, BadInput, HopsError
from airflow_hops.core.contract.training import TrainingOptions
from airflow_hops.ml.training.checkpoints import CheckpointWriter, Position, Snapshot, copy_variables, read_checkpoint
from airflow_hops.ml.training.context import TrainContext
from airflow_hops.ml.training.keras import DistributedGradientTape, DistributedOptimizer, Guard
from airflow_hops.ml.training.rank import Rank
from airflow_hops.ml.training.rank_state import seed_rank
from airflow_hops.ml.training.session import Session
from airflow_hops.ml.training.shares import Source
from tests.ml.train.trainings import Trainings

STEPS, EPOCHS = 10, 3


class Kill(keras.callbacks.Callback):
    """Kills this rank's process after so many steps, once there is a checkpoint, which is written beside the training.

    Args:
        context: The rank's.
        step: After how many.
        marker: File that says that it was done.
        checkpoints: Folder of the training's checkpoints.
    """

    def __init__(self, context: TrainContext, step: int, marker: Path, checkpoints: Path) -> None:
        super().__init__()
        self._context, self._step, self._marker, self._checkpoints = context, step, marker, checkpoints

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._context.position.step + 1 >= self._step:  # the context counts after the user's callbacks
            wait_for(lambda: any(self._checkpoints.rglob("checkpoint.json")), "a checkpoint", 120)
            self._marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Draws(keras.callbacks.Callback):
    """Draws from each generator at an epoch's end."""

    def __init__(self) -> None:
        super().__init__()
        self.last: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.last = draw()


def draw() -> list[float]:
    """A number of each generator."""
    return [
        random.random(),
        np.random.random(),
        float(tf.random.get_global_generator().uniform([])),
        float(keras.random.uniform([])),
    ]


def train(context: TrainContext) -> keras.Model:
    """The flights model's layers and a batch normalization.

    ``context.params``: ``epochs``, ``batch_size``; ``kills``, of each try the rank, the step, and steps per execution;
    ``markers``, a folder, and ``checkpoints``, that of the training's own.
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
        callbacks.append(Kill(context, kills[attempt]["step"], markers / str(attempt), Path(params["checkpoints"])))
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
    callbacks = context.callbacks(epochs=1, reader=context.reader("train"))
    model.fit(examples, verbose=0, callbacks=callbacks)
    (guard,) = (each for each in callbacks if isinstance(each, Guard))
    print(f"rows over all ranks: {guard.rows}", flush=True)
    batches = tf.data.Dataset.from_tensors((tf.ones([4, 2]), tf.ones([4, 1]))).repeat(5 - 2 * context.rank)
    try:
        model.fit(batches, verbose=0, callbacks=context.callbacks(epochs=1))
    except BadInput as error:
        print(f"told before: {error}", flush=True)
    unknown = batches.filter(lambda x, y: True)
    model.fit(unknown, verbose=0, callbacks=context.callbacks(epochs=1, guard_every_steps=0))
    return model


@pytest.fixture(scope="module")
def fit(trainings: Trainings, write_examples: Callable[..., Artifact]) -> Callable[..., dict[str, Any]]:
    """Trains with a function of this module, and answers what came of it."""
    examples = write_examples(train=[301, 90], eval=[80])

    def fit(run_id: str, *, function: str = "train", epochs: int = EPOCHS, **params: Any) -> dict[str, Any]:
        params = {"epochs": epochs, "batch_size": 40, "deterministic": True, "checkpoint_every_steps": 4, **params}
        model = trainings(f"test_train_resume:{function}", examples, run_id=run_id, **params)
        return _outcome(trainings.store.local(model))

    return fit


@pytest.fixture(scope="module")
def whole(fit: Any) -> dict[str, Any]:
    """A training that nothing happens to."""
    outcome: dict[str, Any] = fit("whole")
    return outcome


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.scheduled(part="campaigns"))], ids="killed {}".format)
def resumed(request: Any, fit: Any, trainings: Trainings, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same with a rank killed at a random step of an epoch, or of each of two, every try resuming."""
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"steps at which ranks are killed: random.Random({seed})")
    generator = random.Random(seed)
    kills = [
        {
            "step": epoch * STEPS + generator.randrange(1 if epoch else 6, STEPS + 1),
            "rank": generator.randrange(2),
            "steps_per_execution": generator.choice((1, 3)),
        }
        for epoch in range(request.param)
    ]
    run_id = f"killed-{request.param}"
    markers = tmp_path_factory.mktemp("kills")
    began = []
    checkpoints = trainings.store.uri("_state", "checkpoints", "tests", run_id).removeprefix("file://")
    values = {"kills": kills, "markers": str(markers), "checkpoints": checkpoints}
    for _ in kills:
        with pytest.raises(HopsError, match="was ended by SIGKILL") as failure:
            fit(run_id, **values)
        assert failure.value.retryable
        began += [line for line in trainings.lines if line.startswith("resuming")]
    outcome = fit(run_id, **values)
    began += [line for line in trainings.lines if line.startswith("resuming")]
    assert len(began) == len(kills)
    assert any("of epoch" in line for line in began), f"no epoch was resumed within: {began}"
    return outcome


def test_resumed_training_is_bit_identical(whole: Any, resumed: Any) -> None:
    assert whole["summary"]["deterministic"] is True and whole["summary"]["threads_per_rank"] == 1
    assert resumed["variables"] == whole["variables"]
    assert resumed["summary"]["checksum"] == whole["summary"]["checksum"]


def test_seed_determines_the_numbers_of_a_rank() -> None:
    def drawn(seed: int, rank: int) -> list[float]:
        seed_rank(seed, rank)
        return draw()

    assert drawn(0, 0) == drawn(0, 0)
    for numbers in (drawn(0, 1), drawn(7, 0)):
        assert all(mine != other for mine, other in zip(numbers, drawn(0, 0), strict=True))


def test_resumed_epoch_has_metrics_of_the_whole_epoch(whole: Any, resumed: Any) -> None:
    assert len(whole["epochs"]) == EPOCHS
    assert resumed["epochs"] == whole["epochs"]


def test_generators_and_callbacks_resume_on_every_rank(whole: Any, resumed: Any) -> None:
    assert resumed["facts"] == whole["facts"]
    first, second = (rank["draws"] for rank in whole["facts"])
    assert all(mine != other for mine, other in zip(first, second, strict=True)), "ranks draw their own numbers"
    assert whole["facts"][0]["learning_rate"] == pytest.approx(0.005)


def test_the_guard_counts_every_row_of_a_resumed_epoch_once(whole: Any, resumed: Any) -> None:
    assert whole["summary"]["guard"]["rows"] == [391] * EPOCHS
    assert set(resumed["summary"]["guard"]["rows"]) == {391}
    assert resumed["summary"]["synchronized"] is True


def test_custom_loop_is_resumed_within_an_epoch(fit: Any, tmp_path: Path) -> None:
    values: dict[str, Any] = {"function": "train_by_oneself", "epochs": 2}
    whole = fit("own-whole", **values)
    values |= {"step": 17, "marker": str(tmp_path / "killed")}
    with pytest.raises(HopsError, match="was ended by SIGKILL"):
        fit("own-killed", **values)
    resumed = fit("own-killed", **values)
    assert 9 <= resumed["summary"]["resumed_at_step"] <= 15
    assert resumed["variables"] == whole["variables"]
    assert resumed["epochs"] == whole["epochs"]


def test_own_fit_is_guarded(fit: Any, trainings: Trainings) -> None:
    began = time.monotonic()
    with pytest.raises(BadInput) as failure:
        fit("uneven", function="train_on_uneven_batches", stall_timeout_s=200)
    assert "took different numbers of steps in epoch 1 (rank 0: 5, rank 1: 3)" in str(failure.value)
    assert "the batches of rank 1 ran out first" in str(failure.value)
    assert time.monotonic() - began < 100, "nobody waits for the stall timeout"
    assert "rows over all ranks: [391]" in trainings.lines
    lines = [line for line in trainings.lines if line.startswith("told before")]
    assert "would take different numbers of steps an epoch (rank 0: 5, rank 1: 3)" in lines[0]


def test_damaged_checkpoint_falls_back_to_the_previous(own_process: Any, tmp_path: Path, small_folder: Path) -> None:
    own_process(_befall, tmp_path, small_folder)


def _befall(folder: Path, small: Path) -> None:
    """In one rank: checkpoints of another number of ranks, of weights that are no numbers, and on a full disk."""
    hvd.init()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    retained: list[str] = []
    checkpoints = small / "checkpoints"
    writer = CheckpointWriter(checkpoints, 3, lambda path: retained.append(path.name))
    good = Snapshot(Position(step=14, epoch=1, batch=4), copy_variables(model), (b"", b""))
    writer.write(good)
    writer.finish()
    assert retained == ["step-00000014"]
    writer.write(replace(good, position=Position(step=20), variables={"model-0000|kernel": np.zeros(1 << 20)}))
    with pytest.raises(HopsError, match="No space left on device") as full:
        writer.finish()
    assert not isinstance(full.value, BadInput)
    assert f"{checkpoints}/step-00000020: the checkpoint cannot be written" in str(full.value)
    writer.write(replace(good, position=Position(step=21), variables={"model-0000|kernel": np.array([np.nan])}))
    with pytest.raises(
        BadInput, match=r"variable 'kernel' holds values that are not numbers after epoch 0 \(step 21\)"
    ):
        writer.finish()
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000014"]
    for variable in model.weights:
        variable.assign(variable + 1)
    resumed_from = read_checkpoint(max(checkpoints.glob("step-*/checkpoint.json")).parent)
    training = TrainContext(Session(Rank(), TrainingOptions(), Source(), folder, resumed_from))
    position = training.restore(model)
    assert (position.step, position.epoch, position.batch) == (14, 1, 4), "of two ranks: the rest of the epoch follows"
    restored = copy_variables(model)
    assert all(np.array_equal(restored[name], values) for name, values in good.variables.items())


def _outcome(folder: Path) -> dict[str, Any]:
    summary = json.loads((folder / "training.json").read_text())
    last = max((folder / "checkpoints").iterdir())
    return {
        "summary": summary,
        "epochs": [{name: v for name, v in epoch.items() if name != "seconds"} for epoch in summary["epochs"]],
        "variables": (last / "variables.npz").read_bytes(),
        "facts": [json.loads(path.read_text()) for path in sorted(folder.glob("facts-*.json"))],
    }
