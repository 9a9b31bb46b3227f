"""Starts worker processes and watches for their end."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import grpc

from airflow_hops.core.processes.programs import module_command, with_package
from airflow_hops.serving.errors import ServingError


class Process:
    """A worker process.

    Attributes:
        ended: Set when the process has ended.
        end: Description of how it ended.
    """

    def __init__(self, pid: int, kill: Callable[[], object]) -> None:
        self.pid, self.kill = pid, kill
        self.ended = threading.Event()
        self.end = "still running"


def threads_each(processes: int) -> int:
    """Returns the number of threads for each of several processes."""
    return max(1, len(os.sched_getaffinity(0)) // processes)


def start_process(assignment: Any, control: socket.socket, on_end: Callable[[], None], threads: int) -> Process:
    """Starts a worker process.

    Args:
        assignment: Sent to the process, pickled, over its standard input.
        control: Socket that the process inherits; it stays open here.
        on_end: Called in a separate thread when the process has ended.
        threads: Number of OpenMP threads, unless the environment sets it.

    Raises:
        ServingError: The system cannot start another process.
    """
    try:
        program = subprocess.Popen(
            module_command(sys.executable, "airflow_hops.serving.workers.worker", str(control.fileno())),
            stdin=subprocess.PIPE,
            env=with_package({"OMP_NUM_THREADS": str(threads), **os.environ}),
            pass_fds=[control.fileno()],
            start_new_session=True,  # a terminal's signals go only to the first process, which drains the workers
        )
    except OSError as error:
        raise ServingError(grpc.StatusCode.INTERNAL, f"No process could be started: {error.strerror}") from None
    process = Process(program.pid, program.kill)

    def wait_for_end() -> None:
        code = program.wait()
        process.end = f"exit code {code}" if code >= 0 else f"signal {-code} ({signal.Signals(-code).name})"
        process.ended.set()
        on_end()

    threading.Thread(target=wait_for_end, name="worker-end", daemon=True).start()
    try:
        assert program.stdin is not None
        with program.stdin as stdin:
            stdin.write(pickle.dumps(assignment))
    except BrokenPipeError:
        pass  # the process has already ended, which its thread reports
    return process
