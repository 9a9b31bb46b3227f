"""Models whose predictions are columns of their rows, so that a test says itself what is predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_echo_model(folder: Path, output: str, columns: Sequence[str], more: Mapping[str, str] | None = None) -> Path:
    """A SavedModel whose output is a column (``probability``, ``prediction``), or several (``probabilities``).

    ``more`` names further outputs, and the column that each is.
    """
    import tensorflow as tf

    others = more or {}

    @tf.function(input_signature=[[tf.TensorSpec([None], tf.float32, name) for name in (*columns, *others.values())]])
    def serve(given: Any) -> Any:
        own = given[: len(columns)]
        first = {output: tf.stack(own, axis=1) if output == "probabilities" else own[0]}
        return {**first, **dict(zip(others, given[len(columns) :], strict=True))}

    module = tf.Module()
    module.serve = serve
    tf.saved_model.save(module, str(folder), signatures={"serving_default": serve})
    return folder
