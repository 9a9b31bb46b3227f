"""Processes with all their descendants, and their CPU seconds."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable

import psutil


def trees(roots: Iterable[psutil.Process]) -> list[psutil.Process]:
    """The processes and all their descendants that live now."""
    found: dict[int, psutil.Process] = {}
    for root in roots:
        with contextlib.suppress(psutil.Error):
            for process in (root, *root.children(recursive=True)):
                found[process.pid] = process
    return list(found.values())


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """CPU seconds so far, those of descendants that have ended included (their parents have them)."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def pin(processes: Iterable[psutil.Process], cores: Iterable[int]) -> None:
    """Has all threads of processes run on these cores alone; those that they start later do, too."""
    cores = list(cores)
    for process in processes:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            for thread in process.threads():
                os.sched_setaffinity(thread.id, cores)


def processes_with_argument(argument: str) -> list[psutil.Process]:
    """The processes on whose command line an argument stands."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if argument in process.cmdline():
                found.append(process)
    return found


def wait_for_end(processes: Iterable[psutil.Process], timeout_s: float) -> None:
    """Waits until the processes have ended, or the time is over."""
    deadline = time.monotonic() + timeout_s
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.wait(max(0.1, deadline - time.monotonic()))
