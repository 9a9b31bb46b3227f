"""Notices that a machine will be taken away: a training ends with a checkpoint, and then goes on as if undisturbed."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from airflow_hops.core.contract.artifacts import Artifact, HopsError, Preempted
from airflow_hops.ml.training.context import TrainContext
from airflow_hops.ml.training.keras import DistributedGradientTape, DistributedOptimizer
from tests.ml.train.trainings import Trainings

STEPS, EPOCHS = 10, 3
STEP_S = 0.02


def noticed(context: TrainContext, step: int) -> None:
    """Takes the time of a step; sends the try's notice, if it is due, at a moment within it.

    ``context.params``: ``notices``, of each try the step, the seconds after its start, and the rank that gets it, or
    None for the step's process; ``notes``, a folder with a file for each notice sent: number and step.
    """
    notes = Path(context.params["notes"])
    sent = len(list(notes.glob("*")))
    if sent < len(context.params["notices"]):
        notice = context.params["notices"][sent]
        start = context.resumed_from.position.step if context.resumed_from else 0
        if step == max(notice["step"], start + notice.get("at_least", 2)) and context.rank == (notice["rank"] or 0):
            pid = os.getppid() if notice["rank"] is None else os.getpid()

            def send() -> None:
                (notes / f"{sent}-{step}").touch()
                os.kill(pid, signal.SIGTERM)

            threading.Timer(notice["after_s"], send).start()
    time.sleep(STEP_S)


def network() -> Any:
    inputs = keras.Input((2,), name="numeric")
    hidden = keras.layers.Dense(8, activation="relu")(keras.layers.GaussianNoise(0.3)(inputs))
    hidden = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(hidden))
    return keras.Model({"numeric": inputs}, keras.layers.Dense(1, activation="sigmoid")(hidden))


def train(context: TrainContext) -> keras.Model:
    """A training by ``context.fit``."""

    class Notices(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            noticed(context, context.position.step + 1)

    model = network()
    model.compile(DistributedOptimizer(keras.optimizers.Adam(0.02)), "binary_crossentropy")
    context.fit(model, epochs=EPOCHS, batch_size=40, callbacks=[Notices()])
    return model


def train_by_oneself(context: TrainContext) -> keras.Model:
    """The same in a loop of one's own, whose ``except Exception`` catches no notice."""
    model, optimizer = network(), keras.optimizers.Adam(0.02)
    optimizer.build(model.trainable_variables)
    loss_function = keras.losses.BinaryCrossentropy()
    start = context.restore(model, optimizer)
    step = start.step

    @tf.function
    def train_step(features: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = loss_function(labels[:, tf.newaxis], model(features, training=True))
        tape = DistributedGradientTape(tape)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    for epoch in range(start.epoch, EPOCHS):
        context.begin_epoch(epoch)
        first = start.batch if epoch == start.epoch else 0
        for batch, (features, labels) in enumerate(
            context.examples("train", 40, shuffle=True, first_step=first), first + 1
        ):
            train_step({"numeric": features["numeric"]}, labels)
            step += 1
            noticed(context, step)
            if context.should_checkpoint(every=0):
                try:
                    context.checkpoint(model, step=step, epoch=epoch, batch=batch, optimizer=optimizer)
                except Exception:
                    return model
        context.checkpoint(model, step=step, epoch=epoch + 1, optimizer=optimizer)
    return model


@pytest.fixture(scope="module")
def fit(trainings: Trainings, write_examples: Callable[..., Artifact]) -> Callable[..., dict[str, Any]]:
    """Trains with a function of this module; returns the model's ``training.json``."""
    examples = write_examples(train=[301, 90], eval=[80])

    def fit(run_id: str, function: str = "train", **params: Any) -> dict[str, Any]:
        values = {"deterministic": True, "notices": [], "notes": "/nowhere", **params}
        folder = trainings.store.local(trainings(f"test_preemption:{function}", examples, run_id=run_id, **values))
        summary: dict[str, Any] = json.loads((folder / "training.json").read_text())
        for epoch in summary["epochs"]:
            del epoch["seconds"]
        return summary

    return fit


@pytest.fixture(scope="module")
def whole(fit: Any) -> dict[str, Any]:
    """A training that nothing happens to."""
    result: dict[str, Any] = fit("undisturbed")
    return result


def random_notices(count: int) -> list[dict[str, Any]]:
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"notices: random.Random({seed})")
    generator = random.Random(seed)
    steps = sorted(generator.sample(range(2, EPOCHS * STEPS), count))
    return [
        {"step": step, "after_s": generator.uniform(0, STEP_S), "rank": generator.choice((None, 0, 1))}
        for step in steps
    ]


def preempt(fit: Any, trainings: Trainings, notices: list[dict[str, Any]], notes: Path, **params: Any) -> Any:
    """Trains until done; checks what each notice leaves, and returns the outcome."""
    notes.mkdir()
    while True:
        try:
            outcome = fit(f"preempted-{notes.name}", notices=notices, notes=str(notes), **params)
        except Preempted as error:
            message = str(error)
        else:
            assert list(notes.iterdir()), "no notice was sent"
            return outcome
        assert "asked to end (SIGTERM), and all ranks have ended after" in message
        done = int(re.findall(r"\(step (\d+)\)", message)[-1])
        sent = max(int(note.name.partition("-")[2]) for note in notes.iterdir())
        assert done >= sent - 1, "no step that was done is lost"


def test_preempted_training_is_bit_identical(whole: Any, fit: Any, trainings: Trainings, tmp_path: Path) -> None:
    notices = [
        {"step": 3, "after_s": 0.01, "rank": None},
        {"step": 13, "after_s": 0.0, "rank": 1},
        {"step": EPOCHS * STEPS - 1, "after_s": 0.0, "rank": 0},
    ]
    outcome = preempt(fit, trainings, notices, tmp_path / "few")
    assert (outcome["checksum"], outcome["epochs"]) == (whole["checksum"], whole["epochs"])
    assert set(outcome["guard"]["rows"]) <= {391}
    assert outcome["resumed_at_step"] >= 13


@pytest.mark.scheduled(part="campaigns")
@pytest.mark.timeout(3600)
def test_campaign_of_notices(whole: Any, fit: Any, trainings: Trainings, tmp_path: Path, pytestconfig: Any) -> None:
    for number in range(-(-pytestconfig.getoption("kills") // 10)):
        outcome = preempt(fit, trainings, random_notices(10), tmp_path / f"many-{number}")
        print(f"{len(list((tmp_path / f'many-{number}').iterdir()))} notices", flush=True)
        assert (outcome["checksum"], outcome["epochs"]) == (whole["checksum"], whole["epochs"])


def test_own_loop_is_preempted_at_a_step(fit: Any, trainings: Trainings, tmp_path: Path) -> None:
    undisturbed = fit("own-undisturbed", "train_by_oneself")
    outcome = preempt(
        fit, trainings, [{"step": 5, "after_s": 0.0, "rank": None}], tmp_path / "own", function="train_by_oneself"
    )
    assert 5 <= outcome["resumed_at_step"] < STEPS
    assert outcome["checksum"] == undisturbed["checksum"]


def test_notice_before_the_first_step_is_a_failure(fit: Any, tmp_path: Path) -> None:
    with pytest.raises(HopsError, match="was ended by SIGTERM") as failure:
        fit("early", notices=[{"step": 1, "at_least": 1, "after_s": 0.0, "rank": None}], notes=str(tmp_path))
    assert failure.value.retryable and not isinstance(failure.value, Preempted)


def test_grace_too_short_for_a_checkpoint_is_reported(fit: Any, trainings: Trainings) -> None:
    fit("short", grace_s=0.1)
    lines = [line for line in trainings.lines if line.startswith("a checkpoint takes")]
    assert len(lines) == 1 and "more than the 0.1 s (grace_s) from SIGTERM to SIGKILL" in lines[0]
