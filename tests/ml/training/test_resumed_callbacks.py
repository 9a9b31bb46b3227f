"""A training that ends after any step and is resumed has the bytes of one that was not interrupted, or is refused.

The space: what Keras's documentation shows of optimizers, schedules, callbacks, metrics, random layers, and training
steps of one's own. A training writes a checkpoint after each step; a new one is resumed from each, and compared.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf

from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.training import training_state
from airflow_hops.ml.training.checkpoints import read_checkpoint
from airflow_hops.ml.training.context import TrainContext
from airflow_hops.ml.training.keras import DistributedOptimizer
from airflow_hops.ml.training.object_states import ObjectStates
from airflow_hops.ml.training.rank_state import seed_rank
from tests.ml.training.trainings import rank_session

STEPS, EPOCHS = 3, 3
callbacks, layers, optimizers = keras.callbacks, keras.layers, keras.optimizers


class Everything(callbacks.Callback):
    """Sets the learning rate by each kind of state that a callback may have."""

    def __init__(self) -> None:
        super().__init__()
        self.recent: Any = collections.deque(maxlen=3)
        self.mean, self.counts = keras.metrics.Mean(), {"steps": 0, "mean": keras.metrics.Mean()}
        self.draws = [random.Random(3), np.random.default_rng(3), np.random.RandomState(3)]
        self.generator, self.seed = tf.random.Generator.from_seed(3), keras.random.SeedGenerator(3)

    def on_train_begin(self, logs: Any = None) -> None:
        self.losses: list[float] = []
        self.weights: Any = None
        self.average = Average()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(logs["loss"])
        self.recent.append(logs["loss"])
        self.mean.update_state(logs["loss"])
        self.counts["steps"] += 1
        self.average.add(logs["loss"])
        rates = [*self.losses, *self.recent, self.mean.result(), self.counts["steps"], self.average.value, batch]
        rates += [self.draws[0].random(), self.draws[1].random(), self.draws[2].random()]
        rates += [self.generator.uniform([]), keras.random.uniform([], seed=self.seed)]
        self.model.optimizer.learning_rate = 0.01 * float(sum(map(float, rates)))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        now = self.model.get_weights()
        self.weights = now if self.weights is None else [(a + b) / 2 for a, b in zip(self.weights, now, strict=True)]

    def on_train_end(self, logs: Any = None) -> None:
        self.model.set_weights(self.weights)


class Average:
    value = 0.0

    def add(self, value: float) -> None:
        self.value = 0.9 * self.value + 0.1 * value


class AtBeginnings(callbacks.Callback):
    """Changes the learning rate when the training and epochs begin, and by the number of the batch."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.5

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) * 0.7

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) * (1 + batch) / (2 + batch)


def counting() -> list[Any]:
    """A function that counts in a list of its closure."""
    calls, models = [0], []

    def count(epoch: int, rate: float) -> float:
        calls[0] += 1
        return 0.1 * calls[0]

    return [
        callbacks.LearningRateScheduler(count),
        callbacks.LambdaCallback(on_train_end=lambda logs: models.append(1)),
    ]


class HalfForgetting(keras.metrics.Metric):
    """A metric that an epoch does not reset."""

    def __init__(self, **named: Any) -> None:
        super().__init__(name="half", **named)
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, labels: Any, predictions: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(keras.ops.sum(predictions))

    def result(self) -> Any:
        return self.total

    def reset_state(self) -> None:
        self.total.assign(self.total / 2)


class TwoOptimizers(keras.Model):
    """A training step of one's own, with two optimizers, a variable and a generator of TensorFlow's, and a number."""

    def __init__(self, noise: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.hidden, self.last = layers.Dense(4, "tanh"), layers.Dense(1, "sigmoid")
        self.others = {"hidden": [DistributedOptimizer(optimizers.Adam(0.1))]}
        self.generator, self.noise = tf.random.Generator.from_seed(3), noise
        self.calls, self.steps = tf.Variable(0.0, trainable=False), 0

    def call(self, features: Any) -> Any:
        return self.last(self.hidden(features["numeric"]))

    def train_step(self, data: Any) -> Any:
        features, labels = data[:2]
        self.calls.assign_add(0.1)
        self.steps += bool(self.run_eagerly)  # a graph has the value of when it was made
        noise = self.noise() if self.noise else self.generator.normal([])
        with tf.GradientTape() as tape:
            differences = self(features, training=True)[:, 0] - tf.cast(labels, tf.float32)
            loss = tf.reduce_mean(differences**2) * (noise + self.calls + self.steps)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.others["hidden"][0].apply_gradients(zip(gradients[:2], self.trainable_weights[:2], strict=True))
        self.optimizer.apply_gradients(zip(gradients[2:], self.trainable_weights[2:], strict=True))
        return {"loss": loss}

    def test_step(self, data: Any) -> Any:
        return {"loss": 0.0}


def _model(optimizer: Any, hidden: Any, *, eager: bool = True, **named: Any) -> keras.Model:
    numeric = keras.Input((2,), name="numeric")
    result = functools.reduce(lambda value, layer: layer(value), hidden or [layers.Dense(4, "tanh")], numeric)
    model = keras.Model({"numeric": numeric}, layers.Dense(1, "sigmoid")(result))
    model.compile(DistributedOptimizer(optimizer), "binary_crossentropy", run_eagerly=eager, **named)
    return model


def _own_step(*, eager: bool, noise: Callable[[], Any] | None = None) -> keras.Model:
    model = TwoOptimizers(noise)
    model.compile(DistributedOptimizer(optimizers.Adam(0.02)), run_eagerly=eager)
    return model


Case = tuple[Callable[[], keras.Model], Callable[[], list[Any]]]


def case(
    optimizer: Callable[[], Any] = lambda: optimizers.SGD(0.5),
    users: Callable[[], list[Any]] = list,
    hidden: Callable[[], Any] = lambda: None,
    metrics: Callable[[], list[Any]] = list,
    **named: Any,
) -> Case:
    """A model of these parts, and callbacks."""
    return lambda: _model(optimizer(), hidden(), metrics=metrics(), **named), users


def averaging(**named: Any) -> Any:
    return optimizers.SGD(0.5, use_ema=True, ema_momentum=0.8, **named)


def early_stopping(**named: Any) -> Any:
    return callbacks.EarlyStopping("loss", patience=1, min_delta=10.0, restore_best_weights=True, **named)


def plateau() -> Any:
    return callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=10.0, cooldown=1)


SEED: dict[str, Case] = {
    "any state, beginnings": case(
        users=lambda: [Everything(), AtBeginnings(), callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7)]
    ),
    "closures, stopping": case(users=lambda: [*counting(), early_stopping(), plateau()]),
    "averages": case(
        averaging,
        lambda: [callbacks.SwapEMAWeights(swap_on_epoch=True), callbacks.History()],
    ),
    "own step": (functools.partial(_own_step, eager=False), list),
    "own eager step": (functools.partial(_own_step, eager=True, noise=lambda: tf.random.normal([])), list),
    "random layers, metric": case(
        lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.05, gradient_accumulation_steps=2)),
        lambda: [],
        lambda: [layers.GaussianNoise(0.5), layers.BatchNormalization(), layers.Dropout(0.5)],
        lambda: [HalfForgetting()],
        eager=False,
    ),
}
OPTIMIZERS = ["Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lamb", "Lion", "Muon", "Nadam"]
OPTIMIZERS += ["RMSprop", "SGD", "ScheduleFreeAdamW"]
SCHEDULES: dict[str, Callable[[], Any]] = {
    "cosine": lambda: optimizers.schedules.CosineDecay(0.0, 10, warmup_target=0.5, warmup_steps=4),
    "restarts": lambda: optimizers.schedules.CosineDecayRestarts(0.5, 4),
    "exponential": lambda: optimizers.schedules.ExponentialDecay(0.5, 3, 0.5, True),
    "inverse": lambda: optimizers.schedules.InverseTimeDecay(0.5, 3, 0.5),
    "piecewise": lambda: optimizers.schedules.PiecewiseConstantDecay([3, 7], [0.5, 0.1, 0.01]),
    "polynomial": lambda: optimizers.schedules.PolynomialDecay(0.5, 8, cycle=True),
}
CAMPAIGN: dict[str, Case] = {
    **{
        name: case(functools.partial(getattr(optimizers, name), 0.05))
        for name in OPTIMIZERS
        if hasattr(optimizers, name)
    },
    **{name: case(lambda make=make: optimizers.SGD(make())) for name, make in SCHEDULES.items()},
    "amsgrad": case(lambda: optimizers.Adam(0.05, amsgrad=True, global_clipnorm=0.1)),
    "nesterov": case(lambda: optimizers.SGD(0.5, 0.9, nesterov=True, clipnorm=0.5, weight_decay=0.01)),
    "overwritten averages": case(lambda: averaging(ema_overwrite_frequency=3)),
    "swapped averages": case(averaging, lambda: [callbacks.SwapEMAWeights()]),
    "several steps": case(lambda: optimizers.Adam(0.05), eager=False, steps_per_execution=3),
    "late stopping": case(users=lambda: [early_stopping(start_from_epoch=1, baseline=0.01)]),
    "recurrent": case(hidden=lambda: [layers.Reshape((2, 1)), layers.LSTM(3, dropout=0.3, recurrent_dropout=0.3)]),
    "spectral": case(hidden=lambda: [layers.SpectralNormalization(layers.Dense(6))]),
    "augmentation": case(
        hidden=lambda: [
            layers.Reshape((2, 1, 1)), layers.RandomFlip(), layers.RandomRotation(0.3), layers.RandomBrightness(0.3),
            layers.RandomContrast(0.2), layers.Flatten(),
        ]
    ),
    "progress": case(users=lambda: [callbacks.ProgbarLogger()]),
    "metrics": case(metrics=lambda: [keras.metrics.AUC(), keras.metrics.Precision(), keras.metrics.MeanIoU(2), "mae"]),
}  # fmt: skip


def _train(examples: Path, folder: Path, parts: Case, resumed_from: Path | None = None) -> dict[str, Any]:
    keras.utils.clear_session(free_memory=False)
    seed_rank(3, 0)
    checkpoint = read_checkpoint(resumed_from) if resumed_from else None
    session = rank_session(examples, folder, resumed_from=checkpoint, seed=3, checkpoint_every_steps=1)
    context = TrainContext(session)
    model, users = parts[0](), parts[1]()
    try:
        history = context.fit(model, epochs=EPOCHS, batch_size=20, callbacks=users)
    finally:
        context.session.close()
    weights = [variable.numpy().tobytes() for variable in [*model.weights, *model.optimizer.variables]]
    draws = [random.random(), np.random.random(), float(keras.random.uniform([])), float(tf.random.uniform([]))]
    metrics = [{name: value for name, value in epoch.items() if name != "seconds"} for epoch in history]
    histories = [each.history for each in users if isinstance(each, callbacks.History)]
    return {"weights": weights, "draws": draws, "metrics": metrics, "epoch": session.state.epoch, "history": histories}


def _resume_all(examples: Path, folder: Path, cases: str, steps: list[int]) -> dict[str, list[str]]:
    """Returns what differs, by case."""
    hvd.init()
    training_state._KEPT = 1000
    result = {}
    for name, parts in globals()[cases].items():
        place = folder / name
        whole, differing = _train(examples, place, parts), []
        for path in sorted(place.glob("checkpoints/step-*")):
            if (step := int(path.name.removeprefix("step-"))) in steps:
                resumed = _train(examples, folder / f"{name} {step}", parts, path)
                differing += [f"{key} after step {step}" for key in whole if whole[key] != resumed[key]]
        result[name] = differing
    return result


@pytest.fixture(scope="module")
def small_examples(write_examples: Any, shared_store: ArtifactStore) -> Path:
    return shared_store.local(write_examples(train=[60], eval=[20]))


@pytest.mark.slow
def test_resumed_training_is_bit_identical(own_process: Any, small_examples: Path, tmp_path: Path) -> None:
    # Within the first epoch, and after the second.
    assert own_process(_resume_all, small_examples, tmp_path, "SEED", [2, 6]) == {name: [] for name in SEED}


@pytest.mark.scheduled(part="campaigns")
@pytest.mark.parametrize("cases", ["SEED", "CAMPAIGN"])
def test_training_resumed_after_any_step_is_bit_identical(
    own_process: Any, small_examples: Path, tmp_path: Path, cases: str
) -> None:
    result = own_process(_resume_all, small_examples, tmp_path, cases, [*range(1, STEPS * EPOCHS + 1)])
    assert result == {name: [] for name in globals()[cases]}


def _refused(examples: Path, folder: Path) -> dict[str, str]:
    hvd.init()
    cases: dict[str, Case] = {
        "backup": case(users=lambda: [callbacks.BackupAndRestore(folder / "backup")]),
        "normal": (functools.partial(_own_step, eager=False, noise=lambda: tf.random.normal([])), list),
        "dropout": (functools.partial(_own_step, eager=False, noise=lambda: tf.nn.dropout(tf.ones([]), 0.5)), list),
    }
    result = {}
    for name, parts in cases.items():
        with pytest.raises(BadInput) as refused:
            _train(examples, folder / name, parts)
        assert not (folder / name / "checkpoints").exists()
        result[name] = str(refused.value)
    _train(examples, folder / "first", case(users=lambda: [Everything()]))
    with pytest.raises(BadInput) as refused:
        _train(examples, folder / "other", case(), max((folder / "first" / "checkpoints").iterdir()))
    return {**result, "other": str(refused.value)}


def test_training_that_cannot_be_resumed_is_refused(own_process: Any, small_examples: Path, tmp_path: Path) -> None:
    result = own_process(_refused, small_examples, tmp_path)
    assert "callbacks has a BackupAndRestore, expected none" in result["backup"]
    for name, call in {"normal": "tf.random.normal([])", "dropout": "tf.nn.dropout("}.items():
        assert "test_resumed_callbacks.py:" in result[name] and call in result[name], result[name]
    assert "has a state of callback 0 Everything" in result["other"]


class Stop(callbacks.Callback):
    """Has the training stop after the second epoch, and then interrupts it."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training |= epoch == 1

    def on_train_end(self, logs: Any = None) -> None:
        raise InterruptedError


class WithoutInterruption(Stop):
    on_train_end = callbacks.Callback.on_train_end


def _stop(examples: Path, folder: Path) -> list[Any]:
    hvd.init()
    with pytest.raises(InterruptedError):
        _train(examples, folder, case(averaging, users=lambda: [Stop()]))
    parts = case(averaging, users=lambda: [WithoutInterruption()])
    resumed = _train(examples, folder, parts, max((folder / "checkpoints").iterdir()))
    best = _train(examples, folder / "best", SEED["closures, stopping"])
    return [resumed == _train(examples, folder / "whole", parts), len(resumed["metrics"]), json.dumps(best["epoch"])]


def test_stopped_training_stays_stopped(own_process: Any, small_examples: Path, tmp_path: Path) -> None:
    same, epochs, best = own_process(_stop, small_examples, tmp_path)
    assert (same, epochs) == (True, 2)
    assert best == "1", "the metrics are those of the epoch whose weights EarlyStopping restores"


class Phase(enum.Enum):
    WARM, MAIN = range(2)


class Pair(NamedTuple):
    epoch: int
    phase: Phase


@dataclasses.dataclass(frozen=True)
class Best:
    epoch: int
    parts: Any = ()


@dataclasses.dataclass(slots=True)
class Part:
    epoch: int


class Holding(callbacks.Callback):
    """Has some attributes, and refers to its parts twice."""

    def __init__(self) -> None:
        super().__init__()
        self.none: Any = None
        self.phase: Any = Phase.WARM
        self.best, self.owning, self.part = Best(0), Best(0, Part(0)), Part(0)
        self.rows: list[Any] = []
        self.parts, self.pair = [Part(1), Part(2)], (0, Part(4))
        self.mixed: dict[str, Any] = {"part": Part(3)}
        self.current, self.rule = self.parts[0], self.first

    def first(self) -> None: ...

    def second(self) -> None: ...

    def content(self) -> str:
        return repr({name: value for name, value in vars(self).items() if name != "rule"})


Change = Callable[[Holding], Any]
RESTORED: dict[str, Change] = {
    "enum": lambda each: setattr(each, "phase", Phase.MAIN),
    "frozen": lambda each: setattr(each, "best", Best(3, [Phase.MAIN, frozenset({2})])),
    "frozen with an object": lambda each: setattr(each, "owning", Best(3, Part(4))),
    "made later": lambda each: setattr(each, "none", Best(3)),
    "in a list": lambda each: each.rows.extend([Best(3), Pair(4, Phase.MAIN)]),
    "slots": lambda each: setattr(each.part, "epoch", 3),
    "shared": lambda each: setattr(each.current, "epoch", 3),
    "another of its class": lambda each: setattr(each, "part", Part(3)),
    "no longer": lambda each: setattr(each, "part", None),
}
UNRESTORABLE: dict[str, Change] = {
    "none": lambda each: setattr(each, "none", Part(3)),
    "rows": lambda each: each.rows.append(Part(3)),
    "parts": lambda each: each.parts.append(Part(3)),
    "mixed": lambda each: each.mixed.update({"0.5": 0.5}),
    "pair": lambda each: setattr(each, "pair", (1, each.pair[1])),
    "current": lambda each: setattr(each, "current", each.parts[1]),
    "rule": lambda each: setattr(each, "rule", each.second),
    "phase": lambda each: setattr(each, "phase", enum.Enum("Other", "A B")(1)),
}


def _changed(change: Change = lambda each: None) -> tuple[Holding, ObjectStates, dict[str, Any]]:
    each = Holding()
    states = ObjectStates({"model": SimpleNamespace(run_eagerly=True), "callback 0 Holding": each}, list)
    change(each)
    return each, states, states.changed()


@pytest.mark.parametrize("name", RESTORED)
def test_values_of_callbacks_are_restored(name: str) -> None:
    whole, _, state = _changed(RESTORED[name])
    resumed, states, unchanged = _changed()
    assert not unchanged
    states.restore(state, "step-1")
    assert resumed.content() == whole.content() != _changed()[0].content()
    assert resumed.current is resumed.parts[0]
    assert [each.value for each in Phase] == [0, 1]


@pytest.mark.parametrize("name", UNRESTORABLE)
def test_other_objects_in_callbacks_are_refused_when_they_are_saved(name: str) -> None:
    with pytest.raises(BadInput, match=rf"callback 0 Holding\.{name} is another"):
        _changed(UNRESTORABLE[name])
