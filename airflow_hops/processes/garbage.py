"""Garbage collection, which libraries make slow and have no need of."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keeps what is imported in the block out of garbage collection, here and in forks of this process.

    Libraries leave hundreds of thousands of objects and hardly any garbage. Looking for it takes a quarter of the
    time of their import, and copies, in each fork, the memory that it shares.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
