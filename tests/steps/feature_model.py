"""Writes a model of the flights' features in a feature store: a step in the runtime environment."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

SIGNATURE = [
    tf.TensorSpec([None], tf.float32, "distance"),
    tf.TensorSpec([None], tf.float32, "mean_delay"),
    tf.TensorSpec([None], tf.float64, "flights"),
    tf.TensorSpec([None], tf.string, "sky"),
]


class Seen(tf.Module):
    """Returns what it got."""

    @tf.function(input_signature=SIGNATURE)
    def serve(
        self, distance: tf.Tensor, mean_delay: tf.Tensor, flights: tf.Tensor, sky: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        return {
            "distance_seen": distance,
            "mean_delay_seen": mean_delay,
            "flights_seen": flights,
            "sky_seen": tf.strings.join([sky]),
        }


def write(context: Any) -> Any:
    """Publishes it as a model artifact."""
    module = Seen()
    with context.output() as writer:
        tf.saved_model.save(module, str(writer.path / "saved_model"), signatures={"serving_default": module.serve})
        inputs = [spec.name for spec in SIGNATURE]
        return writer.commit(properties={"inputs": inputs, "features": inputs, "signature": "serving_default"})
