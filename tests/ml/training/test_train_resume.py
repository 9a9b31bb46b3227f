"""Checkpoints and what comes of them: a training that was killed, or given notice, ends as one that was not."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
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

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput, HopsError, Preempted
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.ml.training.checkpoints import Position, Snapshot, copy_variables, read_checkpoint, write_checkpoint
from airflow_hops.ml.training.context import TrainContext
from airflow_hops.ml.training.keras import DistributedGradientTape, DistributedOptimizer, Guard
from airflow_hops.ml.training.rank import Rank
from airflow_hops.ml.training.rank_state import seed_rank
from airflow_hops.ml.training.session import Session
from airflow_hops.ml.training.shares import ExamplesSource
from tests.ml.training.trainings import Trainings, rank_session

STEPS, EPOCHS, BATCH = 10, 3, 40


class Disturbances:
    """Kills a rank, or gives notice to a rank or to the step's process, once in each of the first tries.

    ``context.params``: ``disturbances``, of each try the signal, the steps after its start, and the rank that gets it,
    or None for the step's process; ``notes``, a folder with a file for each one: number and step; ``checkpoints``, the
    folder of the training's checkpoints, of which there is one before a rank is killed.
    """

    def __init__(self, context: TrainContext) -> None:
        self._context, params = context, context.params
        self._notes, self._checkpoints = Path(params["notes"]), Path(params["checkpoints"])
        self._sent = len(list(self._notes.glob("*")))
        due = params["disturbances"][self._sent :]
        self._due = due[0] if due else None
        self._start = context.resumed_from.position.step if context.resumed_from else 0
        self._heard, heed = threading.Event(), signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda *received: (self._heard.set(), heed(*received)))  # type: ignore[operator]

    @property
    def steps_per_execution(self) -> int:
        """Number of steps that this try takes at once."""
        return int(self._due.get("steps_per_execution", 1)) if self._due else 1

    def happen(self, step: int) -> None:
        """Sends the signal if it is due after a step; a notice has arrived when this returns."""
        due = self._due
        if due is None or step < self._start + due["after"] or self._context.rank != (due["rank"] or 0):
            return
        self._due = None
        if due["signal"] == signal.SIGKILL:
            wait_for(lambda: any(self._checkpoints.rglob("checkpoint.json")), "a checkpoint", 120)
        (self._notes / f"{self._sent}-{step}").touch()
        os.kill(os.getppid() if due["rank"] is None else os.getpid(), due["signal"])
        wait_for(self._heard.is_set, "the notice", 60)


def draw() -> tuple[float, ...]:
    generator = tf.random.get_global_generator()
    return random.random(), np.random.random(), float(generator.uniform([])), float(keras.random.uniform([]))


def train(context: TrainContext) -> keras.Model:
    """The flights model's layers and a batch normalization."""
    disturbances = Disturbances(context)
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
        steps_per_execution=disturbances.steps_per_execution,
    )
    model.own = {"noise": [tf.random.Generator.from_seed(context.rank)]}
    callbacks = [
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10.0),
        keras.callbacks.EarlyStopping("val_loss", patience=50, restore_best_weights=True),
        # The context counts after the user's callbacks.
        keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: model.own["noise"][0].uniform([]),
            on_train_batch_end=lambda batch, logs: disturbances.happen(context.position.step + 1),
        ),
    ]
    context.fit(model, epochs=EPOCHS, batch_size=BATCH, callbacks=callbacks)
    draws = [*draw(), float(model.own["noise"][0].uniform([]))]
    facts = {"draws": draws, "learning_rate": float(model.optimizer.learning_rate.numpy())}
    (context.checkpoint_dir.parent / f"facts-{context.rank}.json").write_text(json.dumps(facts))
    return model


def train_by_oneself(context: TrainContext) -> keras.Model:
    """A training loop of one's own, whose ``except Exception`` catches no notice."""
    disturbances = Disturbances(context)
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

    for epoch in range(start.epoch, 2):
        context.begin_epoch(epoch)
        first = start.batch if epoch == start.epoch else 0
        dataset = context.examples("train", BATCH, shuffle=True, first_step=first)
        for batch, (features, labels) in enumerate(dataset, first + 1):
            loss = train_step(features, labels)
            step += 1
            disturbances.happen(step)
            if context.should_checkpoint(every=3):
                context.report(step, loss=loss)
                try:
                    context.checkpoint(model, step=step, epoch=epoch, batch=batch, optimizer=optimizer)
                except Exception:
                    return model
            if context.should_stop(every=5):
                return model
        metrics = {"loss": float(loss)}
        context.checkpoint(model, step=step, epoch=epoch + 1, optimizer=optimizer, metrics=metrics)
    return model


Fit = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def fit(trainings: Trainings, two_files: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Fit:
    """Trains with a function of this module until it has ended, whatever happens; answers what came of it."""

    def fit(run_id: str, *disturbances: dict[str, Any], function: str = "train", **params: Any) -> dict[str, Any]:
        notes = tmp_path_factory.mktemp("notes")
        checkpoints = trainings.store.internal("_state", "checkpoints", "tests", run_id).removeprefix("file://")
        values = {"deterministic": True, "checkpoint_every_steps": 4, **params}
        values |= {"disturbances": disturbances, "notes": str(notes), "checkpoints": checkpoints}
        began, errors = [], []
        while True:
            try:
                model = trainings(f"test_train_resume:{function}", two_files, run_id=run_id, **values)
            except HopsError as error:
                _check_error(error, notes, disturbances[len(errors)], len(errors) + 1)
                errors.append(error)
                continue
            finally:
                began += [line for line in trainings.lines if line.startswith("resuming")]
            assert len(began) == len(errors) and len(list(notes.iterdir())) == len(disturbances)
            return {**_outcome(trainings.store.local(model)), "errors": errors, "began": began}

    return fit


def _check_error(error: HopsError, notes: Path, disturbance: dict[str, Any], number: int) -> None:
    assert error.retryable and len(list(notes.iterdir())) == number, error
    if disturbance["signal"] == signal.SIGKILL:
        assert "was ended by SIGKILL" in str(error)
        return
    assert isinstance(error, Preempted)
    assert "asked to end (SIGTERM), and all ranks have ended after" in str(error)
    done = int(re.findall(r"\(step (\d+)\)", str(error))[-1])
    sent = max(int(note.name.partition("-")[2]) for note in notes.iterdir())
    assert done >= sent, "no step that was done is lost"


def _outcome(folder: Path) -> dict[str, Any]:
    summary = json.loads((folder / "training.json").read_text())
    last = max((folder / "checkpoints").iterdir())
    return {
        "summary": summary,
        "epochs": [{name: v for name, v in epoch.items() if name != "seconds"} for epoch in summary["epochs"]],
        "variables": (last / "variables.npz").read_bytes(),
        "facts": [json.loads(path.read_text()) for path in sorted(folder.glob("facts-*.json"))],
    }


@pytest.fixture(scope="module")
def whole(fit: Fit, trainings: Trainings) -> dict[str, Any]:
    """A training that nothing happens to, with what it has said."""
    return {**fit("whole", grace_s=0.001), "lines": list(trainings.lines)}


def assert_as_undisturbed(whole: dict[str, Any], resumed: dict[str, Any]) -> None:
    """Compares weights, generators, callbacks, metrics and counts of rows."""
    for name in ("variables", "epochs", "facts"):
        assert resumed[name] == whole[name], name
    assert resumed["summary"]["checksum"] == whole["summary"]["checksum"]
    assert set(resumed["summary"]["guard"]["rows"]) <= {391}
    assert resumed["summary"]["synchronized"] is True
    assert any("of epoch" in line for line in resumed["began"]), f"no epoch was resumed within: {resumed['began']}"


def kill(after: int, rank: int = 1, **options: Any) -> dict[str, Any]:
    return {"signal": int(signal.SIGKILL), "after": after, "rank": rank, **options}


def notice(after: int, rank: int | None = None) -> dict[str, Any]:
    return {"signal": int(signal.SIGTERM), "after": after, "rank": rank}


def test_undisturbed_training_describes_itself(whole: dict[str, Any]) -> None:
    summary = whole["summary"]
    assert summary["deterministic"] is True and summary["threads_per_rank"] == 1
    assert len(whole["epochs"]) == EPOCHS and summary["guard"]["rows"] == [391] * EPOCHS
    first, second = (rank["draws"] for rank in whole["facts"])
    assert all(mine != other for mine, other in zip(first, second, strict=True)), "ranks draw their own numbers"
    assert whole["facts"][0]["learning_rate"] == pytest.approx(0.005)
    lines = [line for line in whole["lines"] if line.startswith("a checkpoint takes")]
    assert len(lines) == 1 and "more than the 0.001 s (grace_s) from SIGTERM to SIGKILL" in lines[0]


def test_disturbed_training_is_bit_identical(whole: dict[str, Any], fit: Fit) -> None:
    # The ranks agree after steps 1, 3, 7, 15 … of a try.
    resumed = fit("disturbed", kill(8, steps_per_execution=3), notice(6))
    assert_as_undisturbed(whole, resumed)


@pytest.mark.scheduled(part="campaigns")
@pytest.mark.timeout(3600)
def test_campaign_of_kills_and_notices(whole: dict[str, Any], fit: Fit, pytestconfig: Any) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"disturbances: random.Random({seed})")
    generator = random.Random(seed)
    for number in range(-(-pytestconfig.getoption("kills") // 3)):
        rank, steps_per_execution = generator.randrange(2), generator.choice((1, 3))
        disturbances = [
            kill(generator.randrange(6, 9), rank, steps_per_execution=steps_per_execution),
            notice(generator.randrange(2, 8), generator.choice((None, 0, 1))),
            notice(generator.randrange(2, 4), generator.choice((None, 0, 1))),
        ]
        assert_as_undisturbed(whole, fit(f"many-{number}", *disturbances))


def test_disturbed_loop_is_bit_identical(fit: Fit) -> None:
    options = {"function": "train_by_oneself"}
    whole, resumed = fit("own-whole", **options), fit("own-disturbed", notice(5, rank=1), kill(5), **options)
    assert_as_undisturbed(whole, resumed)
    stopped = int(re.findall(r"\(step (\d+)\)", str(resumed["errors"][0]))[-1])
    assert 5 <= stopped < STEPS and stopped <= resumed["summary"]["resumed_at_step"] < stopped + 5


def test_notice_before_the_first_step_is_a_failure(trainings: Trainings, two_files: Artifact) -> None:
    with pytest.raises(HopsError, match="was ended by SIGTERM") as failure:
        trainings("test_train_resume:end_at_once", two_files)
    assert failure.value.retryable and not isinstance(failure.value, Preempted)


def end_at_once(context: TrainContext) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_seed_determines_the_numbers_of_a_rank() -> None:
    def drawn(seed: int, rank: int) -> tuple[float, ...]:
        seed_rank(seed, rank)
        return draw()

    assert drawn(0, 0) == drawn(0, 0)
    for numbers in (drawn(0, 1), drawn(7, 0)):
        assert all(mine != other for mine, other in zip(numbers, drawn(0, 0), strict=True))


def train_on_uneven_batches(examples: Path, folder: Path) -> tuple[Any, str, str]:
    """A ``model.fit`` of one's own, of the examples, and with data of one's own, of which rank 1 has less."""
    context = TrainContext(rank_session(examples, folder / str(hvd.rank())))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", jit_compile=False)
    callbacks = context.callbacks(epochs=1, reader=context.reader("train"))
    rows = context.examples("train", BATCH).map(lambda features, label: (features["numeric"], label))
    model.fit(rows, verbose=0, callbacks=callbacks)
    (guard,) = (each for each in callbacks if isinstance(each, Guard))
    batches = tf.data.Dataset.from_tensors((tf.ones([4, 2]), tf.ones([4, 1]))).repeat(5 - 2 * hvd.rank())
    with pytest.raises(BadInput) as early:
        model.fit(batches, verbose=0, callbacks=context.callbacks(epochs=1))
    unknown = batches.filter(lambda x, y: True)
    context.session.options = replace(context.session.options, guard_every_steps=0)
    with pytest.raises(BadInput) as within:
        model.fit(unknown, verbose=0, callbacks=context.callbacks(epochs=1))
    context.session.close()
    return guard.rows, str(early.value), str(within.value)


def test_own_fit_is_guarded(two_ranks: Any, two_files: Artifact, shared_store: ArtifactStore, tmp_path: Path) -> None:
    folder = shared_store.local(two_files)
    for rows, early, within in two_ranks(train_on_uneven_batches, folder, tmp_path):
        assert rows == [391]
        assert "would take different numbers of steps an epoch (rank 0: 5, rank 1: 3)" in early
        assert "took different numbers of steps in epoch 1 (rank 0: 5, rank 1: 3)" in within
        assert "the batches of rank 1 ran out first" in within


def test_damaged_checkpoint_falls_back_to_the_previous(own_process: Any, tmp_path: Path, small_folder: Path) -> None:
    own_process(_befall, tmp_path, small_folder)


def _befall(folder: Path, small: Path) -> None:
    """In one rank: checkpoints of another number of ranks, of weights that are no numbers, and on a full disk."""
    hvd.init()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    checkpoints = small / "checkpoints"
    good = Snapshot(Position(step=14, epoch=1, batch=4), copy_variables(model), (b"", b""))
    assert write_checkpoint(checkpoints, good, keep=3).name == "step-00000014"
    large = replace(good, position=Position(step=20), variables={"model-0000|kernel": np.zeros(1 << 20)})
    with pytest.raises(HopsError, match="No space left on device") as full:
        write_checkpoint(checkpoints, large, keep=3)
    assert not isinstance(full.value, BadInput)
    assert f"{checkpoints}/step-00000020: the checkpoint cannot be written" in str(full.value)
    unusable = replace(good, position=Position(step=21), variables={"model-0000|kernel": np.array([np.nan])})
    with pytest.raises(
        BadInput, match=r"variable 'kernel' holds values that are not numbers after epoch 0 \(step 21\)"
    ):
        write_checkpoint(checkpoints, unusable, keep=3)
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000014"]
    for variable in model.weights:
        variable.assign(variable + 1)
    resumed_from = read_checkpoint(max(checkpoints.glob("step-*/checkpoint.json")).parent)
    training = TrainContext(Session(Rank(), TrainingOptions(), ExamplesSource(), folder, resumed_from))
    position = training.restore(model)
    assert (position.step, position.epoch, position.batch) == (14, 1, 4), "of two ranks: the rest of the epoch follows"
    restored = copy_variables(model)
    assert all(np.array_equal(restored[name], values) for name, values in good.variables.items())
