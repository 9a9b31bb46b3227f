"""Runs trials as processes on this machine, or as threads of a Spark driver.

Processes are forks of a single-threaded one that has only imported the libraries: the search's own
process soon has threads, and connections to a store and to MLflow. They all write to one socket, whose records arrive
complete and in order: a trial's messages precede its end.

Spark's ranks are tasks of the cluster, started by the driver's ``SparkContext``, so nothing is forked for them.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

from airflow_hops.core.errors import HopsError
from airflow_hops.core.processes.ending import descendants, send_signal
from airflow_hops.core.processes.forks import Children, fork
from airflow_hops.extensions.experiments.ml.search.trial import Assignment, Ending, TrialEvent, TrialWork

# Processes: search → trial server (one thread, forks trials) → trial → its ranks. Orders go down the socket (start,
# signal), events come up it (report, result, error, ended); the server adds `ended`, after everything that the trial
# has written, because it reaps the process. A killed search closes the socket, and the server kills all trials; a
# killed server closes it, too, and the search fails. A killed trial is an event `ended` with its signal.

_RECORD_BYTES = 1 << 19
_EVENTS = 1000


class TrialProcesses:
    """Starts and ends the processes of trials; create it before this process starts a thread."""

    def __init__(self, work: TrialWork) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def serve() -> None:
            self._socket.close()
            _TrialServer(theirs, work).serve()

        self._pid = fork(serve)
        theirs.close()

    def start(self, assignment: Assignment) -> None:
        """Starts a trial.

        Raises:
            HopsError: the trial server has ended, or the parameters exceed a message's size.
        """
        try:
            _send(self._socket, start=asdict(assignment))
        except OSError as error:
            raise HopsError(f"trial {assignment.number} cannot be started: {error}") from error

    def stop(self, number: int) -> None:
        """Asks a trial to end; its ranks are ended if its function does not check for that."""
        self._signal(number, signal.SIGTERM)

    def end(self, number: int) -> None:
        """Kills a trial with all of its ranks; its event ``ended`` follows soon."""
        self._signal(number, signal.SIGKILL)

    def events(self, timeout_s: float) -> Iterator[TrialEvent]:
        """Yields the new events of trials; waits for the first one up to a timeout.

        Raises:
            HopsError: the trial server has ended.
        """
        if not select.select([self._socket], [], [], timeout_s)[0]:
            return
        with contextlib.suppress(BlockingIOError):
            for _ in range(_EVENTS):
                message = self._socket.recv(_RECORD_BYTES, socket.MSG_DONTWAIT)
                if not message:
                    raise HopsError("the process that starts the trials was killed; if memory is short, lower parallel")
                yield json.loads(message)

    def close(self) -> None:
        """Ends all trials and the trial server."""
        self._socket.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def _signal(self, number: int, signal_number: int) -> None:
        with contextlib.suppress(OSError):
            _send(self._socket, number=number, signal=signal_number)


class _TrialServer:
    """Forks trials for the search and reports their ends, until the search has ended."""

    def __init__(self, socket_: socket.socket, work: TrialWork) -> None:
        self._socket, self._work = socket_, work
        self._children = Children()
        self._numbers: dict[int, int] = {}
        self._goes_on = True

    def serve(self) -> None:
        """Serves, then kills the trials."""
        with contextlib.suppress(ConnectionResetError):  # the search was killed
            self._children.serve(self._socket, self._obey, self._reap, lambda: self._goes_on)
        for pid in list(self._numbers):
            _kill(pid)

    def _obey(self) -> None:
        message = self._socket.recv(_RECORD_BYTES)
        if not message:
            self._goes_on = False
            return
        order = json.loads(message)
        if "signal" in order:
            for pid in [pid for pid, number in self._numbers.items() if number == order["number"]]:
                _kill(pid) if order["signal"] == signal.SIGKILL else send_signal(pid, order["signal"])
            return
        assignment = Assignment(**order["start"])
        try:
            trial = partial(self._work.train_here, assignment, partial(_send, self._socket, number=assignment.number))
            self._numbers[self._children.fork(trial)] = assignment.number
        except OSError as error:
            self._tell(type="error", number=assignment.number, message=f"no process can be started: {error}")
            self._tell(type="ended", number=assignment.number, code=1)

    def _reap(self) -> None:
        for pid, status in self._children.take_ended():
            self._tell(type="ended", number=self._numbers.pop(pid), code=os.waitstatus_to_exitcode(status))

    def _tell(self, **event: object) -> None:
        with contextlib.suppress(OSError):  # the search has ended, which the next read of the socket shows
            _send(self._socket, **event)


def _send(to: socket.socket, **message: object) -> None:
    to.send(json.dumps(message).encode())


def _kill(pid: int) -> None:
    for each in [*descendants(pid), pid]:
        send_signal(each, signal.SIGKILL)


_END_S = 10.0


class TrialThreads:
    """Starts and ends trials in threads, with the methods of :class:`TrialProcesses`."""

    def __init__(self, work: TrialWork) -> None:
        self._work = work
        self._events: queue.SimpleQueue[TrialEvent] = queue.SimpleQueue()
        self._threads: dict[int, tuple[threading.Thread, Ending]] = {}

    def start(self, assignment: Assignment) -> None:
        """Starts a trial."""
        ending = Ending()

        def say(**event: object) -> None:
            self._events.put({"number": assignment.number, **event})

        def train() -> None:
            try:
                self._work.train(assignment, say, ending)
            finally:
                say(type="ended", code=0)

        thread = threading.Thread(target=train, name=f"trial-{assignment.number}", daemon=True)
        self._threads[assignment.number] = (thread, ending)
        thread.start()

    def stop(self, number: int) -> None:
        """Asks a trial to end; its ranks are ended if its function does not check for that."""
        if number in self._threads:
            self._threads[number][1].asked = True

    def end(self, number: int) -> None:
        """Ends a trial with all of its ranks; its event ``ended`` follows soon."""
        self.stop(number)
        if number in self._threads:
            self._threads[number][1].heeded = False

    def events(self, timeout_s: float) -> Iterator[TrialEvent]:
        """Yields the new events of trials; waits for the first one up to a timeout."""
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return
        if event["type"] == "ended":
            self._threads.pop(event["number"])[0].join()
        yield event

    def close(self) -> None:
        """Ends all trials."""
        deadline = time.monotonic() + _END_S
        for number in self._threads:
            self.end(number)
        for thread, _ in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))


Trials = TrialProcesses | TrialThreads
"""Starts and ends trials."""
