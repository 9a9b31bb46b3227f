"""The processes of trials: forks of one that has imported the libraries, has run nothing of them, and has one thread.

The search's own process will soon have threads, and connections to a store and to MLflow: trials, whose ranks are
forked in turn, are none of its forks, but of a fork that it puts aside when it begins.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from airflow_hops.contract.artifacts import HopsError
from airflow_hops.processes.ending import descendants, send_signal
from airflow_hops.processes.forks import Children, fork
from airflow_hops.runtime.search.trial import Assignment, TrialWork

_RECORD_BYTES = 1 << 17


@dataclass(frozen=True)
class TrialEvent:
    """Something that came from a trial.

    Attributes:
        number: The trial's.
        kind: ``report``, ``result``, ``error``; ``ended`` is the last.
        value: The message; of ``ended`` the process's exit code, or the negative number of a signal.
    """

    number: int
    kind: str
    value: Any


@dataclass
class _Line:
    """The search's end of a trial's pipe."""

    descriptor: int
    pending: bytes = b""


class TrialProcesses:
    """Starts and ends the processes of trials; make it before this process starts a thread.

    Args:
        work: What they do.
    """

    def __init__(self, work: TrialWork) -> None:
        self._commands, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._commands, selectors.EVENT_READ)
        self._lines: dict[int, _Line] = {}

        def serve() -> None:
            self._selector.close()
            self._commands.close()
            _TrialServer(theirs, work).serve()

        self._pid = fork(serve)
        theirs.close()

    def start(self, given: Assignment) -> None:
        """Starts a trial.

        Raises:
            HopsError: what starts them is gone.
        """
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        try:
            message = json.dumps({"start": asdict(given)}).encode()
            socket.send_fds(self._commands, [message], [theirs])
        except OSError as error:
            os.close(ours)
            raise HopsError(f"trial {given.number} cannot be started: {error}") from error
        finally:
            os.close(theirs)
        self._lines[given.number] = _Line(ours)
        self._selector.register(ours, selectors.EVENT_READ, given.number)

    def stop(self, number: int) -> None:
        """Tells a trial to end; one whose function does not heed that is ended."""
        self._signal(number, signal.SIGTERM)

    def end(self, number: int) -> None:
        """Kills a trial with all of its ranks; its ``ended`` comes soon."""
        self._signal(number, signal.SIGKILL)

    def events(self, timeout_s: float) -> Iterator[TrialEvent]:
        """What has come from trials; waits for the first for at most so many seconds.

        Raises:
            HopsError: what starts them is gone.
        """
        for key, _ in self._selector.select(timeout_s):
            if key.data is not None:
                yield from self._read(key.data)
                continue
            message = self._commands.recv(_RECORD_BYTES)
            if not message:
                raise HopsError("the process that starts the trials was ended; where memory is short, lower parallel")
            ended = json.loads(message)
            number = ended["number"]
            yield from self._read(number)
            line = self._lines.pop(number)
            if line.descriptor in self._selector.get_map():
                self._selector.unregister(line.descriptor)
            os.close(line.descriptor)
            yield TrialEvent(number, "ended", ended["code"])

    def close(self) -> None:
        """Ends all trials, and what starts them."""
        self._commands.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        for line in self._lines.values():
            os.close(line.descriptor)
        self._lines.clear()
        self._selector.close()

    def _signal(self, number: int, signal_number: int) -> None:
        with contextlib.suppress(OSError):
            self._commands.send(json.dumps({"end": number, "signal": signal_number}).encode())

    def _read(self, number: int) -> Iterator[TrialEvent]:
        if (line := self._lines.get(number)) is None:
            return
        while True:
            try:
                chunk = os.read(line.descriptor, 1 << 16)
            except BlockingIOError:
                break
            if not chunk:
                if line.descriptor in self._selector.get_map():
                    self._selector.unregister(line.descriptor)
                break
            *whole, line.pending = (line.pending + chunk).split(b"\n")
            for text in whole:
                message = json.loads(text)
                yield TrialEvent(number, message["type"], message)


class _TrialServer:
    """Forks trials for the search, and says when they have ended, until the search is no more.

    Args:
        commands: Its socket to the search.
        work: What the forks do.
    """

    def __init__(self, commands: socket.socket, work: TrialWork) -> None:
        self._commands, self._work = commands, work
        self._children = Children()
        self._numbers: dict[int, int] = {}

    def serve(self) -> None:
        """Serves, then kills the trials."""
        self._children.serve(self._commands, self._obey, self._reap)
        for pid in list(self._numbers):
            _kill(pid)

    def _obey(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._commands, _RECORD_BYTES, 1)
        if not message:
            return False
        told = json.loads(message)
        if "end" in told:
            for pid in [pid for pid, number in self._numbers.items() if number == told["end"]]:
                _kill(pid) if told["signal"] == signal.SIGKILL else send_signal(pid, told["signal"])
            return True
        given = Assignment(**told["start"])
        (descriptor,) = descriptors

        def trial() -> None:
            self._commands.close()
            self._work.train_here(given, descriptor)

        try:
            self._numbers[self._children.fork(trial)] = given.number
        except OSError as error:
            with contextlib.suppress(OSError):
                failure = {"type": "error", "message": f"no process can be started: {error}"}
                os.write(descriptor, json.dumps(failure).encode() + b"\n")
            self._tell(given.number, 1)
        finally:
            os.close(descriptor)
        return True

    def _reap(self) -> None:
        for pid, status in self._children.take_ended():
            self._tell(self._numbers.pop(pid), os.waitstatus_to_exitcode(status))

    def _tell(self, number: int, code: int) -> None:
        with contextlib.suppress(OSError):  # the search is no more, as the next look at the socket shows
            self._commands.send(json.dumps({"number": number, "code": code}).encode())


def _kill(pid: int) -> None:
    for each in [*descendants(pid), pid]:
        send_signal(each, signal.SIGKILL)
