"""CPU seconds and peak memory of processes with all their descendants."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

import psutil

SAMPLE_INTERVAL_S = 0.5
_MIB = 1 << 20


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


class Sampler:
    """Calls :meth:`sample` again and again while its ``with`` block runs.

    Args:
        interval_s: Seconds between samples.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def sample(self) -> None:
        """Takes one sample."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.sample()
            self._stop.wait(self._interval_s)


class MemorySampler(Sampler):
    """Samples the memory of a changing set of processes while its ``with`` block runs.

    Args:
        processes: Called at each sample; returns the processes that count.
        interval_s: Seconds between samples.
        pss_every: Of so many samples one takes proportional set sizes as well: the kernel walks all pages for it.

    Attributes:
        peak_rss_mib: Greatest sum of resident set sizes. Pages that forks share count once for each process.
        peak_pss_mib: Greatest sum of proportional set sizes, in which each page counts once.
    """

    def __init__(
        self,
        processes: Callable[[], Iterable[psutil.Process]],
        *,
        interval_s: float = SAMPLE_INTERVAL_S,
        pss_every: int = 4,
    ) -> None:
        self.peak_rss_mib = 0.0
        self.peak_pss_mib = 0.0
        self._processes = processes
        self._pss_every, self._count = pss_every, 0
        super().__init__(interval_s)

    def sample(self) -> None:
        """Adds up the sizes of the processes that there are."""
        rss = pss = 0
        for process in self._processes():
            with contextlib.suppress(psutil.Error, OSError):
                if self._count % self._pss_every == 0:
                    memory = process.memory_full_info()
                    pss += memory.pss
                else:
                    memory = process.memory_info()
                rss += memory.rss
        self.peak_rss_mib = max(self.peak_rss_mib, rss / _MIB)
        self.peak_pss_mib = max(self.peak_pss_mib, pss / _MIB)
        self._count += 1


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
