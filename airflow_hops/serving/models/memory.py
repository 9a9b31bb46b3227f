"""Returns the memory of unloaded versions to the system, with short garbage collections."""

from __future__ import annotations

import ctypes
import functools
import gc


@functools.cache
def set_imports_apart() -> None:
    """Excludes all existing objects from garbage collection; call it once after the imports.

    TensorFlow creates 400,000 objects; collecting them takes 0.3 to 1 s, during which no request is answered.
    """
    gc.collect()
    gc.freeze()


def give_back() -> None:
    """Collects the garbage of unloaded versions, and returns free memory to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
