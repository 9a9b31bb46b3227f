"""Weights across ranks: broadcast, compared by checksums, and averaged where they may differ."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.hops.keras.optimizer import is_distributed

_CHUNK_BYTES = 16 << 20
_WORD_BYTES = 8
_GAMMA, _FIRST_FACTOR, _SECOND_FACTOR = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def broadcast_weights(model: Any, root_rank: int = 0) -> None:
    """Gives every rank the weights, and the optimizer's state, of one rank.

    The states of random number generators are left unchanged: ranks should drop out different units.
    """
    variables = list(model.weights)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        variables += optimizer.variables
    if hvd.size() == 1 or not variables:
        return

    def broadcast() -> None:
        for number, variable in enumerate(variables):
            # Names of our own: Horovod's come from those of layers, which Keras numbers. A rank that has built a model
            # more than the others would wait for ever.
            name = f"hops_weights_{number}"
            variable.assign(hvd.broadcast(variable.value, root_rank, name=name, ignore_name_scope=True))

    tf.function(broadcast, autograph=False).get_concrete_function()()


def rank_variables(model: Any) -> list[Any]:
    """Returns the variables of a model and its optimizer that may differ between ranks during training.

    They are the states of random number generators, statistics such as a batch normalization's until they are averaged
    at an epoch's end, and gradients that have not been exchanged yet.
    """
    trainable = {id(variable) for variable in model.trainable_variables}
    own = [variable for variable in model.variables if id(variable) not in trainable]
    optimizer = getattr(model, "optimizer", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    waiting = getattr(inner, "_accumulated_gradients", None) or []
    return own + [variable for variable in waiting if variable is not None]


def average_statistics(model: Any) -> None:
    """Gives every rank the average of the ranks' non-trainable weights; every rank must call it.

    Each rank's batch normalization has seen only that rank's rows: its moving mean and variance become the means over
    the ranks. Weights that are equal on all ranks stay equal to the last bit. Integers are left unchanged.
    """
    statistics = [v for v in model.non_trainable_weights if v.value.dtype.is_floating]
    if hvd.size() == 1 or not statistics:
        return
    # In float64 the sum of equal float32 values is exact, and so is their mean.
    averaged = hvd.allreduce(_flat(statistics), op=hvd.Average, name="hops_statistics")
    assign_flat(statistics, averaged)


def sum_over_ranks(variables: Sequence[Any], name: str) -> None:
    """Sets each variable to the sum of its values over the ranks; every rank must call it."""
    if hvd.size() > 1 and variables:
        assign_flat(variables, hvd.allreduce(_flat(variables), op=hvd.Sum, name=name))


def assign_flat(variables: Sequence[Any], values: Any) -> None:
    """Assigns the parts of a vector, one after the other, to variables."""
    sizes = [int(np.prod(variable.shape)) for variable in variables]
    for variable, part in zip(variables, tf.split(values, sizes), strict=True):
        variable.assign(tf.cast(tf.reshape(part, variable.shape), variable.value.dtype))


def _flat(variables: Sequence[Any]) -> tf.Tensor:
    return tf.concat([tf.reshape(tf.cast(v.value, tf.float64), [-1]) for v in variables], 0)


def weights_checksum(model: Any) -> str:
    """Returns the SHA-256 (hex) of the bytes of the trained weights, including those frozen since.

    Only these must be equal across ranks: the moving averages of batch normalization differ.

    Args:
        model: A model of Keras 3 or tf_keras.

    Raises:
        BadInput: a weight is not a number.
    """
    digest = hashlib.sha256()
    for variable in _trained_weights(model):
        values = variable.numpy()
        if not np.isfinite(values).all():
            raise BadInput(
                f"the model's weight {variable.name!r} holds values that are not numbers; lower the learning rate, "
                "clip "
                "gradients, or look for such values in the examples"
            )
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def _trained_weights(model: Any) -> list[Any]:
    """The weights that layers have made to be trained; ``trainable_weights`` leaves out those of a frozen layer."""
    made = {id(variable) for variable in model.trainable_weights}
    for layer in model._flatten_layers():
        for name in ("_trainable_variables", "_trainable_weights"):  # Keras 3 and tf_keras; freezing leaves them alone
            made |= {id(variable) for variable in getattr(layer, name, None) or ()}
    return [variable for variable in model.weights if id(variable) in made]


def check_weights(model: Any, when: str) -> str:
    """Compares the SHA-256 of the weights across ranks; every rank must call it.

    Args:
        model: A Keras model.
        when: For the message: ``at the end of training``.

    Returns:
        The checksum.

    Raises:
        BadInput: the ranks' weights differ; each rank raises the same.
    """
    checksum = weights_checksum(model)
    if hvd.size() == 1:
        return checksum
    mine = tf.constant(np.frombuffer(bytes.fromhex(checksum), dtype=np.uint8)[None, :])
    every = [row.tobytes().hex() for row in hvd.allgather(mine, name="hops_weights_checksum").numpy()]
    if len(set(every)) > 1:
        raise weights_differ([value[:12] for value in every], when, getattr(model, "optimizer", None))
    return checksum


def weights_differ(checksums: Sequence[str], when: str, optimizer: Any) -> BadInput:
    """Returns the error that names the ranks whose weights differ, and the likely cause.

    Args:
        checksums: By rank.
        when: ``after step 12 of epoch 3``.
        optimizer: The model's optimizer.
    """
    ranks: dict[str, list[int]] = {}
    for rank, checksum in enumerate(checksums):
        ranks.setdefault(checksum, []).append(rank)
    found = ", ".join(f"{_ranks(numbers)}: {checksum}" for checksum, numbers in ranks.items())
    hint = (
        "something changes weights on some ranks only"
        if is_distributed(optimizer)
        else f"the optimizer {type(optimizer).__name__} does not exchange gradients: wrap it in "
        "airflow_hops.hops.keras.DistributedOptimizer"
    )
    return BadInput(f"the ranks' weights differ {when} (checksums: {found}); {hint}")


def _ranks(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:8]) + (" and more" if len(numbers) > 8 else "")
    return f"rank {shown}" if len(numbers) == 1 else f"ranks {shown}"


def in_graph_checksum(variables: Sequence[Any]) -> Callable[[], tf.Tensor]:
    """Makes a TensorFlow function that computes a 64-bit checksum of variables on their device.

    The concatenated bytes of all variables are read as 64-bit words; each is mixed with its position by the
    finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), and the
    sum of them, modulo 2^64, does not depend on the order in which a device adds. Different bits and swapped values are
    detected, except with probability 2^-64.

    Args:
        variables: Keras variables of any floating type. Those of up to 16 MiB are processed together, larger ones one
            by one.

    Returns:
        A function without arguments that returns an int64 scalar.
    """
    chunks = _chunks([variable.value for variable in variables])

    def checksum() -> tf.Tensor:
        total = tf.zeros((), tf.int64)
        for number, chunk in enumerate(chunks):
            total += _mixed_sum(_words(chunk), number)
        return total

    # Traced here and now: TensorFlow warns of functions that are made again and again and traced when called.
    function: Callable[[], tf.Tensor] = tf.function(checksum, autograph=False).get_concrete_function()
    return function


def _chunks(variables: Sequence[Any]) -> list[list[Any]]:
    chunks: list[list[Any]] = []
    left = 0
    for variable in variables:
        size = variable.shape.num_elements() * variable.dtype.size
        if not chunks or size > left:
            chunks.append([])
            left = _CHUNK_BYTES
        chunks[-1].append(variable)
        left -= size
    return chunks


def _words(variables: Sequence[Any]) -> tf.Tensor:
    """The bytes of variables as uint64, the last word filled up with zeros."""
    raw = tf.concat([tf.reshape(tf.bitcast(tf.convert_to_tensor(v), tf.uint8), [-1]) for v in variables], 0)
    words = -(-raw.shape[0] // _WORD_BYTES)
    padded = tf.pad(raw, [[0, words * _WORD_BYTES - raw.shape[0]]])
    return tf.bitcast(tf.reshape(padded, [words, _WORD_BYTES]), tf.uint64)


def _mixed_sum(words: tf.Tensor, chunk: int) -> tf.Tensor:
    def shifted(values: tf.Tensor, bits: int) -> tf.Tensor:
        return tf.bitwise.right_shift(values, tf.constant(bits, tf.uint64))

    first = chunk << 40  # no chunk has that many words
    position = tf.cast(tf.range(first + 1, first + 1 + words.shape[0], dtype=tf.int64), tf.uint64)
    mixed = words + position * tf.constant(_GAMMA, tf.uint64)
    mixed = tf.bitwise.bitwise_xor(mixed, shifted(mixed, 30)) * tf.constant(_FIRST_FACTOR, tf.uint64)
    mixed = tf.bitwise.bitwise_xor(mixed, shifted(mixed, 27)) * tf.constant(_SECOND_FACTOR, tf.uint64)
    mixed = tf.bitwise.bitwise_xor(mixed, shifted(mixed, 31))
    return tf.reduce_sum(tf.bitcast(mixed, tf.int64))
