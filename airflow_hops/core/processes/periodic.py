"""Calls a function from a thread at regular intervals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def calling_periodically(function: Callable[[], None], interval_s: float) -> Iterator[None]:
    """Calls a function in a thread every ``interval_s`` seconds, until the ``with`` block ends."""
    ended = threading.Event()

    def call() -> None:
        while not ended.wait(interval_s):
            function()

    thread = threading.Thread(target=call, name="periodic", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
