"""The network of the pictures' demo, which ``tests/extensions/images/test_fashion_mnist.py`` shows as a whole."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

MODEL = Path(__file__).parents[4] / "dags" / "fashion" / "model.py"


def test_network_learns_ten_kinds_of_pictures() -> None:
    import keras

    spec: Any = importlib.util.spec_from_file_location("fashion_model", MODEL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    keras.utils.set_random_seed(1)
    model = module.build(SimpleNamespace(feature_outputs={"image": tf.TensorSpec((28, 28, 1), tf.float32)}))
    labels = np.arange(400) % 10
    images = np.random.default_rng(1).normal(0, 0.1, (400, 28, 28, 1)).astype("float32")
    for number, label in enumerate(labels):  # a bar, lower for each class
        images[number, 2 * label : 2 * label + 4] += 1
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit({"image": images}, labels, epochs=6, batch_size=20, verbose=0)
    assert model.evaluate({"image": images}, labels, verbose=0)[1] > 0.9
