"""Preprocessing functions for the tests of the transform: one that is right, and every way to be wrong."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from airflow_hops.ml.features.constants import Constants
from airflow_hops.ml.features.preprocessing import bucketize, columns, one_hot, vocabulary_ids, z_score

Tensors = dict[str, tf.Tensor]


def right(features: Tensors, constants: Constants) -> Tensors:
    temperature = bucketize(z_score(features, "temp", constants), [-1.0, 0.0, 1.0])
    return {
        "numeric": columns([z_score(features, "distance", constants), one_hot(temperature, 4)]),
        "origin_id": vocabulary_ids(features["origin"], constants.vocabulary("origin")),
        "when": features["scheduled_at"],
        "x": features["temp"],
    }


def raises(features: Tensors, constants: Constants) -> Tensors:
    return {"ratio": features["distance"] / undefined_name}  # noqa: F821


def asks_for_an_unknown_feature(features: Tensors, constants: Constants) -> Tensors:
    return {"x": features["arr_delay"]}


def asks_for_an_unknown_constant(features: Tensors, constants: Constants) -> Tensors:
    return {"x": features["distance"] / constants.mean("arr_delay")}


def returns_no_dict(features: Tensors, constants: Constants) -> Any:
    return features["distance"]


def returns_a_number(features: Tensors, constants: Constants) -> Any:
    return {"x": 1.0}


def returns_a_boolean(features: Tensors, constants: Constants) -> Tensors:
    return {"x": features["distance"] > 1.0}


def returns_a_scalar(features: Tensors, constants: Constants) -> Tensors:
    return {"x": tf.reduce_mean(features["distance"])}


def returns_one_row(features: Tensors, constants: Constants) -> Tensors:
    return {"x": tf.reduce_mean(features["distance"], keepdims=True)}


def returns_a_cube(features: Tensors, constants: Constants) -> Tensors:
    return {"x": features["distance"][:, tf.newaxis, tf.newaxis]}


def returns_the_label(features: Tensors, constants: Constants) -> Tensors:
    return {"late": features["distance"]}


def other_rows(features: Tensors, constants: Constants) -> Tensors:
    return {"x": tf.unique(features["weekday"]).y}


def width_of_the_data(features: Tensors, constants: Constants) -> Tensors:
    widest = tf.reduce_max(features["weekday"]) + 1
    return {"x": tf.one_hot(features["weekday"], tf.cast(widest, tf.int32))}


def mean_of_the_batch(features: Tensors, constants: Constants) -> Tensors:
    return {"x": features["distance"] - tf.reduce_mean(features["distance"])}


def fails_on_values(features: Tensors, constants: Constants) -> Tensors:
    with tf.control_dependencies([tf.debugging.assert_less(features["distance"], 0.0, message="too far")]):
        return {"x": tf.identity(features["distance"])}


def identity(features: Tensors, constants: Constants) -> Tensors:
    return {"x": features["distance"]}
