"""Memory of a pipeline: proportional set sizes of its processes by purpose."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self

import psutil

_MIB = 1 << 20
_ROLES = {
    "java": "JVM",
    "airflow_hops.serving": "model server",
    "airflow_hops.ml.step.warm": "warm process and its steps",
    "airflow_hops.ml": "steps from scratch",
    "airflow api-server": "Airflow: API server",
    "airflow api_server": "Airflow: API server",
    "airflow scheduler": "Airflow: scheduler and tasks",
    "airflow worker": "Airflow: scheduler and tasks",
    "airflow dag-processor": "Airflow: DAG processor",
    "airflow triggerer": "Airflow: triggerer",
    "airflow": "Airflow: the rest",
}
"""What a process is for, by the first of these that its command line has."""


def pss_by_role(processes: Iterable[psutil.Process]) -> dict[str, float]:
    """MiB of the processes by what they are for, each page shared out among those that have it."""
    found: dict[str, float] = {}
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            line = " ".join(process.cmdline())
            role = next((role for part, role in _ROLES.items() if part in line), "other")
            found[role] = found.get(role, 0.0) + process.memory_full_info().pss / _MIB
    return found


class MemoryAccount:
    """Keeps, while its ``with`` block runs, the account of the moment at which all processes together had most.

    Args:
        processes: Called at each sample; returns the processes that count.
        interval_s: Seconds between samples, each of which has the kernel walk all pages.

    Attributes:
        peak: MiB by role at that moment.
    """

    def __init__(self, processes: Callable[[], Iterable[psutil.Process]], *, interval_s: float = 1.0) -> None:
        self.peak: Mapping[str, float] = {}
        self._processes, self._interval_s = processes, interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

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
            now = pss_by_role(self._processes())
            if sum(now.values()) > sum(self.peak.values()):
                self.peak = now
            self._stop.wait(self._interval_s)
