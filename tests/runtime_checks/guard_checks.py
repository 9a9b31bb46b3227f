"""Trainings that go wrong in ways that the guard must find, on two real ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf
from keras_checks import BATCH, STEPS, compiled, error_of, fit, rows_of, start

from airflow_hops.artifacts import HopsError
from airflow_hops.hops.keras import (
    BroadcastCallback,
    DistributedOptimizer,
    Guard,
    NanStopCallback,
    StatisticsAverageCallback,
    check_weights,
    rank_variables,
    weights,
)
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.gang import Channel, Placement, run_gang

MASK = (1 << 64) - 1


def on_two_ranks(context: StepContext) -> list[dict[str, Any]]:
    """Runs all checks in one gang; a list by rank."""
    found: list[dict[str, Any]] = run_gang(_checks, 2, logs=context.scratch / "logs", stall_timeout_s=120)
    return found


def nan_on_one_rank(context: StepContext) -> dict[str, Any]:
    """How a gang ends of which one rank's loss is no number, while the other waits for its gradients."""
    import time

    began = time.monotonic()
    try:
        run_gang(_train_on_nan, 2, logs=context.scratch / "logs-nan", stall_timeout_s=60)
    except HopsError as error:
        return {"error": str(error), "retryable": error.retryable, "seconds": time.monotonic() - began}
    return {"error": "no error"}


def _train_on_nan(placement: Placement, channel: Channel) -> None:
    start()
    x, y = rows_of(placement.rank)
    if placement.rank == 1:
        x[2 * BATCH, 0] = np.nan
    fit(compiled(0, DistributedOptimizer(keras.optimizers.SGD(0.1))), x, y, callbacks=[NanStopCallback()])


def _checks(placement: Placement, channel: Channel) -> dict[str, Any]:
    start()
    rank = placement.rank
    found: dict[str, Any] = {"checksum": _checksums(), "sensitivity": _sensitivity()}
    found["unwrapped"] = error_of(lambda: _train(rank, Guard(4), optimizer=keras.optimizers.SGD(0.1)))
    found["unwrapped_and_off"] = error_of(lambda: _train(rank, Guard(0), optimizer=keras.optimizers.SGD(0.1)))
    found["one_bit"] = error_of(lambda: _train(rank, Guard(2), tamper=_raise_one_weight))
    found["exchanged_places"] = error_of(lambda: _train(rank, Guard(3), steps_per_execution=2, tamper=_swap))
    found["at_the_end"] = error_of(lambda: _train(rank, Guard(100), tamper=_raise_one_weight))
    found["rows_lost"] = error_of(lambda: _train(rank, Guard(100, lambda: 96 - rank, 192)))
    found["rows_twice"] = error_of(lambda: _train(rank, Guard(100, lambda: 96 + 3 * rank, lambda: 192)))
    found["steps"] = error_of(lambda: _at_different_steps(rank))
    found["joined"] = error_of(lambda: _after_a_rank_has_joined(rank))
    found["not_a_number_of_steps"] = error_of(lambda: Guard(-1))
    found["final"] = error_of(lambda: _final_check(rank))
    found["frozen"] = error_of(lambda: _final_check(rank, frozen=True))
    found["no_number"] = error_of(lambda: _final_check(rank, factor=np.nan))
    guard = Guard(4, lambda: 96, 192)
    _train(rank, guard, epochs=2)
    found["fine"] = {"checks": guard.checks, "checksums": guard.checksums, "rows": guard.rows}
    stopped = Guard(100, lambda: 48, 192)
    _train(rank, stopped, tamper=_stop)
    found["stopped"] = stopped.rows
    found["nan"] = error_of(lambda: _nan_within_an_execution(rank))
    found["statistics"] = _batch_normalization(rank)
    return found


def _train(
    rank: int,
    guard: Guard,
    *,
    optimizer: Any = None,
    tamper: Callable[[keras.Model], None] | None = None,
    steps_per_execution: int = 1,
    epochs: int = 1,
) -> None:
    optimizer = optimizer or DistributedOptimizer(keras.optimizers.SGD(0.1))
    model = compiled(rank, optimizer, steps_per_execution=steps_per_execution)
    fit(model, *rows_of(rank), epochs=epochs, callbacks=[_Tamper(rank, tamper), guard] if tamper else [guard])


class _Tamper(keras.callbacks.Callback):
    """Does something to rank 1's model after the fourth step, and to both where it only stops."""

    def __init__(self, rank: int, tamper: Callable[[keras.Model], None]) -> None:
        super().__init__()
        self._rank, self._tamper = rank, tamper

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 3 and (self._rank == 1 or self._tamper is _stop):
            self._tamper(self.model)


def _raise_one_weight(model: keras.Model) -> None:
    kernel = model.trainable_weights[0]
    values = kernel.numpy()
    values[1, 1] = np.nextafter(values[1, 1], np.float32(9))
    kernel.assign(values)


def _swap(model: keras.Model) -> None:
    kernel = model.trainable_weights[0]
    kernel.assign(kernel.numpy()[:, ::-1])


def _stop(model: keras.Model) -> None:
    model.stop_training = True


def _at_different_steps(rank: int) -> None:
    """Rank 1's epoch ends after three steps, when rank 0 has done five and is to be checked."""
    guard = Guard(5)
    guard.set_model(compiled(0, DistributedOptimizer(keras.optimizers.SGD(0.1))))
    guard.on_train_begin()
    guard.on_epoch_begin(1)
    guard.on_train_batch_end(0)
    if rank == 0:
        guard.on_train_batch_end(5)
    else:
        guard.on_train_batch_end(2)
        guard.on_epoch_end(1)


def _after_a_rank_has_joined(rank: int) -> None:
    """Rank 1 has no more batches and joins, as Horovod calls it; rank 0 is to be checked, and joins then."""
    guard = Guard(1)
    guard.set_model(compiled(0, DistributedOptimizer(keras.optimizers.SGD(0.1))))
    guard.on_train_begin()
    guard.on_epoch_begin(0)
    try:
        if rank == 0:
            guard.on_train_batch_end(6)
    finally:
        hvd.join()


def _final_check(rank: int, *, frozen: bool = False, factor: float = 1.0) -> None:
    model = compiled(0, DistributedOptimizer(keras.optimizers.SGD()))
    if rank == 1 and factor == 1.0:
        _raise_one_weight(model)
    kernel = model.trainable_weights[-2]
    kernel.assign(kernel * factor)
    if frozen:
        model.trainable = False
    check_weights(model, "at the end of training")


def _nan_within_an_execution(rank: int) -> None:
    """The loss is no number in the first of three steps that Keras runs as one."""
    x, y = rows_of(rank)
    x[0, 0] = np.nan
    model = compiled(0, DistributedOptimizer(keras.optimizers.SGD(0.1)), steps_per_execution=3)
    fit(model, x, y, callbacks=[NanStopCallback()])


def _checksums() -> dict[str, bool]:
    """The checksum in the graph against its definition in plain Python, for types, odd sizes and several chunks."""
    random = np.random.default_rng(0)
    shapes = [("float32", (3, 5)), ("float16", (7,)), ("bfloat16", (1,)), ("float64", (2, 2)), ("float32", (1,))]
    variables = [keras.Variable(random.normal(size=shape), dtype=dtype) for dtype, shape in shapes]
    found = {}
    whole = weights._CHUNK_BYTES
    for name, limit in (("one chunk", whole), ("several chunks", 64)):
        weights._CHUNK_BYTES = limit
        found[name] = int(weights.in_graph_checksum(variables)().numpy()) & MASK == _reference(variables, limit)
    weights._CHUNK_BYTES = whole
    return found


def _reference(variables: list[Any], limit: int) -> int:
    chunks: list[bytes] = []
    for variable in variables:
        raw = tf.bitcast(variable.value, tf.uint8).numpy().tobytes()
        if chunks and len(chunks[-1]) + len(raw) <= limit:
            chunks[-1] += raw
        else:
            chunks.append(raw)
    total = 0
    for number, chunk in enumerate(chunks):
        chunk += bytes(-len(chunk) % 8)
        for i in range(len(chunk) // 8):
            z = (
                int.from_bytes(chunk[8 * i : 8 * i + 8], "little") + ((number << 40) + 1 + i) * 0x9E3779B97F4A7C15
            ) & MASK
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
            total += z ^ (z >> 31)
    return total & MASK


def _sensitivity() -> dict[str, bool]:
    """Whether changes that a mere sum would not see change the checksum."""
    start = np.random.default_rng(1).normal(size=(4, 4)).astype("float32")
    variables = [keras.Variable(start), keras.Variable(start)]
    checksum = weights.in_graph_checksum(variables)
    before = int(checksum())

    def changed(values: np.ndarray[Any, Any]) -> bool:
        variables[0].assign(values)
        after = int(checksum())
        variables[0].assign(start)
        return after != before

    signs = start.copy()
    signs[0, 1] *= -1
    signs[2, 3] *= -1
    return {
        "rows exchanged": changed(start[::-1]),
        "two signs": changed(signs),
        "one bit": changed(np.where(start == start[3, 3], np.nextafter(start, np.float32(9)), start)),
        "negative zero": changed(start * 0) and changed(start * -0.0) and _zero_differs(checksum, variables[0], start),
        "nothing": changed(start),
    }


def _zero_differs(checksum: Callable[[], tf.Tensor], variable: Any, start: np.ndarray[Any, Any]) -> bool:
    variable.assign(np.zeros_like(start))
    positive = int(checksum())
    variable.assign(-np.zeros_like(start))
    negative = int(checksum())
    variable.assign(start)
    return positive != negative


def _batch_normalization(rank: int) -> dict[str, Any]:
    """Moving statistics of ranks with other rows, beside a frozen layer; with a validation and without."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))
    frozen = keras.layers.Dense(3, name="frozen")
    frozen.trainable = False
    hidden = keras.layers.Dropout(0.1)(keras.layers.BatchNormalization(momentum=0.5)(frozen(inputs)))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse", jit_compile=False)
    before = frozen.get_weights()[0]
    x, y = rows_of(rank)
    x = x + 3 * rank
    own: list[list[float]] = []
    statistics = [v for v in model.non_trainable_weights if "moving" in v.name]

    def look(number: int, logs: Any = None) -> None:
        own.append([float(value) for v in statistics for value in v.numpy()])

    callbacks = [
        keras.callbacks.LambdaCallback(on_train_batch_end=look, on_epoch_end=look),
        StatisticsAverageCallback(),
        keras.callbacks.LambdaCallback(on_epoch_end=look),
    ]
    for validation in (None, (x, y)):
        model.fit(
            x,
            y,
            batch_size=BATCH * STEPS,
            validation_data=validation,
            verbose=0,
            callbacks=[BroadcastCallback(), *callbacks],
        )
    names = [variable.path for variable in rank_variables(model)]
    return {
        "looks": own,
        "frozen_unchanged": bool((frozen.get_weights()[0] == before).all()),
        "rank_variables": names,
    }
