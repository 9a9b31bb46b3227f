"""Waits for processes are limited by the time that these get, whatever the clock of a busy machine says."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import wait_for

from airflow_hops.core.processes.cpu_time import GivenTime, cpu_seconds
from airflow_hops.core.processes.ending import descendants, send_signal


@contextmanager
def running(program: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        try:
            yield process.pid
        finally:
            for pid in (*descendants(process.pid), process.pid):
                send_signal(pid, signal.SIGKILL)


BUSY = "while True: pass"
CHILD = f"import subprocess; subprocess.run([{sys.executable!r}, '-c', {BUSY!r}])"
HANGS = "import time; time.sleep(600)"


def test_time_without_a_core_does_not_count() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        with running(CHILD) as pid, running(BUSY), running(BUSY), running(BUSY):  # four on one core
            began_s, clock = time.monotonic(), GivenTime(pid)
            while cpu_seconds(pid) < 0.5:
                time.sleep(0.05)
            assert clock.seconds() < 0.6 * (time.monotonic() - began_s)
    finally:
        os.sched_setaffinity(0, allowed)


def test_process_that_spins_on_one_core_uses_up_its_time() -> None:
    """Its threads wait for each other's core, and for no other process's."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    spin = f"import subprocess\nfor _ in range(15): subprocess.Popen([{sys.executable!r}, '-c', {BUSY!r}])\n{BUSY}"
    try:
        with running(spin) as pid:
            wait_for(lambda: len([*descendants(pid)]) == 15)
            began_s, clock = time.monotonic(), GivenTime(pid)
            while clock.seconds() < 0.3:
                time.sleep(0.1)
            assert clock.seconds() > 0.09 * (time.monotonic() - began_s - 1.2)
    finally:
        os.sched_setaffinity(0, allowed)


def test_hanging_process_uses_up_its_time() -> None:
    now = itertools.count(0.0, 2.0)
    with running(HANGS) as pid:
        clock = GivenTime(pid, clock=lambda: next(now))
        assert any(clock.seconds() > 60.0 for _ in range(100))


def test_wait_in_vain_ends() -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.03 s: what never comes"):
        wait_for(lambda: None, "what never comes", 0.01)


def test_hanging_test_fails_and_others_run(tmp_path: Path) -> None:
    tests = tmp_path / "test_two.py"
    tests.write_text(f"import subprocess\n\ndef test_hangs():\n    {HANGS}\n\ndef test_runs():\n    pass\n")
    options = ["-p", "time_spent", "--timeout", "1", "--rootdir", str(tmp_path), "-c", os.devnull]
    command = [sys.executable, "-m", "pytest", *options, str(tests)]
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert "1 failed, 1 passed" in ended.stdout and "Timeout (>1.0s)" in ended.stdout, ended.stdout
