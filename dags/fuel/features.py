"""Features of the fuel model: one function, run by Spark for training and by the server for serving."""

from __future__ import annotations

import tensorflow as tf

from airflow_hops import Constants, vocabulary_ids

NUMBERS = ("cylinders", "displacement", "horsepower", "weight_in_lbs", "acceleration")


def preprocess(features: dict[str, tf.Tensor], constants: Constants) -> dict[str, tf.Tensor]:
    """Raw features of shape [batch] to what trees take: the numbers as they are, missing or not, and an id."""
    origin = vocabulary_ids(features["origin"], constants.vocabulary("origin"))
    return {**{name: features[name] for name in NUMBERS}, "origin_id": origin}
