"""State of layers beside their weights: equal on all ranks, or refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
import tensorflow as tf
from small_model import BATCH, STEPS, rows_of

from airflow_hops.core.errors import BadInput
from airflow_hops.ml.training.digests import check_equal
from airflow_hops.ml.training.keras import BroadcastCallback, DistributedOptimizer, broadcast_weights, check_weights
from airflow_hops.ml.training.keras.inference_state import inference_digests

pytestmark = pytest.mark.xdist_group("ranks")


class _Projection(keras.layers.Layer):
    """Projects on directions that it draws: no weights, so nothing broadcasts them."""

    def build(self, shape: Any) -> None:
        self.directions = keras.random.normal((shape[-1], 2))

    def call(self, x: Any) -> Any:
        return keras.ops.matmul(x, self.directions)


class _Scale(keras.layers.Layer):
    """Multiplies by a Python number, which is a constant of the graph."""

    def build(self, shape: Any) -> None:
        self.factor = float(np.random.normal())

    def call(self, x: Any) -> Any:
        return x * self.factor


class _Bias(keras.layers.Layer):
    """Adds a variable of TensorFlow's, which Keras 3 does not count among the weights."""

    def build(self, shape: Any) -> None:
        self.bias = tf.Variable(np.random.normal(size=shape[-1]).astype("float32"), trainable=False)

    def call(self, x: Any) -> Any:
        return x + self.bias


class Submodel(keras.Model):
    """A subclassed model with an adapted layer."""

    def __init__(self, adapted: keras.layers.Layer) -> None:
        super().__init__()
        self.adapted, self.dense = adapted, keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(self.adapted(x))


def _adapted(layer: keras.layers.Layer, *, words: bool = False) -> keras.layers.Layer:
    """The layer, adapted to this rank's rows; in ``words``, ranks have as many, but others."""
    layer.adapt(np.array([f"b{hvd.rank()}", "a", "a"]) if words else rows_of(hvd.rank())[0])
    return layer


def _on_text(layer: keras.layers.Layer, x: Any) -> Any:
    texts = keras.layers.Lambda(lambda x: tf.strings.as_string(tf.cast(x[:, 0], tf.int64)), output_shape=())(x)
    return layer(texts)


def _trained(branch: Callable[[Any], Any]) -> Any:
    """Trains a model with a branch on each rank's own rows."""
    keras.utils.set_random_seed(hvd.rank())
    x, y = rows_of(hvd.rank())
    inputs = keras.Input((3,))
    parts = [keras.ops.cast(branch(inputs), "float32"), inputs]
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))
    return _fitted(model, x, y)


def _fitted(model: keras.Model, x: Any, y: Any) -> Any:
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", jit_compile=False)
    model.fit(x, y, batch_size=BATCH * STEPS, verbose=0, callbacks=[BroadcastCallback()])
    check_weights(model, "at the end")
    return model.predict(rows_of(7)[0], verbose=0).tolist()


def _with(make: Callable[[], keras.layers.Layer]) -> Any:
    return _trained(lambda x: make()(x))


def _with_words(make: Callable[[], keras.layers.Layer]) -> Any:
    return _trained(lambda x: _on_text(_adapted(make(), words=True), x))


def _normalized() -> Any:
    return _with(lambda: _adapted(keras.layers.Normalization()))


def _discretized() -> Any:
    return _with(lambda: _adapted(keras.layers.Discretization(num_bins=4)))


def _normalized_subclass() -> Any:
    keras.utils.set_random_seed(hvd.rank())
    model, (x, y) = Submodel(_adapted(keras.layers.Normalization())), rows_of(hvd.rank())
    model(x)
    return _fitted(model, x, y)


def _normalized_after_predicting() -> Any:
    """Keras has traced a function that holds the rank's own mean."""
    model = keras.Sequential([keras.Input((3,)), _adapted(keras.layers.Normalization()), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model.predict(rows_of(7)[0], verbose=0)
    broadcast_weights(model)
    return model.predict(rows_of(7)[0], verbose=0).tolist()


@pytest.mark.parametrize("train", [_normalized, _normalized_subclass, _normalized_after_predicting])
def test_ranks_share_the_mean_that_rank_0_adapted(two_ranks: Any, train: Callable[[], Any]) -> None:
    first, second = two_ranks(train)
    assert first == second


def _vocabulary_of_another_size() -> Any:
    lookup = keras.layers.StringLookup()
    lookup.adapt(np.array(["a", "b", "c"][: 2 + hvd.rank()]))
    embedding = keras.layers.Embedding(lookup.vocabulary_size(), 2)
    return _trained(lambda x: embedding(_on_text(lookup, x)))


BEFORE = {
    "discretization": _discretized,
    "string_lookup": partial(_with_words, partial(keras.layers.StringLookup, output_mode="one_hot")),
    "text_vectorization": partial(_with_words, partial(keras.layers.TextVectorization, output_mode="tf_idf")),
    "shapes of the weights": _vocabulary_of_another_size,
}


@pytest.mark.parametrize("layer", BEFORE)
def test_differing_vocabularies_and_boundaries_are_refused_before_training(two_ranks: Any, layer: str) -> None:
    first, second = two_ranks.errors(BEFORE[layer])
    assert first == second
    assert first.startswith("the ranks' models differ before training in ") and layer in first
    assert "horovod.tensorflow.broadcast_object" in first


AFTER = {"projection": _Projection, "scale": _Scale, "bias": _Bias}


@pytest.mark.parametrize("layer", AFTER)
def test_values_outside_the_weights_are_compared_at_the_end(two_ranks: Any, layer: str) -> None:
    first, second = two_ranks.errors(partial(_with, AFTER[layer]))
    assert first == second
    assert first.startswith("the ranks' models differ at the end in ") and f"_{layer}" in first


def _own_loop() -> Any:
    """A loop of one's own that exchanges no statistics."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    x, _ = rows_of(hvd.rank())
    broadcast_weights(model)
    model(x, training=True)
    initial = [float(np.sum(v.numpy())) for v in model.non_trainable_variables]
    check_weights(model, "at the end")
    return initial, [v.numpy().tolist() for v in model.non_trainable_variables]


def test_custom_loop_ends_with_mean_batch_statistics(two_ranks: Any) -> None:
    first, second = two_ranks(_own_loop)
    assert first[0] != second[0], "each rank has seen its own rows"
    assert first[1] == second[1]


@pytest.mark.slow
def test_mean_of_tf_keras_is_compared_too() -> None:
    import tf_keras

    def digests(rank: int) -> Any:
        tf_keras.utils.set_random_seed(0)
        layer = tf_keras.layers.Normalization()
        layer.adapt(rows_of(rank)[0])
        model = tf_keras.Sequential([tf_keras.Input((3,)), layer, tf_keras.layers.Dense(1)])
        for variable in (layer.adapt_mean, layer.adapt_variance):  # as Horovod's broadcast_variables does
            variable.assign(tf.ones(3))
        return inference_digests(model)

    check_equal([digests(0), digests(0)], "now")
    with pytest.raises(BadInput, match=r"models differ now in sequential\w*/normalization"):
        check_equal([digests(0), digests(1)], "now")


def test_random_numbers_may_differ_between_ranks() -> None:
    def digests(seed: int) -> Any:
        keras.utils.set_random_seed(seed)
        inputs = keras.Input((3,))
        dropped = keras.layers.Dropout(0.5)(inputs, training=True)
        model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(dropped))
        return [digest for _, digest in inference_digests(model)]

    assert digests(0) == digests(1)
