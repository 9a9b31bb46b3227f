"""A small model for the DAG beside this file."""

from __future__ import annotations

import keras

from airflow_hops.hops import DistributedOptimizer, TrainContext


def train(context: TrainContext) -> keras.Model:
    """A logistic regression."""
    numeric = keras.Input((2,), name="numeric")
    kind_id = keras.Input((), dtype="int64", name="kind_id")
    hidden = keras.layers.Concatenate()([numeric, keras.layers.Embedding(5, 2)(kind_id)])
    probability = keras.layers.Dense(1, activation="sigmoid")(hidden)
    model = keras.Model({"numeric": numeric, "kind_id": kind_id}, probability)
    model.compile(DistributedOptimizer(keras.optimizers.Adam(0.01)), "binary_crossentropy")
    context.fit(model, epochs=2, batch_size=100)
    return model
