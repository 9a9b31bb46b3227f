"""Garbage collection, which makes slow what leaves many objects and hardly any garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Looks for no garbage in the block: each look would walk through all that the libraries here have left."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keeps what is imported in the block out of garbage collection, here and in forks of this process.

    Libraries leave hundreds of thousands of objects and hardly any garbage. Looking for it takes a quarter of the
    time of their import, and copies, in each fork, the memory that it shares.
    """
    with collection_paused():
        try:
            yield
        finally:
            gc.freeze()
