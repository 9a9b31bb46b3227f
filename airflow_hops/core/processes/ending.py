"""Ends processes and all their descendants within seconds."""

# Processes are found again and again while they are ended, since a process may fork between the listing of /proc and
# its signal. A pid alone does not identify a process: once it has been waited for, the kernel may give it to another
# one. So a process is known by pid and start time, and both are compared directly before each signal. Descendants are
# found in three ways, as each can fail: the parents in /proc (lost by a process whose parent has ended), the session
# (left by daemons), and a variable in the environment (absent in a fork that began with another one).

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

from airflow_hops.core.processes.polling import Overdue, poll

GRACE_S = 2.0
"""Seconds between asking processes to end and killing them."""


def descendants(pid: int) -> Iterator[int]:
    """Yields the descendants of a process, parents first."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def children(pid: int) -> Iterator[int]:
    """Yields the processes that a process has started or adopted."""
    listings: list[Path] = []
    with contextlib.suppress(OSError):  # the process may end meanwhile
        listings += Path(f"/proc/{pid}/task").glob("*/children")
    for listing in listings:
        with contextlib.suppress(OSError):
            yield from map(int, listing.read_text().split())


def started_at(pid: int) -> int | None:
    """Returns when a process started, in the kernel's clock ticks since boot; None if it does not run."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state == "Z" else int(fields[18])


def send_signal(pid: int, number: int) -> None:
    """Signals a process, unless it has ended."""
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def end_process(process: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> None:
    """Ends a child of this process: SIGTERM, and SIGKILL after ``grace_s`` seconds."""
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kill_descendants(spared: Collection[int] = ()) -> None:
    """Kills all descendants of this process, except those with pids in ``spared``."""
    for _ in range(5):  # a process may fork while it is being killed
        left = set(descendants(os.getpid())).difference(spared)
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        if not left:
            return
        time.sleep(0.02)


def end_everything() -> NoReturn:
    """Ends all descendants of this process, its process group, and this process."""
    for pid in list(descendants(os.getpid())):
        send_signal(pid, signal.SIGKILL)
    if os.getpgrp() == os.getsid(0):  # a notebook shares its group with others
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def end_marked(mark: str, session: int | None = None, *, grace_s: float = GRACE_S) -> None:
    """Ends processes with a mark and their descendants, even if they left their process group or lost their parent.

    Args:
        mark: ``NAME=value`` of the environment variable that they have inherited.
        session: Session whose members are ended too.
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
    """Returns the start time of each process, by pid."""
    processes: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        number = int(folder.name)
        try:
            # Forks are in the session, but /proc shows their parent's environment; others that left it have the mark.
            is_theirs = (session is not None and os.getsid(number) == session) or (
                mark.encode() in (folder / "environ").read_bytes()
            )
        except OSError:  # it has ended, or belongs to another user
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
    # Polls instead of waiting for them, since only their parents may take their exit codes.
    with contextlib.suppress(Overdue):
        poll(lambda: not any(started_at(pid) == started for pid, started in processes.items()), 0.01, timeout_s)
