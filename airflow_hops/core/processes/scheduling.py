"""How Linux shares the cores out among processes."""

from __future__ import annotations

import contextlib
import os


def preempt_nobody() -> None:
    """Has this thread, when it wakes up, wait for the core until what runs there has had its turn.

    Threads and processes that it starts inherit this. It takes no share of the cores from them (``SCHED_BATCH``,
    https://man7.org/linux/man-pages/man7/sched.7.html).
    """
    with contextlib.suppress(OSError, AttributeError):  # a sandbox forbids it, or this is not Linux
        if os.sched_getscheduler(0) == os.SCHED_OTHER:  # else an administrator has chosen one
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
