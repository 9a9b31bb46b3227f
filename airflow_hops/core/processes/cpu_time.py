"""Time that processes get, which limits waits: on a busy machine, the clock does not show whether a process hangs."""

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
_EVERY_S = 1.0
_MOST = 0.9
"""Share of the time in which the clock stands still at most, so that what hangs ends within ten times its limit."""


def cpu_seconds(*pids: int) -> float:
    """Returns the CPU seconds of processes and their descendants, and of ended descendants that were waited for."""
    ticks = 0
    for pid in {each for root in pids for each in (root, *descendants(root))}:
        with contextlib.suppress(OSError):  # the process has ended
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime (proc_pid_stat(5))
    return ticks / os.sysconf("SC_CLK_TCK")


class GivenTime:
    """Clock that goes slower while a thread of a process, or of a descendant, waits for a core.

    So a process uses up its time if it computes, sleeps or hangs, but hardly because the machine is busy. At its
    slowest, as for more threads than cores that spin, the clock has a tenth of its speed.

    Args:
        pid: The process.
        clock: Returns seconds.
        alone: Whether descendants do not count.
    """

    def __init__(self, pid: int, clock: Callable[[], float] = time.monotonic, *, alone: bool = False) -> None:
        self._pid, self._clock, self._alone = pid, clock, alone
        self._held_up_s = self._told_s = 0.0
        self._began_s = self._seen_s = clock()
        self._waits_ns = _waits_ns(pid, alone=alone)

    def seconds(self) -> float:
        """Returns the seconds since the start, as of the last look, which is at most a second ago."""
        held_up_s = self._held_up()
        return self._seen_s - self._began_s - held_up_s

    def newly_held_up_s(self) -> float:
        """Returns the seconds since the last call, or the start, in which the clock stood still."""
        former_s, self._told_s = self._told_s, self._held_up()
        return self._told_s - former_s

    def _held_up(self) -> float:
        """Returns the seconds since the start in which the clock stood still, as of the last look."""
        now_s = self._clock()
        if (passed_s := now_s - self._seen_s) >= _EVERY_S:
            waits_ns = _waits_ns(self._pid, alone=self._alone)
            longest_ns = max((ns - self._waits_ns.get(thread, 0) for thread, ns in waits_ns.items()), default=0)
            self._held_up_s += min(_MOST * passed_s, longest_ns / 1e9)
            self._seen_s, self._waits_ns = now_s, waits_ns
        return self._held_up_s


def _waits_ns(pid: int, *, alone: bool) -> dict[Path, int]:
    """Returns how long each thread has waited for a core; nothing if the kernel does not count it."""
    results = {}
    for each in (pid,) if alone else (pid, *descendants(pid)):
        for path in Path(f"/proc/{each}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError, IndexError):  # the thread has ended
                results[path] = int(path.read_text().split()[1])
    return results


@contextlib.contextmanager
def while_busy(beat: Callable[[], None], every_s: float = 1.0) -> Iterator[None]:
    """Calls a function in a thread, as long as this process uses CPU time in the block."""
    used_s = [cpu_seconds(os.getpid())]

    def watch() -> None:
        used_s.append(cpu_seconds(os.getpid()))
        if abs(used_s[-1] - used_s.pop(0)) > _LEAST_SHARE * every_s:  # less than before if a child has ended
            beat()

    with calling_periodically(watch, every_s):
        yield
