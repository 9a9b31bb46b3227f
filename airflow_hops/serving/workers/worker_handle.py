"""A worker, and a version that is open in the workers, as the first process sees them."""

from __future__ import annotations

import logging
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import grpc

from airflow_hops.core.processes.programs import module_command, with_package
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.servable import Call, Reply, Servable
from airflow_hops.serving.models.storage import Fingerprint, VersionFolder
from airflow_hops.serving.monitoring.logs import BUFFER
from airflow_hops.serving.workers.counts import WorkerCounts
from airflow_hops.serving.workers.peer import Peer, connection_pair
from airflow_hops.serving.workers.worker import ALIVE_EVERY_S, WorkerAssignment, threads_each

# A worker's life: a new program gets one end of a socket pair, reads its assignment from standard input, imports its
# libraries, and sends heartbeats; it opens versions on request; `serve` gives it the first state. `finish` makes it
# write its captured requests; then it is killed. If the first process has ended, the socket closes and it exits.
# Missing heartbeats and a closed socket only kill the process; its exit, which a thread waits for, calls on_end.

log = logging.getLogger(__name__)


class WorkerServable(Servable):
    """A version that is open in the workers; all must read the same files.

    Attributes:
        key: Number that identifies the version in the workers.
        folder: Its folder.
        fingerprint: Fingerprint of its files when it was first opened.
    """

    def __init__(self, model: str, version: int, folder: Path, key: int, close: Callable[[int], None]) -> None:
        super().__init__(model, version, os.fspath(folder), b"")
        self.key, self.folder = key, folder
        self.fingerprint = self.current_fingerprint()
        self._close_key = close

    def answer(self, call: Call) -> Reply:
        """Raises ServingError, since only workers answer requests."""
        raise ServingError(grpc.StatusCode.INTERNAL, "This process answers no requests")

    def current_fingerprint(self) -> Fingerprint:
        """Returns the current fingerprint of the files."""
        return VersionFolder(self.version, self.folder).fingerprint()

    def check(self) -> None:
        """Checks that the files have not changed; called before and after another worker opens the version.

        Raises:
            ServingError: The files have changed.
        """
        if self.current_fingerprint() != self.fingerprint:
            message = f"{self.folder} has changed since model {self.model} version {self.version} was loaded from it"
            raise ServingError(grpc.StatusCode.FAILED_PRECONDITION, message)

    def _free(self) -> None:
        self._close_key(self.key)


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


class Worker:
    """A worker, as the first process sees it.

    Args:
        assignment: Flags and routes of the worker.
        methods: Functions of this process that it may call, by name.
        on_end: Called when it has ended.

    Attributes:
        counts: Counts of the last poll.
        is_silent: Whether the worker was killed because its heartbeats stopped.
        is_ending: Whether the server has ended the worker.
    """

    def __init__(
        self, assignment: WorkerAssignment, methods: Mapping[str, Callable[..., Any]], on_end: Callable[[Worker], None]
    ) -> None:
        ours, theirs = connection_pair()
        self.counts = WorkerCounts()
        self.is_silent = self.is_ending = False
        self.started_s = time.monotonic()
        with theirs:
            try:
                threads = threads_each(assignment.flags.workers)
                self.process = start_process(assignment, theirs, lambda: on_end(self), threads)
            except BaseException:
                ours.close()
                raise
        self._alive = threading.Event()
        self.peer = Peer(ours, methods, {"log": BUFFER.add, "alive": self._alive.set}, self.end)
        self._asked: Future[Any] | None = None
        self.peer.start()
        if timeout_s := assignment.flags.worker_timeout_seconds:
            threading.Thread(target=self._watch, args=(timeout_s,), name="worker-watch", daemon=True).start()

    def ask_for_counts(self) -> list[Future[Any]]:
        """Requests the counts, unless a request is still pending, so that a stuck worker delays only one poll."""
        self.take_counts()
        if self._asked is None:
            self._asked = self.peer.call("counts")
            return [self._asked]
        return []

    def take_counts(self) -> None:
        """Stores the counts if they have arrived."""
        if self._asked is not None and self._asked.done():
            if self._asked.exception() is None:
                self.counts = self._asked.result()
            self._asked = None

    def end(self) -> None:
        """Kills the worker if it still runs."""
        self.process.kill()

    def _watch(self, timeout_s: float) -> None:
        """Kills the worker when it hangs: the kernel still gives it connections, whose clients would wait forever."""
        # Count intervals, since time also passes while the whole machine is suspended. Heartbeats begin after imports.
        silent_s = -math.inf
        while not self.process.ended.wait(ALIVE_EVERY_S):
            silent_s = 0.0 if self._alive.is_set() else silent_s + ALIVE_EVERY_S
            self._alive.clear()
            if silent_s >= timeout_s and not self.is_silent:
                self.is_silent = True
                log.error("worker %d did not respond for %g s and is killed", self.process.pid, timeout_s)
                self.end()
