"""One worker, as the server sees it."""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import grpc

from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.servable import Call, Reply
from airflow_hops.serving.models.workers.frames import Connection, PeerGone, connection_pair, receive_reply
from airflow_hops.serving.models.workers.launcher import Launcher
from airflow_hops.serving.models.workers.process import Assignment

_END_TIMEOUT_S = 5.0


class Worker:
    """A process that serves one version; returns when it has opened it.

    Args:
        launcher: Starts it.
        assignment: What it serves.
        on_end: Called with the worker when it is no more, whatever ended it.

    Attributes:
        signature_defs: Of the version, a serialized ``SignatureDefMap``.
        in_flight: Requests that it was chosen for and has not answered; kept by its pool, as the next three are.
        requests: Requests that it was ever chosen for.
        alone: Whether it is kept for one request.
        draining: Whether it ends after its requests in flight.
        gone: Whether it was found to be no more.

    Raises:
        ServingError: The version does not load, or the process died of it.
    """

    def __init__(self, launcher: Launcher, assignment: Assignment, on_end: Callable[[Worker], None]) -> None:
        self.in_flight = 0
        self.requests = 0
        self.alone = False
        self.draining = False
        self.gone = False
        self.started_s = time.monotonic()
        self._launcher = launcher
        self._idle: list[Connection] = []
        self._connecting = threading.Lock()
        self._control, theirs = connection_pair()
        try:
            with theirs:
                self.process = launcher.fork(assignment, theirs, lambda: on_end(self))
            self.signature_defs = self._opened(assignment)
        except BaseException:
            self._control.close()
            raise

    def answer(self, call: Call) -> Reply:
        """Has a request answered.

        Raises:
            ServingError: That is the answer, or the deadline has passed.
            PeerGone: The worker had ended before it got the request.
            PeerDied: It ended when it had it.
        """
        return self._exchange(lambda connection: connection.ask(call))

    def metrics(self, timeout_s: float) -> list[Any]:
        """Asks for what the worker counts.

        Returns:
            ``prometheus_client``'s metrics.

        Raises:
            ServingError: It did not answer in time.
            PeerGone: It has ended.
        """
        deadline_s = time.monotonic() + timeout_s
        reply = self._exchange(lambda connection: connection.ask_for_metrics(deadline_s))
        found: list[Any] = pickle.loads(reply.message)
        return found

    def close(self) -> None:
        """Tells the process to end; requests that it has are lost."""
        with self._connecting, contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)

    def wait(self) -> None:
        """Waits until the process has ended, and kills one that does not."""
        if not self.process.ended.wait(_END_TIMEOUT_S):
            self._launcher.kill(self.process)
            self.process.ended.wait(_END_TIMEOUT_S)

    def forget(self) -> None:
        """Closes the connections to a process that is no more."""
        with self._connecting:
            self._control.close()
        # A request that was given this worker just before may be taking connections, too.
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _exchange(self, ask: Callable[[Connection], Reply | ServingError]) -> Reply:
        """Asks on a connection that nobody uses."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            answer = ask(connection)
        except BaseException as error:
            connection.close()
            if isinstance(error, PeerGone):
                self._lose()
            raise
        self._idle.append(connection)
        if isinstance(answer, ServingError):
            raise answer
        return answer

    def _opened(self, assignment: Assignment) -> bytes:
        try:
            opened = receive_reply(self._control)
        except PeerGone:
            self.process.ended.wait(_END_TIMEOUT_S)
            raise ServingError(
                grpc.StatusCode.INTERNAL,
                f"The worker that was loading {assignment.folder} ended with {self.process.end}",
            ) from None
        if isinstance(opened, ServingError):
            raise opened
        return opened.message

    def _connect(self) -> Connection:
        ours, theirs = connection_pair()
        with theirs, self._connecting:
            try:
                socket.send_fds(self._control, [b"+"], [theirs.fileno()])
            except OSError:
                ours.close()
                self._lose()
                raise PeerGone from None
        return Connection(ours)

    def _lose(self) -> None:
        """Gives the worker up: one that no longer answers, but still runs, would never be replaced."""
        self.gone = True
        self._launcher.kill(self.process)
