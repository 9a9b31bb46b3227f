"""Ties the life of a process to that of its parent, or of another process."""

# Three ways in which a process ends with another one; each covers what the one before cannot:
# 1. ``PR_SET_PDEATHSIG``: the kernel signals a child when the thread that forked it ends. Forks do not inherit it, and
#    executing a set-user-ID program clears it.
# 2. ``PR_SET_CHILD_SUBREAPER``: a process adopts descendants whose parent has ended, so that it still finds them when
#    it ends them all.
# 3. A thread that polls /proc for the process, known by pid and start time, for processes that are not its children.

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading

from airflow_hops.core.processes.ending import end_everything, started_at
from airflow_hops.core.processes.polling import poll

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.5


def adopt_orphans() -> None:
    """Makes this process the parent of descendants that lose theirs, so that they remain its descendants."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Makes the kernel signal this process when the thread of ``parent`` that started it has ended.

    If the parent has already ended, the signal is sent at once.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def own_identity() -> str:
    """Returns an identity of this process that no later process with the same number shares."""
    return f"{os.getpid()}:{started_at(os.getpid())}"


def end_with(identity: str) -> None:
    """Ends this process and its descendants when the process of an :func:`own_identity` has ended.

    It need not be the parent. An empty identity is ignored.
    """
    pid, _, started = identity.partition(":")

    def watch() -> None:
        poll(lambda: started_at(int(pid)) != int(started), _POLL_S)
        with contextlib.suppress(OSError):
            sys.stderr.write(f"process {pid}, which started this one, is gone: this one ends\n")
        end_everything()

    if pid.isdigit() and started.isdigit():
        threading.Thread(target=watch, name="lifetime", daemon=True).start()


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
