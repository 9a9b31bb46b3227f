"""A pipeline whose models predict three labels of a parcel: whether it is late, by how many minutes, and why."""

from __future__ import annotations

from typing import Any

from airflow_hops.hops import Constants, TrainContext

CAUSES = ["air", "road", "sorting"]


def prepare(spark: Any, tables: dict[str, Any]) -> Any:
    return tables["parcels"]


def preprocess(features: dict[str, Any], constants: Constants) -> dict[str, Any]:
    import tensorflow as tf

    return {"numeric": tf.stack([features["distance"], features["load"]], axis=1), "hour": features["hour"]}


def preprocess_that_takes_a_label(features: dict[str, Any], constants: Constants) -> dict[str, Any]:
    return {"minutes_scaled": features["minutes"] / 60.0}


def preprocess_with_the_name_of_a_label(features: dict[str, Any], constants: Constants) -> dict[str, Any]:
    return {"minutes": features["load"]}


def train_keras(context: TrainContext) -> Any:
    """Three heads on one layer, whose activations are an output, too."""
    import keras

    assert context.target is not None
    inputs = {name: keras.Input(spec.shape, name=name) for name, spec in context.feature_outputs.items()}
    hidden = keras.layers.Dense(16, activation="relu")(inputs["numeric"])
    heads = {
        "late": keras.layers.Dense(1, activation="sigmoid")(hidden),
        "minutes": keras.layers.Dense(1)(hidden),
        "cause": keras.layers.Dense(len(CAUSES), activation="softmax")(hidden),
    }
    model = keras.Model(inputs, heads)
    losses = {"late": "binary_crossentropy", "minutes": "mse", "cause": "sparse_categorical_crossentropy"}
    model.compile(keras.optimizers.Adam(0.03), loss=losses)
    context.fit(model, epochs=6, batch_size=64)
    return keras.Model(inputs, {**heads, "embedding": hidden})


def train_estimators(context: TrainContext) -> Any:
    """An estimator for each label."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LinearRegression, LogisticRegression

    rows = context.table("train", ["numeric"])
    kinds = {
        "late": LogisticRegression(),
        "minutes": LinearRegression(),
        "cause": RandomForestClassifier(20, random_state=0, max_depth=6),
    }
    labels = {"late": rows.labels, **rows.more_labels}
    return {name: kinds[name].fit(rows.matrix(), values) for name, values in labels.items()}
