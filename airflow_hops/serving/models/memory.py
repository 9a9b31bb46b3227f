"""Memory of unloaded versions goes back to the system, and collecting it never holds up requests."""

from __future__ import annotations

import ctypes
import functools
import gc


@functools.cache
def set_imports_apart() -> None:
    """Takes what the process has imported out of garbage collection; call it once the imports are done.

    TensorFlow brings 400,000 objects: going through them takes 0.3 to 1 s, in which no request is answered.
    """
    gc.collect()
    gc.freeze()


def give_back() -> None:
    """Frees what unloaded versions have left in cycles, and returns free memory to the system."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
