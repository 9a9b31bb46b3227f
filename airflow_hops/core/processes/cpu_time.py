"""The CPU time of a step."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from airflow_hops.core.processes.ending import descendants

_FIRST, _LAST = 11, 15
"""Indexes of the fields behind the name in ``/proc/<pid>/stat``: utime, stime, cutime, cstime (proc_pid_stat(5))."""


def core_seconds() -> float:
    """CPU seconds of all processes of this one's session, those that have ended and were waited for included.

    A step leads a session, or, below a ``spark-submit`` that was started first, is in that of the JVM. What the process
    that it was forked from had used does not count.
    """
    ticks = 0
    for pid in {os.getpid(), os.getsid(0), *descendants(os.getsid(0)), *descendants(os.getpid())}:
        with suppress(OSError):  # it has ended
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[_FIRST:_LAST]))
    return ticks / os.sysconf("SC_CLK_TCK")
