"""Forks of a process that has imported its libraries, which takes milliseconds instead of seconds."""

# Why a parent of forks has one thread: a fork has only the thread that forked, but all locks as they were; a lock that
# another thread held would stay locked for ever. So ends of forks are noticed without a thread:
# 1. SIGCHLD makes Python write a byte to a pipe (``signal.set_wakeup_fd``), on which the selector waits together with
#    the commands.
# 2. Several ends may leave one byte, since signals are merged, so each child is asked with WNOHANG.
# 3. A child that has ended stays a zombie, and keeps its pid, until then: a kill cannot hit another process.
# A fork of a killed parent is killed by the kernel (``PR_SET_PDEATHSIG``); if the parent has ended before the fork
# asked for that, the fork sees another parent, and ends itself.

from __future__ import annotations

import contextlib
import io
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping

from airflow_hops.core.processes.ending import send_signal
from airflow_hops.core.processes.lifetime import end_with_parent

GO = b"go"
"""A client's reply to the pid of its fork, which then begins; a client that has given up does not send it."""
_MESSAGE_BYTES = 1 << 20


def fork(run: Callable[[], int | None]) -> int:
    """Forks a process that calls a function and exits; returns the pid. The kernel ends it when its parent has ended.

    ``run`` returns the exit code, or None for 0. An exception is printed, and makes the code 1.
    """
    parent = os.getpid()
    _flush()
    if pid := os.fork():
        return pid
    code = 1
    try:
        end_with_parent(parent)
        code = run() or 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


class Children:
    """The forks of a single-threaded process; register this object in a selector to be notified when one ends."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def fileno(self) -> int:
        """Descriptor that becomes readable when a fork may have ended."""
        return self._wake_read

    def fork(self, run: Callable[[], int | None]) -> int:
        """Forks a child; see :func:`fork`."""

        def child() -> int | None:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(self._wake_read)
            os.close(self._wake_write)
            return run()

        pid = fork(child)
        self.running.add(pid)
        return pid

    def take_ended(self) -> list[tuple[int, int]]:
        """Returns pid and status of each fork that has ended since the last call."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        ended = [(pid, status) for pid in self.running for done, status in [os.waitpid(pid, os.WNOHANG)] if done]
        self.running.difference_update(pid for pid, _ in ended)
        return ended

    def serve(
        self,
        commands: socket.socket,
        obey: Callable[[], None],
        reap: Callable[[], None],
        goes_on: Callable[[], bool],
    ) -> None:
        """Calls ``obey`` for each command on a socket, and ``reap`` after ends of forks, at least every second.

        It returns when ``goes_on``, which is called as often, returns False.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(commands, selectors.EVENT_READ)
            selector.register(self, selectors.EVENT_READ)
            while goes_on():
                for key, _ in selector.select(timeout=1.0):
                    if key.fileobj is commands:
                        obey()
                reap()

    def kill(self, pid: int) -> None:
        """Kills a fork, if it still runs: its pid is not reused before it has been waited for."""
        if pid in self.running:
            send_signal(pid, signal.SIGKILL)


def send_request(connection: socket.socket, request: Mapping[str, object], descriptors: list[int]) -> None:
    """Sends a JSON object with open files.

    Raises:
        OSError: the connection is closed.
    """
    message = json.dumps(request).encode() + b"\n"
    sent = socket.send_fds(connection, [message], descriptors)
    connection.sendall(message[sent:])


def receive_request(connection: socket.socket, descriptors: int) -> tuple[dict[str, object], list[int]]:
    """Receives a JSON object with open files.

    Raises:
        OSError: the connection was closed before.
        ValueError: not a JSON object, or wrong number of descriptors.
    """
    message, received, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, descriptors)
    try:
        while not message.endswith(b"\n"):
            more = connection.recv(_MESSAGE_BYTES)
            if not more:
                raise ConnectionError("the client closed the connection before its request was complete")
            message += more
        request = json.loads(message)
        if len(received) != descriptors:
            raise ValueError(f"received {len(received)} open files, expected {descriptors}")
    except BaseException:
        for descriptor in received:
            os.close(descriptor)
        raise
    return request, received


def take_streams(*streams: int) -> None:
    """Makes open files the standard streams of this process: input, output, errors."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in set(streams):
        if stream > 2:
            os.close(stream)
    if not isinstance(sys.stdout, io.TextIOWrapper):  # a notebook's stream, which its kernel reads
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))


def take_variables(env: Mapping[str, str], folder: str) -> None:
    """Sets the environment variables and the working directory that this process would have been started with."""
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    tempfile.tempdir = None  # an import may have cached it for another TMPDIR
    os.chdir(folder)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
