"""CPU time of processes, which limits waits: on a busy machine, the clock does not show whether a process hangs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from airflow_hops.core.processes.ending import descendants
from airflow_hops.core.processes.periodic import calling_periodically

_LEAST_SHARE = 0.01
"""Share of a core below which a process counts as idle: threads that only look around use less."""


def cpu_seconds(*pids: int) -> float:
    """Returns the CPU seconds of processes and their descendants, and of ended descendants that were waited for."""
    ticks = 0
    for pid in {each for root in pids for each in (root, *descendants(root))}:
        with contextlib.suppress(OSError):  # the process has ended
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime (proc_pid_stat(5))
    return ticks / os.sysconf("SC_CLK_TCK")


class CpuDeadline:
    """Limit of a wait for a process.

    Args:
        pid: The process.
        cpu_s: CPU seconds that it may use.
        idle_s: Seconds for which it may stand still.
        clock: Returns seconds.
    """

    def __init__(self, pid: int, cpu_s: float, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid, self._cpu_s, self._idle_s, self._clock = pid, cpu_s, idle_s, clock
        self._seen_cpu_s, self._seen_at_s = cpu_seconds(pid), clock()

    def exceeded(self) -> str | None:
        """Returns which limit is exceeded, in words; None if none is."""
        used_s, now_s = cpu_seconds(self._pid), self._clock()
        idle_s = now_s - self._seen_at_s
        if used_s > self._cpu_s:
            return f"used {used_s:.0f} s of CPU time, more than {self._cpu_s:g} s"
        if abs(used_s - self._seen_cpu_s) > _LEAST_SHARE * idle_s:  # less if a child has ended
            self._seen_cpu_s, self._seen_at_s = used_s, now_s
        elif idle_s > self._idle_s:
            return f"has stood still for {self._idle_s:g} s"
        return None


@contextlib.contextmanager
def while_busy(beat: Callable[[], None], every_s: float = 1.0) -> Iterator[None]:
    """Calls a function in a thread, as long as this process uses CPU time in the block."""
    used_s, at_s = cpu_seconds(os.getpid()), time.monotonic()

    def watch() -> None:
        nonlocal used_s, at_s
        now_used_s, now_s = cpu_seconds(os.getpid()), time.monotonic()
        if abs(now_used_s - used_s) > _LEAST_SHARE * (now_s - at_s):
            used_s, at_s = now_used_s, now_s
            beat()

    with calling_periodically(watch, every_s):
        yield
