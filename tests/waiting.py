"""Waiting for what other processes do, with deadlines that do not pass while the run waits for a core."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

from airflow_hops.core.processes.cpu_time import GivenTime

T = TypeVar("T")
BUSY, PATIENCE_S = 3, 400.0
"""How much longer than on a fast machine what is waited for may take, and up to which time this holds."""
LOOKS = 5
"""How often a task is seen to wait before it is answered: ``dag.test()`` notes once more that it waits."""
ROOT = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
"""The process above all that the run has started: a worker of pytest-xdist waits for what others start, too."""


class Patience:
    """A deadline, in seconds in which nothing that the run has started waits for a core that others use.

    Args:
        timeout_s: Those that it takes on a fast machine; see :data:`BUSY`.
        short_s: Seconds before it is looked at: most waits are over by then.
    """

    def __init__(self, timeout_s: float, short_s: float = 2.0) -> None:
        self.timeout_s = max(timeout_s, min(timeout_s * BUSY, PATIENCE_S))
        self._begins_s = time.monotonic() + short_s
        self._given: GivenTime | None = None

    def is_over(self) -> bool:
        if self._given is None:
            if time.monotonic() > self._begins_s:
                self._given = GivenTime(ROOT)
            return False
        return self._given.seconds() > self.timeout_s


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
        timeout_s: See :class:`Patience`.
        poll_s: Seconds between questions.
    """
    patience = Patience(timeout_s)
    while not (result := condition()):
        late = patience.is_over()
        assert not late, f"not within {patience.timeout_s} s: {what() if callable(what) else what}"
        time.sleep(poll_s)
    return result


def address_of(server: subprocess.Popen[bytes], log: Path) -> str:
    """Waits until a server has written where it runs, and returns the address."""

    def find() -> re.Match[str] | None:
        assert server.poll() is None, log.read_text()
        return re.search(r"Running on (http://\S+)", log.read_text())

    match = wait_for(find, log.read_text, 120.0)
    assert match is not None
    return match[1]


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
