"""What the Keras 3 wrappers do on real ranks, compared with one process on the concatenated batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from airflow_hops.artifacts import BadInput
from airflow_hops.hops.keras import (
    BroadcastCallback,
    DistributedGradientTape,
    DistributedOptimizer,
    LearningRateSchedule,
    LearningRateWarmup,
    MetricAverageCallback,
    exchange_seconds,
    scale_learning_rate,
    weights_checksum,
)
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.gang import Channel, LocalRanks, Placement, run_gang

STEPS, BATCH = 6, 16

adamw = partial(keras.optimizers.AdamW, 0.01, weight_decay=0.1)

OPTIMIZERS: dict[str, tuple[Callable[[], Any], dict[str, Any], Callable[[], Any]]] = {
    # how it is made, how it is wrapped, and what one process on the concatenated batches has
    "sgd": (partial(keras.optimizers.SGD, 0.1, momentum=0.9), {}, partial(keras.optimizers.SGD, 0.1, momentum=0.9)),
    "sgd_sparse": (
        partial(keras.optimizers.SGD, 0.1, momentum=0.9),
        {"sparse_as_dense": False},
        partial(keras.optimizers.SGD, 0.1, momentum=0.9),
    ),
    "sum": (partial(keras.optimizers.SGD, 0.05), {"op": hvd.Sum}, partial(keras.optimizers.SGD, 0.1)),
    "adam_clipped": (
        partial(keras.optimizers.Adam, 0.01, global_clipnorm=0.5),
        {},
        partial(keras.optimizers.Adam, 0.01, global_clipnorm=0.5),
    ),
    "sgd_clipped_by_value": (
        partial(keras.optimizers.SGD, 0.1, clipvalue=0.05),
        {},
        partial(keras.optimizers.SGD, 0.1, clipvalue=0.05),
    ),
    "adamw_schedule": (
        lambda: keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.01, 10)),
        {},
        lambda: keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.01, 10)),
    ),
    "ema": (
        partial(adamw, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=4),
        {},
        partial(adamw, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=4),
    ),
    "accumulated": (
        partial(adamw, global_clipnorm=0.5),
        {"backward_passes_per_step": 2},
        partial(adamw, global_clipnorm=0.5, gradient_accumulation_steps=2),
    ),
    "accumulated_by_keras": (
        partial(keras.optimizers.SGD, 0.1, gradient_accumulation_steps=3, use_ema=True),
        {},
        partial(keras.optimizers.SGD, 0.1, gradient_accumulation_steps=3, use_ema=True),
    ),
    "accumulated_with_scaled_loss": (
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=8.0),
        {"backward_passes_per_step": 2},
        lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), initial_scale=8.0
        ),
    ),
    "fp16": (
        partial(keras.optimizers.SGD, 0.1),
        {"compression": hvd.Compression.fp16},
        partial(keras.optimizers.SGD, 0.1),
    ),
}


def on_two_ranks(context: StepContext) -> list[dict[str, Any]]:
    """Runs all checks in one gang; a list by rank."""
    found: list[dict[str, Any]] = run_gang(_checks, 2, logs=context.scratch / "logs", stall_timeout_s=120)
    return found


def on_three_ranks(context: StepContext) -> list[dict[str, Any]]:
    """One optimizer and the metrics on three ranks; a list by rank."""
    logs = context.scratch / "logs-of-three"
    found: list[dict[str, Any]] = run_gang(_few_checks, 3, logs=logs, launcher=LocalRanks(3), stall_timeout_s=120)
    return found


def _checks(placement: Placement, channel: Channel) -> dict[str, Any]:
    start()
    rank = placement.rank
    found: dict[str, Any] = {}
    for name in OPTIMIZERS:
        channel.send("alive", where=name)
        found[name] = _against_one_process(name, steps_per_execution=3 if name == "adam_clipped" else 1)
    channel.send("alive", where="the optimizers")
    found["tape"] = _with_a_tape(rank)
    found["warmup"] = _with_warmup(rank)
    found["schedule"] = _with_schedule(rank)
    found["metrics"] = _metrics(rank, hvd.size())
    found["plateau"] = _on_a_plateau(rank)
    found["mixed_float16"] = _with_a_rank_that_overflows(rank)
    found["horovod"] = _with_horovods_own(rank)
    found["waits_s"] = _exchange_with_a_slow_rank(rank)
    found["errors"] = _errors(rank)
    optimizer = DistributedOptimizer(keras.optimizers.Adam(0.5))
    found["config"] = keras.optimizers.serialize(optimizer)["class_name"]
    found["idempotent"] = DistributedOptimizer(optimizer) is optimizer
    schedule = scale_learning_rate(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5))
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    found["scaled"] = [scale_learning_rate(0.1, 8), float(schedule(10)), float(again(10))]
    return found


def _few_checks(placement: Placement, channel: Channel) -> dict[str, Any]:
    start()
    return {
        "sgd": _against_one_process("sgd"),
        "accumulated": _against_one_process("accumulated"),
        "metrics": _metrics(placement.rank, 3),
    }


def start() -> None:
    """One thread, and Horovod; graphs as they are, for each runs a few steps only, and optimizing it takes longer."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()


def small_model(seed: int) -> keras.Model:
    """Three columns, one of them an id that is embedded."""
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((3,))
    ids = keras.ops.cast(inputs[:, 2], "int64")
    hidden = keras.layers.Concatenate()([inputs[:, :2], keras.layers.Embedding(4, 3)(ids)])
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(5, activation="tanh")(hidden)))


def compiled(seed: int, optimizer: Any, *, jit: bool = False, steps_per_execution: int = 1) -> keras.Model:
    """The small model, compiled."""
    model = small_model(seed)
    model.compile(optimizer, "mse", jit_compile=jit, steps_per_execution=steps_per_execution)
    return model


def rows_of(rank: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A rank's own rows."""
    random = np.random.default_rng(rank)
    x = random.normal(size=(STEPS * BATCH, 3)).astype("float32")
    x[:, 2] = random.integers(0, 4, len(x))
    return x, x.sum(axis=1, keepdims=True)


def fit(model: keras.Model, x: Any, y: Any, *, epochs: int = 1, callbacks: Sequence[Any] = ()) -> Any:
    """Trains from rank 0's weights, in batches of one rank."""
    return model.fit(
        x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0, callbacks=[BroadcastCallback(), *callbacks]
    ).history


def error_of(function: Callable[[], Any]) -> str:
    """The message of the BadInput that a function raises."""
    try:
        function()
    except BadInput as error:
        return str(error)
    return "no error"


def _concatenated() -> tf.data.Dataset:
    """Each batch holds all ranks' batches of that step."""
    parts = [[values.reshape(STEPS, BATCH, -1) for values in rows_of(rank)] for rank in range(hvd.size())]
    x, y = (np.concatenate([part[i] for part in parts], axis=1) for i in range(2))
    return tf.data.Dataset.from_tensor_slices((x, y))


def _alone(optimizer: Any, **given: Any) -> keras.Model:
    """One process on the concatenated batches."""
    model = compiled(0, _with_dense_gradients(optimizer))
    model.fit(_concatenated(), shuffle=False, verbose=0, **given)
    return model


def _difference(model: keras.Model, other: Callable[[], keras.Model]) -> float | None:
    """The greatest difference from the weights of another model, which rank 0 alone builds: the others need not."""
    if hvd.rank() > 0:
        return None
    pairs = zip(model.get_weights(), other().get_weights(), strict=True)
    return float(max(np.abs(a - b).max() for a, b in pairs))


def _against_one_process(name: str, *, steps_per_execution: int = 1) -> dict[str, Any]:
    make, wrapping, reference = OPTIMIZERS[name]
    optimizer = DistributedOptimizer(make(), **wrapping)
    model = compiled(hvd.rank(), optimizer, steps_per_execution=steps_per_execution)
    before = _Waiting()
    fit(model, *rows_of(hvd.rank()), callbacks=[before])
    return {
        "checksum": weights_checksum(model),
        "difference": _difference(model, lambda: _alone(reference())),
        "waiting": before.gradients,
        "unchanged": before.unchanged,
    }


class _Waiting(keras.callbacks.Callback):
    """Looks at what waits for its exchange after the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.gradients: list[float] = []
        self.unchanged = False
        self._start = ""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            self._start = weights_checksum(self.model)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        waiting = getattr(self.model.optimizer, "_accumulated_gradients", None) or []
        if batch == 0:
            self.gradients = [float(np.sum(gradient.numpy())) for gradient in waiting]
            self.unchanged = weights_checksum(self.model) == self._start


def _with_dense_gradients(optimizer: Any) -> Any:
    """Keras applies a sparse gradient's duplicates one by one, which is another result than their sum for Adam."""

    class Dense(type(optimizer)):  # type: ignore[misc]
        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            super().apply([tf.convert_to_tensor(gradient) for gradient in grads], trainable_variables)

    object.__setattr__(optimizer, "__class__", Dense)
    return optimizer


def _with_a_tape(rank: int) -> dict[str, Any]:
    """A loop of one's own, over all ranks and alone."""

    def train(batches: Any, distributed: bool) -> keras.Model:
        model, optimizer = small_model(0), keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)

        @tf.function
        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            tape = DistributedGradientTape(tape) if distributed else tape
            grads = tape.gradient(loss, model.trainable_weights)
            optimizer.apply_gradients(zip(map(tf.convert_to_tensor, grads), model.trainable_weights, strict=True))

        for x, y in batches:
            step(x, y)
        return model

    x, y = rows_of(rank)
    model = train(tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH), True)
    return {
        "checksum": weights_checksum(model),
        "difference": _difference(model, lambda: train(_concatenated(), False)),
    }


class _Rates(keras.callbacks.Callback):
    """The learning rate of every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.rates.append(float(self.model.optimizer.learning_rate))


class _SetRates(keras.callbacks.Callback):
    def __init__(self, rates: list[float]) -> None:
        super().__init__()
        self._rates = iter(rates)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.model.optimizer.learning_rate = next(self._rates)


def _with_warmup(rank: int) -> dict[str, Any]:
    """Two epochs of warm-up and one at the full rate; then a training that begins after it, at a rate of its own."""
    expected = [0.01 * (1 + min(1.0, step / 12)) for step in range(18)]
    rates, after = _Rates(), _Rates()
    model = compiled(0, DistributedOptimizer(keras.optimizers.SGD(9.9)))
    fit(model, *rows_of(rank), epochs=3, callbacks=[LearningRateWarmup(0.01, epochs=2), rates])
    difference = _difference(
        model, lambda: _alone(keras.optimizers.SGD(9.9), epochs=3, callbacks=[_SetRates(expected)])
    )
    model.optimizer.learning_rate = 0.5
    fit(model, *rows_of(rank), callbacks=[LearningRateWarmup(0.01, epochs=2), after])
    return {"rates": rates.rates, "expected": expected, "difference": difference, "after": after.rates}


def _with_schedule(rank: int) -> list[float]:
    """The rate of each epoch but the first, which the schedule leaves alone, and the last, which it does not set."""
    rates = _Rates()
    schedule = LearningRateSchedule(0.1, lambda epoch: 0.5**epoch, start_epoch=1, end_epoch=3)
    model = compiled(0, DistributedOptimizer(keras.optimizers.SGD(0.3)))
    fit(model, *rows_of(rank), epochs=4, callbacks=[schedule, rates])
    return rates.rates[::STEPS]


def _metrics(rank: int, size: int) -> dict[str, Any]:
    """Shards of different sizes, and the metrics of one process on all rows; the weights do not change."""

    def shard(number: int, rows: int) -> tuple[Any, Any]:
        random = np.random.default_rng(number)
        x = random.normal(size=(rows, 3)).astype("float32")
        x[:, 2] = 0
        # The ranks' rows lie apart, so that the AUC of all is far from the mean of the ranks'.
        y = (random.uniform(size=(rows, 1)) < 1 / (1 + np.exp(-x[:, :1]))).astype("float32")
        x[:, 0] += 2 * number
        return x, y

    def classifier() -> keras.Model:
        model = small_model(0)
        metrics = [keras.metrics.AUC(name="auc", from_logits=True), keras.metrics.Precision(name="precision")]
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.0), loss, metrics=metrics, jit_compile=False)
        return model

    train = [shard(number, 40 + 17 * number) for number in range(size)]
    validation = [shard(10 + number, 31 - 5 * number) for number in range(size)]
    everything = [tuple(np.concatenate([part[i] for part in split]) for i in range(2)) for split in (train, validation)]
    model = classifier()
    own: dict[str, Any] = {}
    keep = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: own.update(logs))
    history = model.fit(
        *train[rank],
        batch_size=29,
        epochs=2,
        shuffle=False,
        verbose=0,
        validation_data=validation[rank],
        validation_freq=2,
        callbacks=[BroadcastCallback(), keep, _Extra(rank), MetricAverageCallback()],
    ).history
    alone = classifier()
    alone.set_weights(model.get_weights())
    expected = [alone.evaluate(*rows, verbose=0, return_dict=True) for rows in everything]
    return {
        "found": {name: values[-1] for name, values in history.items()},
        "without_validation": history["auc"][0],
        "own": {name: float(value) for name, value in own.items()},
        "expected": {**expected[0], **{f"val_{name}": value for name, value in expected[1].items()}},
    }


class _Extra(keras.callbacks.Callback):
    """Logs that are no metric of the model's."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["extra"] = float(self._rank)


def _on_a_plateau(rank: int) -> dict[str, Any]:
    """One rank's loss falls while the other's rises: what a callback decides of it must be the same."""
    x, y = rows_of(0)
    model = compiled(0, DistributedOptimizer(keras.optimizers.SGD(0.1)))
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=0.5)
    callbacks = [MetricAverageCallback(), plateau]
    history = fit(model, x, y if rank == 0 else -3 * y, epochs=8, callbacks=callbacks)
    return {"losses": history["loss"], "rates": history["learning_rate"], "checksum": weights_checksum(model)}


def _with_a_rank_that_overflows(rank: int) -> dict[str, Any]:
    """A scaled loss whose gradients overflow on rank 1 alone, until the scale is small enough."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = compiled(rank, DistributedOptimizer(keras.optimizers.SGD(1e-4)))
        before = weights_checksum(model)
        x, y = rows_of(rank)
        fit(model, x, y * (4 if rank else 0.1))
    finally:
        keras.config.set_dtype_policy("float32")
    return {
        "checksum": weights_checksum(model),
        "trained": weights_checksum(model) != before,
        "scale": float(model.optimizer.dynamic_scale.numpy()),
        "initial_scale": model.optimizer.initial_scale,
        "exchanged": exchange_seconds(model.optimizer) > 0,
    }


def _with_horovods_own(rank: int) -> str:
    """Horovod's wrapper around a Keras 3 optimizer: the trap."""
    import horovod.tensorflow.keras as horovod_keras

    model = compiled(0, horovod_keras.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    model.fit(*rows_of(rank), batch_size=BATCH, shuffle=False, verbose=0)
    return weights_checksum(model)


def _exchange_with_a_slow_rank(rank: int) -> float:
    """Seconds that the gradients' exchange took of five steps, in one of which rank 1 came 0.5 s late."""
    import time

    class Late(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 3 and rank == 1:
                time.sleep(0.5)

    model = compiled(0, DistributedOptimizer(keras.optimizers.SGD(0.1)))
    fit(model, *rows_of(rank))
    before = exchange_seconds(model.optimizer)
    fit(model, *rows_of(rank), callbacks=[Late()])
    return exchange_seconds(model.optimizer) - before


def _errors(rank: int) -> dict[str, str]:
    sgd = keras.optimizers.SGD
    built = sgd()
    built.build(small_model(0).trainable_variables)
    several = keras.optimizers.MultiOptimizer([sgd(), sgd()])
    jit = partial(compiled, 0, jit=True)
    averages = MetricAverageCallback()
    averages.set_model(compiled(0, DistributedOptimizer(sgd())))
    return {
        "not_an_optimizer": error_of(lambda: DistributedOptimizer("adam")),
        "adasum": error_of(lambda: DistributedOptimizer(sgd(), op=hvd.Adasum)),
        "op": error_of(lambda: DistributedOptimizer(sgd(), op=hvd.Max)),
        "no_batches": error_of(lambda: DistributedOptimizer(sgd(), backward_passes_per_step=0)),
        "two_answers": error_of(
            lambda: DistributedOptimizer(sgd(gradient_accumulation_steps=3), backward_passes_per_step=2)
        ),
        "built": error_of(lambda: DistributedOptimizer(built, backward_passes_per_step=2)),
        "several": error_of(lambda: DistributedOptimizer(several, backward_passes_per_step=2)),
        "sparse": error_of(lambda: DistributedOptimizer(sgd(), backward_passes_per_step=2, sparse_as_dense=False)),
        "jit": error_of(lambda: fit(jit(DistributedOptimizer(sgd())), *rows_of(rank))),
        "jit_without_callback": error_of(
            lambda: jit(DistributedOptimizer(sgd())).fit(*rows_of(rank), batch_size=BATCH, verbose=0)
        ),
        "several_values": error_of(lambda: averages.on_epoch_end(0, {"f1": [0.5, 0.7]})),
        "schedule": error_of(
            lambda: fit(
                compiled(0, DistributedOptimizer(sgd(keras.optimizers.schedules.CosineDecay(0.1, 9)))),
                *rows_of(rank),
                callbacks=[LearningRateWarmup(0.1)],
            )
        ),
    }
