"""The guard: ranks that drift apart, or do not see what their split holds, stop with an error that says so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf
from small_model import BATCH, STEPS, compiled, fit, rows_of

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.training.callbacks import _join
from airflow_hops.ml.training.gang import Channel, Placement, run_gang
from airflow_hops.ml.training.keras import (
    BroadcastCallback,
    DistributedOptimizer,
    Guard,
    MetricAverageCallback,
    check_weights,
    rank_variables,
    weights,
)

pytestmark = pytest.mark.xdist_group("ranks")
SGD = partial(keras.optimizers.SGD, 0.1)


def _train(
    every_steps: int,
    rows: tuple[int, int] | None = None,
    *,
    optimizer: Any = None,
    tamper: Callable[[keras.Model], None] | None = None,
    steps_per_execution: int = 1,
    epochs: int = 1,
) -> dict[str, Any]:
    """Trains with a guard.

    Args:
        every_steps: The guard's.
        rows: What the ranks say that they have given the model in an epoch, of 192.
        optimizer: Makes the optimizer, by default a wrapped SGD.
        tamper: What is done to rank 1's model after the fourth step.
        steps_per_execution: Keras's.
        epochs: Keras's.
    """
    rank = hvd.rank()
    guard = Guard(every_steps, (lambda: rows[rank]) if rows else None, (lambda: 192) if rows else None)
    wrapped = optimizer() if optimizer else DistributedOptimizer(SGD())
    model = compiled(rank, wrapped, steps_per_execution=steps_per_execution)
    fit(model, *rows_of(rank), epochs=epochs, callbacks=[_Tamper(rank, tamper), guard] if tamper else [guard])
    return {"checks": guard.checks, "checksums": guard.checksums, "rows": guard.rows}


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


def _at_different_steps() -> None:
    """Rank 1's epoch ends after three steps, when rank 0 has done five and is to be checked."""
    guard = Guard(5)
    guard.set_model(compiled(0, DistributedOptimizer(SGD())))
    guard.on_train_begin()
    guard.on_epoch_begin(1)
    guard.on_train_batch_end(0)
    if hvd.rank() == 0:
        guard.on_train_batch_end(5)
    else:
        guard.on_train_batch_end(2)
        guard.on_epoch_end(1)


def _after_a_rank_has_joined() -> None:
    """Rank 1 has no more batches and joins, as Horovod calls it; rank 0 is to be checked, and joins then."""
    guard = Guard(1)
    guard.set_model(compiled(0, DistributedOptimizer(SGD())))
    guard.on_train_begin()
    guard.on_epoch_begin(0)
    try:
        if hvd.rank() == 0:
            guard.on_train_batch_end(6)
    finally:
        hvd.join()


def _final_check(*, frozen: bool = False, factor: float = 1.0) -> None:
    model = compiled(0, DistributedOptimizer(keras.optimizers.SGD()))
    if hvd.rank() == 1 and factor == 1.0:
        _raise_one_weight(model)
    kernel = model.trainable_weights[-2]
    kernel.assign(kernel * factor)
    if frozen:
        model.trainable = False
    check_weights(model, "at the end of training")


def _nan_within_an_execution() -> None:
    """The loss is no number in the first of three steps that Keras runs as one."""
    x, y = rows_of(hvd.rank())
    x[0, 0] = np.nan
    fit(compiled(0, DistributedOptimizer(SGD()), steps_per_execution=3), x, y, callbacks=[Guard(0)])


def _nan_on_rank_1(placement: Placement, channel: Channel) -> None:
    hvd.init()
    x, y = rows_of(placement.rank)
    if placement.rank == 1:
        x[2 * BATCH, 0] = np.nan
    fit(compiled(0, DistributedOptimizer(SGD())), x, y, callbacks=[Guard(0)])


def test_checksum_covers_the_bytes_of_all_variables() -> None:
    random = np.random.default_rng(0)
    shapes = [("float32", (3, 5)), ("float16", (7,)), ("bfloat16", (1,)), ("float64", (2, 2)), ("float32", ())]
    variables = [keras.Variable(random.normal(size=shape), dtype=dtype) for dtype, shape in shapes]
    raw = b"".join(variable.numpy().tobytes() for variable in variables)
    result = weights.short_checksum(variables).to_bytes(8, "little", signed=True)
    assert hashlib.sha256(raw).digest().startswith(result)


def _batch_normalization() -> dict[str, Any]:
    """Moving statistics of ranks with other rows, beside a frozen layer; with a validation and without."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3,))
    frozen = keras.layers.Dense(3, name="frozen")
    frozen.trainable = False
    hidden = keras.layers.Dropout(0.1)(keras.layers.BatchNormalization(momentum=0.5)(frozen(inputs)))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse", jit_compile=False)
    mean = frozen.get_weights()[0]
    x, y = rows_of(hvd.rank())
    x = x + 3 * hvd.rank()
    own: list[list[float]] = []
    statistics = [v for v in model.non_trainable_weights if "moving" in v.name]

    def look(number: int, logs: Any = None) -> None:
        own.append([float(value) for v in statistics for value in v.numpy()])

    callbacks = [
        keras.callbacks.LambdaCallback(on_train_batch_end=look, on_epoch_end=look),
        MetricAverageCallback(),
        keras.callbacks.LambdaCallback(on_epoch_end=look),
    ]
    for validation in (None, (x, y)):
        options = {"validation_data": validation, "callbacks": [BroadcastCallback(), *callbacks]}
        model.fit(x, y, batch_size=BATCH * STEPS, verbose=0, **options)
    names = [variable.path for variable in rank_variables(model)]
    return {"looks": own, "frozen_unchanged": bool((frozen.get_weights()[0] == mean).all()), "rank_variables": names}


AT_END = "the ranks' weights differ at the end of "
FOUND: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "unwrapped": (
        partial(_train, 4, optimizer=SGD),
        ["weights differ after step 1 of epoch 1 (checksums: rank 0: ", "the optimizer SGD does not exchange grad"],
    ),
    "unwrapped and off": (partial(_train, 0, optimizer=SGD), ["no error"]),
    "one bit": (
        partial(_train, 2, tamper=_raise_one_weight),
        ["differ after step 5 of epoch 1 (checksums: rank 0: ", "something changes weights on some ranks only"],
    ),
    "exchanged places": (partial(_train, 3, steps_per_execution=2, tamper=_swap), ["differ after step 6 of epoch 1"]),
    "at the end": (partial(_train, 100, tamper=_raise_one_weight), [AT_END + "epoch 1"]),
    "rows lost": (
        partial(_train, 100, (96, 95)),
        ["epoch 1 has given the model 191 rows over all ranks (rank 0: 96, rank 1: 95)", "holds 192: rows are lost"],
    ),
    "repeated rows": (partial(_train, 100, (96, 99)), ["(rank 0: 96, rank 1: 99)", "holds 192: rows are repeated"]),
    "steps": (_at_different_steps, ["rank 0 within epoch 2 after step 6, rank 1 at the end of epoch 2 after step 3"]),
    "final": (_final_check, [AT_END + "training (checksums: rank 0: "]),
    "frozen": (partial(_final_check, frozen=True), [AT_END + "training (checksums: rank 0: "]),
    "no number": (
        partial(_final_check, factor=np.nan),
        ["the model's weight 'kernel' holds values that are not numbers; lower the learning rate"],
    ),
    "nan": (_nan_within_an_execution, ["the loss is nan at step 3 of epoch 1; lower the learning rate"]),
}


@pytest.mark.parametrize("what", FOUND)
def test_every_rank_raises_the_same_error(two_ranks: Any, what: str) -> None:
    function, expected = FOUND[what]
    first, second = two_ranks.errors(function)
    assert first == second
    assert [part for part in expected if part not in first] == []


def test_invalid_number_of_steps_is_refused() -> None:
    with pytest.raises(BadInput, match="guard_every_steps is -1, expected a number of steps, or 0 for no guard"):
        Guard(-1)


def _broadcast_without_weights() -> None:
    hvd.init()
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((4, 2)), np.ones(4), callbacks=[BroadcastCallback()], verbose=0)


def test_model_without_weights_is_not_broadcast(own_process: Any) -> None:
    with pytest.raises(BadInput, match=r"no weights yet; begin it with a keras\.Input"):
        own_process(_broadcast_without_weights)


def test_rank_without_batches_is_named(two_ranks: Any) -> None:
    error = two_ranks.errors(_after_a_rank_has_joined)[0]
    assert "rank 1 has ended epoch 1 before step 7, which others have done: its batches ran out" in error


def test_guard_checks_at_its_steps(two_ranks: Any) -> None:
    first, second = two_ranks(_train, 4, (96, 96), epochs=2)
    assert first == second
    # Two epochs of six steps, every four: after step 1 and 5, at the end; after step 4, at the end.
    assert first["checks"] == 5
    assert first["rows"] == [192, 192]
    assert len(set(first["checksums"])) == 2 and all(len(checksum) == 16 for checksum in first["checksums"])


def test_stopped_epoch_counts_no_rows(two_ranks: Any) -> None:
    assert two_ranks(_train, 100, (48, 48), tamper=_stop)[0]["rows"] == [None]


def test_moving_statistics_are_averaged_over_ranks(two_ranks: Any) -> None:
    first, second = two_ranks(_batch_normalization)
    assert first["frozen_unchanged"] and second["frozen_unchanged"]
    # Without a validation: after the step, before and after averaging. With one, it comes before the epoch's end.
    after_step, second_pass, after, again_after_step, averaged, _ = zip(first["looks"], second["looks"], strict=True)
    assert after_step[0] != after_step[1] and second_pass == after_step
    assert after[0] == after[1] == pytest.approx([(a + b) / 2 for a, b in zip(*after_step, strict=True)])
    assert again_after_step[0] != again_after_step[1]
    assert averaged[0] == averaged[1]
    # What may differ by rank is known.
    names = [name.rpartition("/")[2] for name in first["rank_variables"]]
    assert {"moving_mean", "moving_variance", "seed_generator_state"} <= set(names)


@pytest.mark.slow
def test_nan_loss_on_one_rank_ends_all(own_process: Any, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"(?s)^the loss is nan at step 3 of epoch 1; lower .*\(rank 1 of 2"):
        own_process(run_gang, _nan_on_rank_1, 2, logs=tmp_path, stall_timeout_s=60)


def test_epoch_ends_without_join_operation() -> None:
    def without_a_kernel() -> tf.Tensor:
        return tf.raw_ops.NcclAllReduce(input=[1.0], reduction="sum", num_devices=1, shared_name="hops")

    _join(without_a_kernel)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected"):
        _join(lambda: tf.debugging.check_numerics(tf.math.log(tf.constant(-1.0)), "expected"))
