"""What the Keras 3 wrapper does on two real ranks, compared with one process on the concatenated batches."""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import tensorflow as tf

from airflow_hops.artifacts import BadInput
from airflow_hops.hops.examples import batches, read_shard
from airflow_hops.hops.keras import (
    BroadcastCallback,
    DistributedOptimizer,
    MetricAverageCallback,
    NanStopCallback,
    WeightsChecksumCallback,
    check_weights,
    weights_checksum,
)
from airflow_hops.runtime.context import StepContext
from airflow_hops.runtime.gang import Channel, Placement, run_gang

STEPS, BATCH = 6, 16


def on_two_ranks(context: StepContext) -> list[dict[str, Any]]:
    """Runs all checks in one gang; a list by rank."""
    found: list[dict[str, Any]] = run_gang(_checks, 2, logs=context.scratch / "logs", stall_timeout_s=60)
    return found


def shards(context: StepContext, *, files: list[int], batch_size: int, size: int) -> list[dict[str, Any]]:
    """How files of so many rows are shared among ranks: the rows of each batch of each rank."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = context.scratch / "split"
    folder.mkdir()
    first = 0
    for number, rows in enumerate(files):
        table = pa.table({"x": np.arange(first, first + rows), "y": np.zeros(rows, "int64")})
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=7)
        first += rows
    found = []
    for rank in range(size):
        shard = read_shard(folder, ["x", "y"], rank=rank, size=size)
        random = np.random.default_rng(rank)
        dataset = batches(shard, "y", shard.steps(batch_size), order=lambda r=random, n=shard.rows: r.permutation(n))
        ordered = batches(shard, "y", shard.steps(batch_size))
        found.append(
            {
                "rows": shard.rows,
                "passes": [[features["x"].numpy().tolist() for features, _ in dataset] for _ in range(2)],
                "ordered": [features["x"].numpy().tolist() for features, _ in ordered],
                "cardinality": int(dataset.cardinality()),
            }
        )
    return found


def _checks(placement: Placement, channel: Channel) -> dict[str, Any]:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    rank = placement.rank
    found: dict[str, Any] = {}
    optimizers = {
        "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "adam_clipped": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5),
        "adamw_schedule": lambda: keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.01, 10)),
    }
    for name, make in optimizers.items():
        for sparse_as_dense in (True, False) if name == "sgd" else (True,):
            model = _model(seed=rank)
            DistributedOptimizer(optimizer := make(), sparse_as_dense=sparse_as_dense)
            steps_per_execution = 3 if name == "adam_clipped" else 1
            model.compile(optimizer, "mse", steps_per_execution=steps_per_execution, jit_compile=False)
            _fit(model, *_rows(rank), BATCH)
            alone = _model(seed=0)
            alone.compile(_with_dense_gradients(make()), "mse", jit_compile=False)
            alone.fit(_concatenated(), epochs=1, shuffle=False, verbose=0)
            difference = [np.abs(a - b).max() for a, b in zip(model.get_weights(), alone.get_weights(), strict=True)]
            key = name if sparse_as_dense else f"{name}_sparse"
            found[key] = {"checksum": weights_checksum(model), "difference": float(max(difference))}
    found["mixed_float16"] = _with_a_rank_that_overflows(rank)
    found["horovod"] = _with_horovods_own(rank)
    found["unwrapped"] = _error(lambda: _fit_checked(_compiled(rank, keras.optimizers.SGD(0.1)), rank))
    found["one_rank_changes"] = _error(lambda: _one_rank_changes(rank))
    found["jit"] = _error(
        lambda: _fit_checked(_compiled(rank, DistributedOptimizer(keras.optimizers.SGD()), jit=True), rank)
    )
    found["jit_without_callback"] = _error(
        lambda: _compiled(rank, DistributedOptimizer(keras.optimizers.SGD()), jit=True).fit(
            *_rows(rank), batch_size=BATCH, verbose=0
        )
    )
    found["not_an_optimizer"] = _error(lambda: DistributedOptimizer("adam"))
    found["nan"] = _error(
        lambda: _compiled(0, DistributedOptimizer(keras.optimizers.SGD())).fit(
            np.tile(np.float32([np.nan, 0, 1]), (BATCH, 1)),
            np.zeros((BATCH, 1)),
            verbose=0,
            callbacks=[NanStopCallback()],
        )
    )
    logs = {"loss": float(rank), "auc": 0.5 + rank / 4}
    MetricAverageCallback().on_epoch_end(0, logs)
    found["averaged"] = logs
    optimizer = DistributedOptimizer(keras.optimizers.Adam(0.5))
    found["config"] = keras.optimizers.serialize(optimizer)["class_name"]
    found["idempotent"] = DistributedOptimizer(optimizer) is optimizer
    return found


def _with_dense_gradients(optimizer: Any) -> Any:
    """Keras applies a sparse gradient's duplicates one by one, which is another result than their sum for Adam."""

    class Dense(type(optimizer)):  # type: ignore[misc]
        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            super().apply([tf.convert_to_tensor(gradient) for gradient in grads], trainable_variables)

    object.__setattr__(optimizer, "__class__", Dense)
    return optimizer


def _model(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((3,))
    ids = keras.ops.cast(inputs[:, 2], "int64")
    hidden = keras.layers.Concatenate()([inputs[:, :2], keras.layers.Embedding(4, 3)(ids)])
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(5, activation="tanh")(hidden)))


def _compiled(rank: int, optimizer: Any, *, jit: bool = False) -> keras.Model:
    model = _model(seed=rank)
    model.compile(optimizer, "mse", jit_compile=jit)
    return model


def _rows(rank: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(rank)
    x = random.normal(size=(STEPS * BATCH, 3)).astype("float32")
    x[:, 2] = random.integers(0, 4, len(x))
    return x, x.sum(axis=1, keepdims=True)


def _fit(model: keras.Model, x: Any, y: Any, batch: int, callbacks: tuple[Any, ...] = ()) -> None:
    model.fit(x, y, batch_size=batch, epochs=1, shuffle=False, verbose=0, callbacks=[BroadcastCallback(), *callbacks])


def _fit_checked(model: keras.Model, rank: int) -> None:
    _fit(model, *_rows(rank), BATCH, (WeightsChecksumCallback(),))


def _concatenated() -> tf.data.Dataset:
    """Each batch holds both ranks' batches of that step."""
    parts = [[values.reshape(STEPS, BATCH, -1) for values in _rows(rank)] for rank in range(2)]
    x, y = (np.concatenate([parts[0][i], parts[1][i]], axis=1) for i in range(2))
    return tf.data.Dataset.from_tensor_slices((x, y))


def _with_a_rank_that_overflows(rank: int) -> dict[str, Any]:
    """A scaled loss whose gradients overflow on rank 1 alone, until the scale is small enough."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = _compiled(rank, DistributedOptimizer(keras.optimizers.SGD(1e-4)))
        before = weights_checksum(model)
        x, y = _rows(rank)
        _fit(model, x, y * (4 if rank else 0.1), BATCH, (WeightsChecksumCallback(),))
    finally:
        keras.config.set_dtype_policy("float32")
    return {
        "checksum": weights_checksum(model),
        "trained": weights_checksum(model) != before,
        "scale": float(model.optimizer.dynamic_scale.numpy()),
        "initial_scale": model.optimizer.initial_scale,
    }


def _with_horovods_own(rank: int) -> str:
    """Horovod's wrapper around a Keras 3 optimizer: the trap."""
    import horovod.tensorflow.keras as horovod_keras

    model = _compiled(0, horovod_keras.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    model.fit(*_rows(rank), batch_size=BATCH, shuffle=False, verbose=0)
    return weights_checksum(model)


def _one_rank_changes(rank: int) -> None:
    model = _compiled(0, DistributedOptimizer(keras.optimizers.SGD()))
    if rank == 1:
        kernel = model.trainable_weights[0]
        kernel.assign(np.nextafter(kernel.numpy(), np.float32(9)))
    check_weights(model, "after step 12 of epoch 3")


def _error(function: Any) -> str:
    try:
        function()
    except BadInput as error:
        return str(error)
    return "no error"
