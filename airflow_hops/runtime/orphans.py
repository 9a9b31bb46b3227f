"""What keeps a step's processes together: none outlives who is to end them, and none hides from a kill.

Linux only, by design: where there is no ``/proc`` and no ``prctl``, nothing here does anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from airflow_hops.protocol import WORKER_VARIABLE, process_started

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 0.5


def adopt_orphans() -> None:
    """Makes this process the parent of descendants that lose theirs, so that they can still be found below it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(parent: int) -> None:
    """Has the kernel end this process, a fork, when the thread of ``parent`` that forked it is gone."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def end_with_worker() -> None:
    """Ends this process and all below it when the worker that started the step is gone.

    A worker that is killed outright cannot kill its step, and a retry must not find the first try still at work.
    """
    name, _, started = os.environ.get(WORKER_VARIABLE, "").partition(":")
    if name.isdigit() and started.isdigit():
        threading.Thread(target=_watch, args=(int(name), int(started)), name="worker-watch", daemon=True).start()


def end_process(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Ends a process that this one has started: SIGTERM, and SIGKILL after ``grace_s`` seconds."""
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def descendants(pid: int) -> Iterator[int]:
    """The processes below one, children first."""
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, listing.read_text().split()):
                yield child
                yield from descendants(child)


def _watch(worker: int, started: int) -> None:
    while process_started(worker) == started:
        time.sleep(_LOOK_S)
    with contextlib.suppress(OSError):
        sys.stderr.write("the worker that started this step is gone: the step ends\n")
    end_everything()


def end_everything() -> NoReturn:
    """Ends all below this process, its process group, and this process."""
    for pid in list(descendants(os.getpid())):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    if os.getpgrp() == os.getsid(0):  # a group of the step's own; a notebook's is not
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
