"""Models whose predictions are columns of their rows, so that a test says itself what is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def write_echo_model(folder: Path, output: str, columns: Sequence[str]) -> Path:
    """A SavedModel whose output is a column (``probability``, ``prediction``), or several (``probabilities``)."""
    import tensorflow as tf

    @tf.function(input_signature=[[tf.TensorSpec([None], tf.float32, name) for name in columns]])
    def serve(columns: Any) -> Any:
        return {output: tf.stack(columns, axis=1) if output == "probabilities" else columns[0]}

    module = tf.Module()
    module.serve = serve
    tf.saved_model.save(module, str(folder), signatures={"serving_default": serve})
    return folder
