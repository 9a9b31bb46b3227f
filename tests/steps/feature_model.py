"""Writes a model of the flights' features in a feature store: a step in the runtime environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from airflow_hops.ml.features.signature_inputs import remove_randomness

TYPES = {
    "distance": tf.float32,
    "mean_delay": tf.float32,
    "flights": tf.float64,
    "sky": tf.string,
    "wind": tf.float32,
    "airport_id": tf.string,
}


def write(context: Any, *, inputs: Sequence[str] = ("distance", "mean_delay", "flights", "sky")) -> Any:
    """Publishes a model that returns what it got as a model artifact."""

    @tf.function(input_signature=[tf.TensorSpec([None], TYPES[name], name) for name in inputs])
    def serve(*values: tf.Tensor) -> dict[str, tf.Tensor]:
        return {f"{name}_seen": tf.identity(value) for name, value in zip(inputs, values, strict=True)}

    module = tf.Module()
    module.serve = serve
    with context.output() as writer:
        tf.saved_model.save(module, str(writer.path / "saved_model"), signatures={"serving_default": serve})
        remove_randomness(writer.path / "saved_model")
        return writer.commit(
            properties={"inputs": list(inputs), "features": list(inputs), "signature": "serving_default"}
        )
