"""A small model whose curves are looked at."""

from __future__ import annotations

import keras

from airflow_hops.hops import DistributedOptimizer, TrainContext


def train(context: TrainContext) -> keras.Model:
    """A logistic regression on numbers and a kind."""
    numeric, kind = keras.Input((2,), name="numeric"), keras.Input((), dtype="int64", name="kind_id")
    every = keras.layers.Concatenate()([numeric, keras.layers.Embedding(5, 2)(kind)])
    model = keras.Model({"numeric": numeric, "kind_id": kind}, keras.layers.Dense(1, activation="sigmoid")(every))
    optimizer = DistributedOptimizer(keras.optimizers.Adam(0.01))
    model.compile(optimizer, "binary_crossentropy", metrics=[keras.metrics.AUC(name="auc")])
    context.fit(model, epochs=context.params["epochs"], batch_size=100)
    return model
