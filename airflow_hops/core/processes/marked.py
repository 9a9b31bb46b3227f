"""Ends every process that carries a mark in its environment, by which none can hide from it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from airflow_hops.core.processes.ending import GRACE_S, descendants, send_signal
from airflow_hops.core.processes.lifetime import started_at


def end_marked(mark: str, session: int | None = None, *, grace_s: float = GRACE_S) -> None:
    """Ends marked processes and all below them, also those that left their process group or lost their parent.

    Args:
        mark: ``NAME=value`` of the environment variable that they have inherited.
        session: The members of this session count too.
        grace_s: Seconds between SIGTERM and SIGKILL.
    """
    processes = _find(mark, session)
    _signal_all(processes, signal.SIGTERM)
    _wait_until_gone(processes, grace_s)
    for _ in range(3):  # a process may fork while it is being ended
        left = _find(mark, session)
        if not left:
            return
        _signal_all(left, signal.SIGKILL)
        _wait_until_gone(left, 0.5)


def _find(mark: str, session: int | None) -> dict[int, int]:
    """When each of the processes started, by its number."""
    processes: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        number = int(folder.name)
        try:
            # The session finds forks, whose recorded environment is their parent's; the mark those that left it.
            is_theirs = (session is not None and os.getsid(number) == session) or (
                mark.encode() in (folder / "environ").read_bytes()
            )
        except OSError:  # it is gone, or another user's
            continue
        if is_theirs and number != os.getpid():
            for pid in (number, *descendants(number)):
                if (started := started_at(pid)) is not None:
                    processes[pid] = started
    return processes


def _signal_all(processes: Mapping[int, int], number: int) -> None:
    for pid, started in processes.items():
        if started_at(pid) == started:
            send_signal(pid, number)


def _wait_until_gone(processes: Mapping[int, int], timeout_s: float) -> None:
    # They are looked at, not waited for: exit codes are for those who started them.
    deadline = time.monotonic() + timeout_s
    while any(started_at(pid) == started for pid, started in processes.items()) and time.monotonic() < deadline:
        time.sleep(0.01)
