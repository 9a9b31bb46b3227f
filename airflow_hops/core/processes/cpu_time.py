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


class _Progress:
    """CPU time of a process, and how long it has used none."""

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._pid, self._clock = pid, clock
        self.used_s, self._seen_at_s = cpu_seconds(pid), clock()
        self._seen_cpu_s = self.used_s

    def idle_s(self) -> float:
        """Returns the seconds since the process last used CPU time; 0 if it has since the last call."""
        self.used_s, now_s = cpu_seconds(self._pid), self._clock()
        idle_s = now_s - self._seen_at_s
        if abs(self.used_s - self._seen_cpu_s) <= _LEAST_SHARE * idle_s:  # less than before if a child has ended
            return idle_s
        self._seen_cpu_s, self._seen_at_s = self.used_s, now_s
        return 0.0


class CpuDeadline:
    """Limit of a wait for a process.

    Args:
        pid: The process.
        cpu_s: CPU seconds that it may use.
        idle_s: Seconds for which it may stand still.
        clock: Returns seconds.
    """

    def __init__(self, pid: int, cpu_s: float, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._cpu_s, self._idle_s, self._progress = cpu_s, idle_s, _Progress(pid, clock)

    def exceeded(self) -> str | None:
        """Returns which limit is exceeded, in words; None if none is."""
        idle_s = self._progress.idle_s()
        if self._progress.used_s > self._cpu_s:
            return f"used {self._progress.used_s:.0f} s of CPU time, more than {self._cpu_s:g} s"
        return f"has stood still for {self._idle_s:g} s" if idle_s > self._idle_s else None


@contextlib.contextmanager
def while_busy(beat: Callable[[], None], every_s: float = 1.0) -> Iterator[None]:
    """Calls a function in a thread, as long as this process uses CPU time in the block."""
    progress = _Progress(os.getpid())

    def watch() -> None:
        if progress.idle_s() == 0:
            beat()

    with calling_periodically(watch, every_s):
        yield
