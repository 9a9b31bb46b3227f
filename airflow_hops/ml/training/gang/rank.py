"""A rank's side of a gang: its line to the process that watches it, and how a fork becomes it."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.core.processes.forks import take_streams
from airflow_hops.ml.step.generated_code import remove_generated_code
from airflow_hops.ml.training.gang.placement import Placement

_MESSAGE_INTERVAL_S = 0.2


class Channel:
    """A rank's line to the process that watches the gang.

    Args:
        descriptor: Write end of a pipe; None for a rank that nobody watches (in a notebook).
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = descriptor
        self._last_alive = 0.0
        self._lock = threading.Lock()

    def send(self, kind: str, **fields: Any) -> None:
        """Sends a message of JSON values; any message is a sign of life."""
        if self._descriptor is not None:
            data = json.dumps({"type": kind, **fields}).encode() + b"\n"
            with self._lock:
                while data:
                    data = data[os.write(self._descriptor, data) :]

    def alive(self, where: str) -> None:
        """Says that work goes on; call it as often as you like.

        Args:
            where: How far the rank is, for the message should it stall: ``epoch 2 step 31``.
        """
        now = time.monotonic()
        if now - self._last_alive >= _MESSAGE_INTERVAL_S:
            self._last_alive = now
            self.send("alive", where=where)

    def bring_back(self, path: str) -> None:
        """Says that a file or folder of the output is whole, so that it is brought to the process that watches.

        On the machine of that process it lies there already.

        Args:
            path: Relative to the output folder.
        """
        self.send("files", path=path)


def run_rank(
    placement: Placement,
    work: Callable[[Placement, Channel], Any],
    environment: dict[str, str],
    output: int,
    descriptor: int,
) -> int:
    """Turns a fork into a rank, and works as it; returns its exit code."""
    channel = Channel(descriptor)
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        take_streams(0, output, output)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        # How a stalled rank is asked where it stands: its stack goes to its log.
        faulthandler.register(signal.SIGUSR1, file=2, all_threads=False)
        os.environ.update(environment)
        channel.send("result", value=work(placement, channel))
        return 0
    except BaseException as error:
        with contextlib.suppress(BaseException):
            print(traceback.format_exc(), end="", file=sys.stderr)
            channel.send(
                "error",
                name=type(error).__name__,
                message=str(error) if isinstance(error, HopsError) else f"{type(error).__name__}: {error}",
                retryable=getattr(error, "retryable", True),
            )
        return 1
    finally:
        with contextlib.suppress(BaseException):
            remove_generated_code()
