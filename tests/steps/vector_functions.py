"""A pipeline's functions for items that are embeddings of 16 numbers beside a price."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from airflow_hops.hops import DistributedOptimizer, TrainContext, fill_missing, is_missing, z_score


def prepare(spark: Any, tables: dict[str, Any]) -> Any:
    """The one table as it is."""
    return tables["items"]


def preprocess(features: dict[str, Any], constants: Any) -> dict[str, Any]:
    """The embedding as it is, zeros where it is missing; the first two of its numbers as a direction."""
    embedding = fill_missing(features["embedding"], 0.0)
    direction = tf.math.l2_normalize(embedding, axis=1)[:, :2]
    return {
        "embedding": embedding,
        "direction": direction,
        "missing": is_missing(features["embedding"]),
        "price": z_score(features, "price", constants),
    }


def train(context: TrainContext) -> keras.Model:
    """A linear model of the embedding and the price."""
    inputs = {
        "embedding": keras.Input((context.feature_outputs["embedding"].width,), name="embedding"),
        "price": keras.Input((1,), name="price"),
    }
    joined = keras.layers.Concatenate()([inputs["embedding"], inputs["price"]])
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(joined))
    model.compile(DistributedOptimizer(keras.optimizers.Adam(0.05)), "binary_crossentropy")
    context.fit(model, epochs=3, batch_size=64)
    return model


def estimate(context: TrainContext) -> Any:
    """A logistic regression on a matrix of whatever columns there are, missing numbers filled."""
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    rows = context.table("train")
    model = make_pipeline(SimpleImputer(), LogisticRegression(max_iter=200))
    return model.fit(rows.frame() if context.params.get("frame") else rows.matrix(), rows.labels)
