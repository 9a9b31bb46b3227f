"""User code of the pipeline of a plain table: all columns but one are scaled, for a logistic regression."""

from __future__ import annotations

from typing import Any

NOT_USED = "worst fractal dimension"


def prepare(spark: Any, tables: dict[str, Any]) -> Any:
    """The table as it is."""
    return tables["rows"]


def preprocess(features: dict[str, Any], constants: Any) -> dict[str, Any]:
    """The z-scores side by side."""
    from airflow_hops.hops import columns, z_score

    return {"numeric": columns([z_score(features, name, constants) for name in features if name != NOT_USED])}


def train(context: Any) -> Any:
    """A logistic regression."""
    import keras

    from airflow_hops.hops import DistributedOptimizer

    numeric = keras.Input((context.feature_outputs["numeric"].width,), name="numeric")
    model = keras.Model({"numeric": numeric}, keras.layers.Dense(1, activation="sigmoid")(numeric))
    model.compile(DistributedOptimizer(keras.optimizers.Adam(0.05)), "binary_crossentropy")
    context.fit(model, epochs=5, batch_size=64)
    return model
