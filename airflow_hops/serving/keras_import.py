"""TensorFlow without Keras, for processes that run graphs or only read and write examples."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def without_keras() -> Iterator[None]:
    """Defers the import of Keras, 150 of 570 MiB of ``import tensorflow``, to the first use of ``tf.keras``.

    TensorFlow imports Keras last, and continues without it.
    """
    if "keras" in sys.modules:
        yield
        return
    sys.modules["keras"] = None  # type: ignore[assignment]  # an import of it raises ImportError
    try:
        yield
    finally:
        del sys.modules["keras"]
