"""Ends processes within seconds, and leaves nothing of them behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NoReturn

GRACE_S = 2.0
"""Between asking processes to end and killing them."""


def descendants(pid: int) -> Iterator[int]:
    """The processes below one, parents first."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def children(pid: int) -> Iterator[int]:
    """The processes that a process has started or adopted."""
    listings: list[Path] = []
    with contextlib.suppress(OSError):  # it ends while its threads are listed
        listings += Path(f"/proc/{pid}/task").glob("*/children")
    for listing in listings:
        with contextlib.suppress(OSError):
            yield from map(int, listing.read_text().split())


def send_signal(pid: int, number: int) -> None:
    """Signals a process, unless it is gone."""
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def end_process(process: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> None:
    """Ends a process that this one has started: SIGTERM, and SIGKILL after ``grace_s`` seconds."""
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def kill_descendants(spared: Collection[int] = ()) -> None:
    """Kills all processes below this one.

    Args:
        spared: Numbers of those that live on.
    """
    for _ in range(5):  # one may fork while it is being killed
        left = set(descendants(os.getpid())).difference(spared)
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        if not left:
            return
        time.sleep(0.02)


def end_everything() -> NoReturn:
    """Ends all below this process, its process group, and this process."""
    for pid in list(descendants(os.getpid())):
        send_signal(pid, signal.SIGKILL)
    if os.getpgrp() == os.getsid(0):  # a group of its own; a notebook's is not
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
