"""Weights across ranks: broadcast, compared by checksums, and averaged if they may differ."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.training.collectives import hvd
from airflow_hops.ml.training.digests import check_equal
from airflow_hops.ml.training.keras.inference_state import adapted_digests, inference_digests
from airflow_hops.ml.training.keras.optimizer import is_distributed


def broadcast_weights(model: keras.Model, root_rank: int = 0) -> None:
    """Copies the weights and the optimizer's state of one rank to all others.

    The values that ``Normalization`` derives from its weights are updated. The states of random number generators are
    left unchanged: ranks should drop out different units.

    Raises:
        BadInput: the model has no weights yet; or the ranks' models differ in the shapes of weights, or in vocabularies
            or boundaries that they adapted.

    Example:
        >>> import keras
        >>> from airflow_hops import broadcast_weights
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> broadcast_weights(model)
    """
    if not model.built:  # Keras 3.15: makes the weights at the first batch, which is too late to start from equal ones
        raise BadInput(
            f"the model {model.name!r} has no weights yet; begin it with a keras.Input, or call model.build(shape)"
        )
    variables = list(model.weights)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        variables += optimizer.variables
    if hvd.size() > 1 and variables:
        check_equal(hvd.allgather_object(adapted_digests(model)), "before training")
        _broadcast(variables, root_rank)
    normalizations = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.Normalization)]
    for layer in normalizations:
        layer.finalize_state()
    if normalizations and model.compiled:  # functions that were traced before hold the previous mean
        model.make_train_function(force=True)
        model.make_test_function(force=True)
        model.make_predict_function(force=True)


def _broadcast(variables: Sequence[Any], root_rank: int) -> None:
    def broadcast() -> None:
        for number, variable in enumerate(variables):
            # Horovod 0.28: names come from those of layers, which Keras numbers: a rank that has built a model more
            # than the others would wait forever.
            name = f"hops_weights_{number}"
            variable.assign(hvd.broadcast(variable.value, root_rank, name=name, ignore_name_scope=True))

    tf.function(broadcast, autograph=False).get_concrete_function()()


def rank_variables(model: keras.Model) -> list[Any]:
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


def average_statistics(model: keras.Model, weight: float = 1.0) -> None:
    """Averages the ranks' non-trainable weights; every rank must call it.

    Each rank's batch normalization has seen only that rank's rows: its moving mean and variance become the means over
    the ranks. Weights that are equal on all ranks stay equal to the last bit. Integers are left unchanged.

    Args:
        model: The model.
        weight: This rank's weight in the means; those of all ranks have the mean 1.
    """
    statistics = [v for v in model.non_trainable_weights if v.value.dtype.is_floating]
    if hvd.size() == 1 or not statistics:
        return
    _average(statistics, weight)


def _average(statistics: Sequence[object], weight: float = 1.0) -> None:
    # In float64 the sum of equal float32 values is exact, and so is their mean; with weights, to float32.
    assign_flat(statistics, hvd.allreduce(_flat(statistics) * weight, op=hvd.Average, name="hops_statistics"))


def sum_over_ranks(variables: Sequence[object], name: str) -> None:
    """Sets each variable to the sum of its values over the ranks; every rank must call it."""
    if hvd.size() > 1 and variables:
        assign_flat(variables, hvd.allreduce(_flat(variables), op=hvd.Sum, name=name))


def assign_flat(variables: Sequence[Any], values: object) -> None:
    """Assigns consecutive parts of a vector to variables."""
    sizes = [int(np.prod(variable.shape)) for variable in variables]
    for variable, part in zip(variables, tf.split(values, sizes), strict=True):
        variable.assign(tf.cast(tf.reshape(part, variable.shape), variable.dtype))


def _flat(variables: Sequence[object]) -> tf.Tensor:
    return tf.concat([tf.reshape(tf.cast(tf.convert_to_tensor(v), tf.float64), [-1]) for v in variables], 0)


def weights_checksum(model: object) -> str:
    """Returns the SHA-256 (hex) of the bytes of a Keras 3 or tf_keras model's trained weights, including frozen ones.

    Raises:
        BadInput: a weight is NaN or infinite.

    Example:
        >>> import keras
        >>> from airflow_hops import weights_checksum
        >>> len(weights_checksum(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])))
        64
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
        digest.update(_bytes(values))
    return digest.hexdigest()


def short_checksum(variables: Sequence[Any]) -> int:
    """Returns the first 64 bits of the SHA-256 of the variables' bytes, as a signed integer.

    It takes 0.4 to 0.8 ms for ten small variables, and half a second for a gigabyte. A TensorFlow function would first
    take a tenth of a second for tracing.
    """
    digest = hashlib.sha256()
    for variable in variables:
        digest.update(_bytes(variable.value.numpy()))
    return int.from_bytes(digest.digest()[:8], "little", signed=True)


def _bytes(values: np.ndarray) -> memoryview:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _trained_weights(model: keras.Model) -> list[Any]:
    """Returns the weights that layers created as trainable; ``trainable_weights`` lacks those of a frozen layer."""
    made = {id(variable) for variable in model.trainable_weights}
    for layer in model._flatten_layers():
        for name in (
            "_trainable_variables",
            "_trainable_weights",
        ):  # of Keras 3 and of tf_keras; freezing does not change them
            made |= {id(variable) for variable in getattr(layer, name, None) or ()}
    return [variable for variable in model.weights if id(variable) in made]


def check_weights(model: keras.Model, when: str, features: object = None) -> str:
    """Compares the state that predictions depend on across ranks, and returns its SHA-256; every rank must call it.

    Before, it averages the moving statistics of batch normalizations, which a training loop of your own leaves
    different.

    Args:
        model: A Keras 3 or tf_keras model.
        when: When it is compared, for the error.
        features: See :func:`airflow_hops.ml.training.keras.inference_state.inference_digests`.

    Raises:
        BadInput: the ranks' weights or derived values differ; the same error, with ``when``, on each rank.

    Example:
        >>> import keras
        >>> from airflow_hops import check_weights, weights_checksum
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> len(check_weights(model, "after the last epoch"))
        64
    """
    checksum = weights_checksum(model)
    if hvd.size() == 1:
        return checksum
    every = hvd.allgather_object(checksum)
    if len(set(every)) > 1:
        raise weights_differ([value[:12] for value in every], when, getattr(model, "optimizer", None))
    names = ("moving_mean", "moving_variance")
    statistics = [getattr(layer, name) for layer in model._flatten_layers() for name in names if hasattr(layer, name)]
    if statistics:
        _average(statistics)
    return check_equal(hvd.allgather_object(inference_digests(model, features)), when)


def weights_differ(checksums: Sequence[str], when: str, optimizer: object) -> BadInput:
    """Returns the error that names the ranks whose weights differ, and the likely cause."""
    ranks: dict[str, list[int]] = {}
    for rank, checksum in enumerate(checksums):
        ranks.setdefault(checksum, []).append(rank)
    result = ", ".join(f"{_ranks(numbers)}: {checksum}" for checksum, numbers in ranks.items())
    hint = (
        "something changes weights on some ranks only"
        if is_distributed(optimizer)
        else f"the optimizer {type(optimizer).__name__} does not exchange gradients: wrap it in "
        "airflow_hops.ml.training.keras.DistributedOptimizer"
    )
    return BadInput(f"the ranks' weights differ {when} (checksums: {result}); {hint}")


def _ranks(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:8]) + (" and more" if len(numbers) > 8 else "")
    return f"rank {shown}" if len(numbers) == 1 else f"ranks {shown}"
