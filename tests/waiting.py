"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import psutil

T = TypeVar("T")
BUSY, PATIENCE_S = 3, 400.0
"""How much longer than on an idle machine what is waited for may take, and up to which time this holds."""
LOOKS = 5
"""How often a task is seen to wait before it is answered: ``dag.test()`` notes once more that it waits."""


def wait_for(
    condition: Callable[[], T],
    what: str | Callable[[], str] = "it",
    timeout_s: float = 40.0,
    poll_s: float = 0.05,
) -> T:
    """Asks until the answer is true, and returns it.

    Args:
        condition: What is asked.
        what: What is waited for, or a function that tells why it does not come; it may raise, too.
        timeout_s: After so many seconds of an idle machine the test fails; see :data:`BUSY`.
        poll_s: Seconds between questions.
    """
    timeout_s = max(timeout_s, min(timeout_s * BUSY, PATIENCE_S))
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        late = time.monotonic() > deadline
        assert not late, f"not within {timeout_s} s: {what() if callable(what) else what}"
        time.sleep(poll_s)
    return result


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def is_stopped(pid: int) -> bool:
    """Whether SIGSTOP has reached a process: those of its threads that run go on until one of them takes it."""
    threads = [psutil.Process(thread.id) for thread in psutil.Process(pid).threads()]
    return all(thread.status() == psutil.STATUS_STOPPED for thread in threads)
