"""Models whose predictions are columns of their rows, so that a test says itself what is predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def write_function(folder: Path, serve: Callable[..., Any], **inputs: Any) -> Path:
    """A SavedModel of a function; each input is a type, of one value a row, or a type and a shape."""
    import tensorflow as tf

    module = tf.Module()
    kinds = {name: kind if isinstance(kind, tuple) else (kind, [None]) for name, kind in inputs.items()}
    signature = [tf.TensorSpec(shape, kind, name) for name, (kind, shape) in kinds.items()]
    module.serve = tf.function(serve, input_signature=signature)
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.serve})
    return folder


def write_echo_model(folder: Path, output: str, columns: Sequence[str], more: Mapping[str, str] | None = None) -> Path:
    """A SavedModel whose output is a column (``probability``, ``prediction``), or several (``probabilities``).

    ``more`` names further outputs, and the column that each is.
    """
    import tensorflow as tf

    others = more or {}
    names = dict.fromkeys((*columns, *others.values()), tf.float32)

    def serve(*given: Any) -> Any:
        values = dict(zip(names, given, strict=True))
        own = [values[name] for name in columns]
        first = {output: tf.stack(own, axis=1) if output == "probabilities" else own[0]}
        return {**first, **{name: values[column] for name, column in others.items()}}

    return write_function(folder, serve, **names)
