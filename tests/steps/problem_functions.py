"""A pipeline's functions for a label of any kind: all columns are numbers."""

from __future__ import annotations

from typing import Any

import keras

from airflow_hops.hops import DistributedOptimizer, TrainContext, columns, z_score


def prepare(spark: Any, tables: dict[str, Any]) -> Any:
    """The one table as it is."""
    (table,) = tables.values()
    return table


def preprocess(features: dict[str, Any], constants: Any) -> dict[str, Any]:
    """All features side by side."""
    return {"numeric": columns([z_score(features, name, constants) for name in features])}


def train(context: TrainContext) -> keras.Model:
    """A linear model of a number."""
    numeric = keras.Input((context.feature_outputs["numeric"].width,), name="numeric")
    dense = keras.layers.Dense(1, bias_initializer=keras.initializers.Constant(150.0))
    model = keras.Model({"numeric": numeric}, dense(numeric))
    model.compile(DistributedOptimizer(keras.optimizers.Adam(context.params["lr"])), "mse")
    context.fit(model, epochs=context.params["epochs"], batch_size=32)
    return model
