"""A training that ends after any step and is resumed has the bytes of one that was not interrupted, or is refused.

The space: what Keras's documentation shows of optimizers, schedules, callbacks, metrics, random layers, and training
steps of one's own. A training writes a checkpoint after each step; a new one is resumed from each, and compared with
its weights, metrics, random numbers, and all plain attributes of its callbacks.
"""

from __future__ import annotations

import collections
import functools
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from campaigns import campaign

from airflow_hops.core.errors import BadInput
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.training import training_state
from airflow_hops.ml.training.callback_states import CallbackStates
from airflow_hops.ml.training.checkpoints import read_checkpoint
from airflow_hops.ml.training.context import TrainContext
from airflow_hops.ml.training.keras import DistributedOptimizer
from airflow_hops.ml.training.rank_state import seed_rank
from tests.ml.training.trainings import rank_session

STEPS, EPOCHS = 3, 3
callbacks, layers, optimizers = keras.callbacks, keras.layers, keras.optimizers


class Everything(callbacks.ReduceLROnPlateau):
    """Sets the learning rate by what it holds besides Keras's attributes, and returns all of it from get_state."""

    def __init__(self) -> None:
        super().__init__("loss", patience=1, min_delta=10.0)
        self.mean, self.counts = keras.metrics.Mean(), {"steps": 0}
        self.draws, self.seed = np.random.default_rng(3), keras.random.SeedGenerator(3)

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        self.recent: Any = collections.deque(maxlen=3)
        self.weights: Any = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.recent.append(logs["loss"])
        self.mean.update_state(logs["loss"])
        self.counts["steps"] += 1
        rates = [*self.recent, self.mean.result(), self.counts["steps"], batch, self.draws.random()]
        self.model.optimizer.learning_rate = 0.01 * float(
            sum(map(float, [*rates, keras.random.uniform([], seed=self.seed)]))
        )

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        now = self.model.get_weights()
        self.weights = now if self.weights is None else [(a + b) / 2 for a, b in zip(self.weights, now, strict=True)]

    def on_train_end(self, logs: Any = None) -> None:
        self.model.set_weights(self.weights)

    def get_state(self) -> Any:
        variables = [variable.numpy() for variable in [*self.mean.variables, self.seed.state]]
        return [*self.recent], variables, self.counts, self.draws.bit_generator.state, self.weights

    def set_state(self, state: Any) -> None:
        recent, variables, self.counts, self.draws.bit_generator.state, self.weights = state
        self.recent.clear()
        self.recent.extend(recent)
        for variable, value in zip([*self.mean.variables, self.seed.state], variables, strict=True):
            variable.assign(value)


class AtBeginnings(callbacks.Callback):
    """Changes the learning rate when the training and epochs begin, and by the number of the batch."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = 0.5

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) * 0.7

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = float(self.model.optimizer.learning_rate) * (1 + batch) / (2 + batch)


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

    def get_state(self) -> int:
        return self.steps

    def set_state(self, state: int) -> None:
        self.steps = state


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


def keras_callbacks(library: Any) -> list[Any]:
    """The callbacks of Keras or tf_keras that a model of Keras 3 can use; their files lie in the working directory."""
    best = library.ModelCheckpoint("best.weights.h5", "loss", save_best_only=True, save_weights_only=True)
    stopping = library.EarlyStopping("loss", patience=50, restore_best_weights=True)
    result = [library.CSVLogger("log.csv"), stopping, library.History(), best, library.TerminateOnNaN()]
    if library is callbacks:
        result += [library.LearningRateScheduler(lambda epoch, rate: rate * 0.9), plateau()]
        result += [library.ModelCheckpoint("{batch}.weights.h5", save_freq=2, save_weights_only=True)]
        result += [library.SwapEMAWeights(swap_on_epoch=True), library.TensorBoard("board")]
    return result


SEED: dict[str, Case] = {
    "own callbacks": case(
        users=lambda: [
            Everything(), AtBeginnings(), callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7),
        ]
    ),
    "stopping": case(users=lambda: [early_stopping(), plateau()]),
    "Keras's callbacks": case(averaging, lambda: keras_callbacks(keras.callbacks)),
    "tf_keras's callbacks": case(users=lambda: keras_callbacks(pytest.importorskip("tf_keras").callbacks)),
    "own step": (functools.partial(_own_step, eager=False), list),
    "own eager step": (functools.partial(_own_step, eager=True, noise=lambda: tf.random.normal([])), list),
    "random layers, metric": case(
        lambda: optimizers.LossScaleOptimizer(optimizers.Adam(0.05, gradient_accumulation_steps=2)),
        lambda: [],
        lambda: [layers.GaussianNoise(0.5), layers.BatchNormalization(), layers.Dropout(0.5)],
        lambda: [HalfForgetting()],
        eager=False,
    ),
}  # fmt: skip
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
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    model, users = parts[0](), parts[1]()
    try:
        history = context.fit(model, epochs=EPOCHS, batch_size=20, callbacks=users)
    finally:
        context.session.close()
    weights = [variable.numpy().tobytes() for variable in [*model.weights, *model.optimizer.variables]]
    draws = [random.random(), np.random.random(), float(keras.random.uniform([])), float(tf.random.uniform([]))]
    metrics = [{name: value for name, value in epoch.items() if name != "seconds"} for epoch in history]
    result = {"weights": weights, "draws": draws, "metrics": metrics, "epoch": session.state.epoch}
    for number, each in enumerate(users):
        result |= {f"{number} {type(each).__name__}.{name}": value for name, value in _plain_attributes(each).items()}
    return result


def _plain_attributes(value: object) -> dict[str, Any]:
    """Returns numbers, text and lists in a callback, without those of the clock, of files, and of one try or epoch."""
    without = {"append_header", "keys", "min_delta", "params", "_current_epoch", "_params", "_should_write_train_graph"}
    without |= {"_write_filepath", "_writers", "seen"}
    plain = (bool, int, float, str, list, dict, np.generic, type(None))
    return {
        name: repr(each)
        for name, each in vars(value).items()
        if type(each) in plain and name not in without and "time" not in name
    }


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
                differing += [f"{key} after step {step}" for key in whole if whole[key] != resumed.get(key)]
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


def own(base: type = callbacks.Callback, **members: Any) -> Any:
    """A callback of a class with these members."""
    return type("Own", (base,), members)(*(["loss"] if base is callbacks.EarlyStopping else []))


def holding(value: Any, **attributes: Any) -> Any:
    for name, each in attributes.items():
        setattr(value, name, each)
    return value


HELD = "has attributes ['count'], which no checkpoint would hold"
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "attribute": (lambda: holding(own(), count=0), HELD),
    "attribute of on_train_begin": (lambda: own(on_train_begin=lambda each, logs: holding(each, count=0)), HELD),
    "slot": (lambda: holding(own(__slots__=("count",)), count=0), HELD),
    "list of the class": (lambda: own(count=[]), HELD),
    "further attribute": (lambda: holding(own(callbacks.EarlyStopping), count=0), HELD),
    "one method": (lambda: own(get_state=lambda each: 0), "has get_state alone, expected both"),
    "a set": (lambda: own(get_state=lambda each: [{1}], set_state=print), "its state holds a builtins.set, which"),
    "a later Keras's": (lambda: own(__module__="keras.src.callbacks.own"), "has the state of Keras's Own"),
}


def _refused(examples: Path, folder: Path) -> dict[str, str]:
    hvd.init()
    cases: dict[str, Case] = {
        "backup": case(users=lambda: [callbacks.BackupAndRestore(folder / "backup")]),
        "normal": (functools.partial(_own_step, eager=False, noise=lambda: tf.random.normal([])), list),
        "dropout": (functools.partial(_own_step, eager=False, noise=lambda: tf.nn.dropout(tf.ones([]), 0.5)), list),
    }
    for name, (make, _) in REFUSED.items():
        stop = callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: pytest.fail("a step began"))
        cases[name] = case(users=lambda make=make, stop=stop: [stop, make()])
    result = {}
    for name, parts in cases.items():
        with pytest.raises(BadInput) as refused:
            _train(examples, folder / name, parts)
        assert not (folder / name / "checkpoints").exists()
        result[name] = str(refused.value)
    _train(examples, folder / "first", case(users=lambda: [Everything()]))
    second = sorted((folder / "first" / "checkpoints").iterdir())[1]
    late = own(on_epoch_end=lambda each, epoch, logs: holding(each, count=0))
    for name, users in {"other": [], "late": [Everything(), late]}.items():
        with pytest.raises(BadInput) as refused:
            _train(examples, folder / name, case(users=lambda users=users: users), second)
        result[name] = str(refused.value)
    return result


def test_training_that_cannot_be_resumed_is_refused(own_process: Any, small_examples: Path, tmp_path: Path) -> None:
    result = own_process(_refused, small_examples, tmp_path)
    assert "callbacks has a BackupAndRestore, expected none" in result["backup"]
    for name, call in {"normal": "tf.random.normal([])", "dropout": "tf.nn.dropout("}.items():
        assert "test_resumed_callbacks.py:" in result[name] and call in result[name], result[name]
    for name, message in {**{name: message for name, (_, message) in REFUSED.items()}, "late": HELD}.items():
        assert result[name].startswith("callback 1 Own") and message in result[name], result[name]
    assert "has a state of callback 0 Everything" in result["other"]


def _draw_state(generator: random.Random, depth: int = 3) -> Any:
    """Returns a random state: numbers, text, arrays, and lists, tuples and dicts of these."""
    kinds = ("number", "text", "array", "scalar", *(("list", "tuple", "dict") if depth else ()))
    kind, size = generator.choice(kinds), generator.randrange(4)
    if kind == "number":
        return generator.choice([None, True, -0.0, float("inf"), float("nan"), 2**200, generator.random()])
    if kind == "text":
        return "".join(chr(generator.choice([0, 34, 124, 0xD800, 0x1F600, 97])) for _ in range(size))
    if kind in ("array", "scalar"):
        dtype = generator.choice(["f2", "f8", ">i4", "u1", "?", "c8", ml_dtypes.bfloat16])
        array = np.array([generator.randrange(3) for _ in range(max(size, 1))]).astype(dtype)
        return array[0] if kind == "scalar" else array.reshape(generator.choice([(-1,), (1, -1)]))
    items = [_draw_state(generator, depth - 1) for _ in range(size)]
    keys: list[Any] = ["", "a|0", 1, None]
    return dict(zip(keys, items, strict=False)) if kind == "dict" else tuple(items) if kind == "tuple" else items


@campaign("draws", 100, 2000)
def test_any_plain_state_is_restored(draws: int, tmp_path: Path) -> None:
    generator, read = random.Random(draws), lambda each: each.state
    for _ in range(draws):
        make = functools.partial(own, get_state=read, set_state=lambda each, state: holding(each, state=state))
        whole, resumed = ([holding(make(), state=_draw_state(generator)) for _ in range(2)] for _ in range(2))
        np.savez(tmp_path / "states.npz", **CallbackStates(None, whole).read())
        with np.load(tmp_path / "states.npz", allow_pickle=False) as stored:
            CallbackStates(None, resumed).write(dict(stored), "step-1")
        assert repr([each.state for each in resumed]) == repr([each.state for each in whole])


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
    best = _train(examples, folder / "best", SEED["stopping"])
    return [resumed == _train(examples, folder / "whole", parts), len(resumed["metrics"]), json.dumps(best["epoch"])]


def test_stopped_training_stays_stopped(own_process: Any, small_examples: Path, tmp_path: Path) -> None:
    same, epochs, best = own_process(_stop, small_examples, tmp_path)
    assert (same, epochs) == (True, 2)
    assert best == "1", "the metrics are those of the epoch whose weights EarlyStopping restores"
