"""Processes with all their descendants, their CPU seconds, and programs of peers."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil


@dataclass(frozen=True)
class PeerRun:
    """A run of a peer.

    Attributes:
        total: Wall-clock seconds of the whole process.
        cpu: Its CPU seconds.
        peak_rss_mib: Its peak resident set size.
        answer: The JSON in the last line of its output.
    """

    total: float
    cpu: float
    peak_rss_mib: float
    answer: Mapping[str, Any]


def run_peer(command: Sequence[str], env: Mapping[str, str], log: Path) -> PeerRun:
    """Runs a peer's program in the folder of its log, which gets its standard error.

    Raises:
        RuntimeError: it failed; the message has the last lines of the log.
    """
    began = time.monotonic()
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, env=env, cwd=log.parent, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        )
        assert process.stdout is not None
        output = process.stdout.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
    total = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        lines = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise RuntimeError(f"the peer ended with {process.returncode}; the end of {log}:\n{lines}")
    answer = json.loads(output.splitlines()[-1])
    return PeerRun(total, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, answer)


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
