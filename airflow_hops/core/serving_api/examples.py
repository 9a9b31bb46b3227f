"""``tf.Example`` messages from plain values, without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def fill_input(message: Any, examples: Iterable[Mapping[str, Any]], context: Mapping[str, Any] | None = None) -> None:
    """Fills the ``Input`` of a Classify, Regress or MultiInference request.

    Args:
        message: An empty ``Input``.
        examples: Feature name to value or list of values, for each example.
        context: Features of every example that does not name them itself.

    Raises:
        ValueError: A feature is neither of numbers nor of strings.
    """
    if context is None:
        target = message.example_list.examples
    else:
        fill_example(message.example_list_with_context.context, context)
        target = message.example_list_with_context.examples
    for features in examples:
        fill_example(target.add(), features)


def fill_example(example: Any, features: Mapping[str, Any]) -> None:
    """Fills an ``Example``.

    Args:
        example: An empty ``Example``.
        features: Feature name to value or list of values: integers and booleans become an ``int64_list``, other
            numbers a ``float_list``, strings and bytes a ``bytes_list``.

    Raises:
        ValueError: A feature is neither of numbers nor of strings.
    """
    example.features.SetInParent()
    for name, value in features.items():
        array: np.ndarray = np.atleast_1d(np.asarray(value))
        feature = example.features.feature[name]
        if array.dtype.kind in "OSU":
            values = [value] if isinstance(value, (str, bytes)) else list(value)
            feature.bytes_list.value.extend([_as_bytes(name, item) for item in values])
        elif array.dtype.kind in "iub":
            feature.int64_list.value.extend(array.ravel().astype(np.int64).tolist())
        elif array.dtype.kind == "f":
            feature.float_list.value.extend(array.ravel().tolist())
        else:
            raise ValueError(f"feature {name!r} has dtype {array.dtype}; expected numbers or strings")


def _as_bytes(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise ValueError(f"feature {name!r} holds {value!r}; expected numbers or strings")
