"""TensorFlow is imported without Keras, which is there when a program uses it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from airflow_hops.serving.keras_import import without_keras

with without_keras():
    import tensorflow
assert not [name for name in sys.modules if name.partition(".")[0] == "keras"]
import tensorflow as tf

layer = tf.keras.layers.Dense(2, kernel_initializer="ones")
assert layer(tf.ones([1, 3])).numpy().tolist() == [[3.0, 3.0]]
import keras

assert isinstance(layer, keras.layers.Layer)
"""


def test_keras_is_imported_on_first_use() -> None:
    """TensorFlow alone has no module of Keras; ``tf.keras`` and ``import keras`` work afterwards."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
