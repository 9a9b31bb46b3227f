"""Waits for processes are limited by their CPU time, whatever the clock of a busy machine says."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from airflow_hops.core.processes.cpu_time import CpuDeadline, cpu_seconds
from airflow_hops.core.processes.ending import descendants, send_signal


@contextmanager
def running(program: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            yield process.pid
        finally:
            for pid in (*descendants(process.pid), process.pid):
                send_signal(pid, signal.SIGKILL)


CHILD = f"import subprocess; subprocess.run([{sys.executable!r}, '-c', 'while True: pass'])"


@pytest.mark.parametrize("program", ["while True: pass", CHILD])
def test_process_that_computes_ends_at_its_cpu_seconds(program: str) -> None:
    with running(program) as pid:
        limit = CpuDeadline(pid, cpu_s=0.5, idle_s=60)
        while (exceeded := limit.exceeded()) is None:
            time.sleep(0.01)
        assert exceeded.startswith("used ") and exceeded.endswith(" s of CPU time, more than 0.5 s")


def test_process_that_stands_still_ends_by_the_clock() -> None:
    now = iter([0.0, 9.0, 11.0])
    with running("import time; time.sleep(600)") as pid:
        used_s = -1.0
        while used_s != cpu_seconds(pid):  # until it sleeps
            used_s = cpu_seconds(pid)
            time.sleep(0.5)
        limit = CpuDeadline(pid, cpu_s=60, idle_s=10, clock=lambda: next(now))
        assert limit.exceeded() is None
        assert limit.exceeded() == "has stood still for 10 s"
