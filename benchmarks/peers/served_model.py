"""A SavedModel called with columns of plain Python values, as a service of any of the peers would do it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


class SavedModel:
    """The signature ``serving_default`` of a SavedModel."""

    def __init__(self, folder: str) -> None:
        import tensorflow as tf

        self._tf = tf
        self._model = tf.saved_model.load(folder)
        self._signature = self._model.signatures["serving_default"]
        self._types = {spec.name: spec.dtype for spec in self._signature.structured_input_signature[1].values()}

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Name to array, to name to array."""
        tensors = {name: self._tf.constant(value, self._types[name]) for name, value in inputs.items()}
        return {name: tensor.numpy() for name, tensor in self._signature(**tensors).items()}
