"""The server's side of the zygote: asks it for worker processes, and learns how they end."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence

import grpc

from airflow_hops.core.processes.programs import module_command, with_package
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.workers.process import run_worker

log = logging.getLogger(__name__)

_RECORD_BYTES = 1 << 16
_PING_S = 1.0
RUN_WORKER = f"{run_worker.__module__}:{run_worker.__qualname__}"


class Process:
    """A worker process.

    Attributes:
        pid: Its number, once it has been forked.
        ended: Set when it is no more.
        end: How it ended, in words.
        with_zygote: Whether it ended because the zygote did, which is no doing of its own.
    """

    def __init__(self) -> None:
        self.pid = 0
        self.ended = threading.Event()
        self.end = "still running"
        self.with_zygote = False
        self.on_end: Callable[[], None] = lambda: None
        self.forked = threading.Event()

    def ends(self, end: str) -> None:
        """Records that it is no more."""
        self.end = end
        self.forked.set()
        self.ended.set()
        self.on_end()


class _Zygote:
    """One zygote process and its workers."""

    def __init__(self, environment: Mapping[str, str], program: str) -> None:
        self.commands, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.program = subprocess.Popen(
                module_command(
                    sys.executable, "airflow_hops.serving.models.workers.zygote", str(theirs.fileno()), program
                ),
                stdin=subprocess.DEVNULL,
                env=with_package(environment),
                pass_fds=[theirs.fileno()],
            )
        self.asked: dict[int, Process] = {}
        self.running: dict[int, Process] = {}
        self.killed: set[int] = set()
        self.alive, self.ended = threading.Event(), threading.Event()


class Launcher:
    """Forks workers from a zygote, which is replaced should it die, or hang when something is wanted of it.

    Args:
        threads: Of each worker for one operation of OpenMP, unless the environment says.
        program: ``module:function``, what a worker does with its assignment and the control connection.
        timeout_s: How long a zygote may give no sign of life; 0 waits for ever.
    """

    def __init__(self, threads: int, program: str = RUN_WORKER, timeout_s: float = 10.0) -> None:
        # OpenBLAS starts its threads when it is imported, and workers are forked from a process that has only one.
        self._environment = {"OMP_NUM_THREADS": str(threads), **os.environ, "OPENBLAS_NUM_THREADS": "1"}
        self._program, self._timeout_s = program, timeout_s
        self._lock = threading.Lock()
        self._count = 0
        self._closed = False
        self._zygote: _Zygote | None = None
        with self._lock:
            self._start()

    @property
    def pid(self) -> int | None:
        """The zygote's process, None while there is none."""
        zygote = self._zygote
        return zygote.program.pid if zygote else None

    def fork(self, assignment: object, control: socket.socket, on_end: Callable[[], None]) -> Process:
        """Starts a worker.

        Args:
            assignment: What it serves.
            control: Its end of the control connection; stays open here.
            on_end: Called, in a thread that must not be held up, when it is no more.

        Raises:
            ServingError: The server stops, or the zygote cannot be started.
        """
        process = Process()
        process.on_end = on_end
        with self._lock:
            if self._closed:
                raise ServingError(grpc.StatusCode.UNAVAILABLE, "The server stops")
            zygote = self._zygote or self._start()
            self._count += 1
            zygote.asked[self._count] = process
            _tell(zygote, ("fork", self._count, pickle.dumps(assignment)), [control.fileno()])
        process.forked.wait()
        if process.pid == 0:
            raise ServingError(grpc.StatusCode.INTERNAL, f"No worker could be started: {process.end}")
        return process

    def kill(self, process: Process) -> None:
        """Kills a worker, if it still runs."""
        with self._lock:
            zygote = self._zygote
            # Only its parent knows for sure that the number still is this process's.
            if zygote is not None and zygote.running.get(process.pid) is process:
                zygote.killed.add(process.pid)
                _tell(zygote, ("kill", process.pid))

    def close(self) -> None:
        """Ends the zygote and all workers, and waits until they have."""
        with self._lock:
            self._closed = True
            zygote = self._zygote
            if zygote is not None:
                zygote.commands.shutdown(socket.SHUT_WR)
        if zygote is not None:
            zygote.program.wait()

    def _start(self) -> _Zygote:
        zygote = self._zygote = _Zygote(self._environment, self._program)
        threading.Thread(target=self._read, args=(zygote,), name="zygote", daemon=True).start()
        if self._timeout_s:
            threading.Thread(target=self._watch, args=(zygote,), name="zygote-watch", daemon=True).start()
        return zygote

    def _watch(self, zygote: _Zygote) -> None:
        """Ends a zygote that hangs, once it is to do something: until then, what would end with it goes on."""
        silent_s = -math.inf  # at first it imports, for as long as that takes
        with contextlib.suppress(OSError):  # it has ended just now
            _tell(zygote, ("ping",))
            while not zygote.ended.wait(_PING_S):
                silent_s += _PING_S  # counted, not measured: where everything stood still, this process did, too
                if zygote.alive.is_set():
                    zygote.alive.clear()
                    silent_s = 0.0
                    _tell(zygote, ("ping",))
                elif silent_s >= self._timeout_s and (zygote.asked or zygote.killed or self._closed):
                    log.error("the process that workers are forked from gave no sign of life for %g s", silent_s)
                    zygote.program.kill()
                    break

    def _read(self, zygote: _Zygote) -> None:
        """Takes in what a zygote reports, until it is no more."""
        while True:
            try:
                record = zygote.commands.recv(_RECORD_BYTES)
            except ConnectionError:
                record = b""
            if not record:
                break
            report, number, value = pickle.loads(record)
            if report == "alive":
                zygote.alive.set()
                continue
            with self._lock:
                if report == "forked":
                    process = zygote.asked.pop(number)
                    process.pid = value
                    zygote.running[value] = process
                    process.forked.set()
                    continue
                process = (zygote.asked if report == "refused" else zygote.running).pop(number)
                zygote.killed.discard(process.pid)
            _end(process, str(value) if report == "refused" else _end_of(os.waitstatus_to_exitcode(value)))
        end = f"the end of the process that workers are forked from: {_end_of(zygote.program.wait())}"
        with self._lock:
            self._zygote = None
            orphans = [*zygote.asked.values(), *zygote.running.values()]
            zygote.ended.set()
            zygote.commands.close()
            if not self._closed:
                log.error("workers end with %s", end)
        for process in orphans:
            process.with_zygote = True
            _end(process, end)


def threads_each(processes: int) -> int:
    """Returns how many threads each of so many processes has to itself."""
    return max(1, len(os.sched_getaffinity(0)) // processes)


def _tell(zygote: _Zygote, command: tuple[object, ...], descriptors: Sequence[int] = ()) -> None:
    # Where the zygote is no more, the thread that reads its reports ends its processes.
    with contextlib.suppress(ConnectionError):
        socket.send_fds(zygote.commands, [pickle.dumps(command)], descriptors)


def _end(process: Process, end: str) -> None:
    try:
        process.ends(end)
    except Exception:  # the thread that learns of every worker's end must outlive what one of them leads to
        log.exception("worker %d: %s", process.pid, end)


def _end_of(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    return f"signal {-exit_code} ({signal.Signals(-exit_code).name})"
