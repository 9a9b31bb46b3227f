"""Writes the SavedModels of the serving tests; run with the runtime environment's Python."""

from __future__ import annotations

import sys
from pathlib import Path

import tensorflow as tf


class Flights(tf.Module):
    """Raw features in, as the pipeline exports them; the score tells which version answered."""

    def __init__(self, version: int) -> None:
        super().__init__()
        self.version = tf.Variable(float(version))
        self.carriers = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(["AA", "UA"], tf.constant([1, 2], tf.int64)), -1
        )

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, "carrier"),
            tf.TensorSpec([None, 1], tf.float32, "distance"),
            tf.TensorSpec([None], tf.int64, "hour"),
        ]
    )
    def serve(self, carrier: tf.Tensor, distance: tf.Tensor, hour: tf.Tensor) -> dict[str, tf.Tensor]:
        score = distance + tf.cast(hour, tf.float32)[:, None] + 1000.0 * self.version
        return {"score": score, "carrier_id": self.carriers.lookup(carrier)}


class Vectors(tf.Module):
    """One input of rank 2, several signatures, strings out."""

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, "x")])
    def double(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": x * 2.0}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def strings(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"upper": tf.strings.upper(text), "raw_bytes": text}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def divide(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": 1.0 / x}

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64, "rounds")])
    def slow(self, rounds: tf.Tensor) -> dict[str, tf.Tensor]:
        total = tf.while_loop(
            lambda i, _: i < rounds,
            lambda i, m: (i + 1, tf.linalg.matmul(m, m) / tf.norm(m)),
            [tf.constant(0, tf.int64), tf.eye(400)],
        )[1]
        return {"trace": tf.linalg.trace(total)}


class Fragile(tf.Module):
    """Ends the process that runs it on a negative input."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def serve(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        def end() -> tf.Tensor:
            with tf.control_dependencies([tf.raw_ops.Abort(error_msg="a negative input")]):
                return tf.identity(x)

        return {"y": tf.cond(tf.reduce_any(x < 0.0), end, lambda: x * 2.0)}


def main(folder: Path) -> None:
    for version in (1, 2, 3):
        flights = Flights(version)
        tf.saved_model.save(flights, str(folder / "flights" / str(version)), {"serving_default": flights.serve})
    vectors = Vectors()
    signatures = {
        "serving_default": vectors.double,
        "strings": vectors.strings,
        "divide": vectors.divide,
        "slow": vectors.slow,
    }
    tf.saved_model.save(vectors, str(folder / "vectors" / "7"), signatures)
    fragile = Fragile()
    tf.saved_model.save(fragile, str(folder / "fragile" / "1"), {"serving_default": fragile.serve})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
