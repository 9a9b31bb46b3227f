"""The process that workers are forked from: it imports TensorFlow once, runs nothing of it, and has one thread.

Importing TensorFlow costs seconds, a fork milliseconds; and what the import leaves in memory is shared by all workers.
The server starts it as a program (``python -m airflow_hops.serving.models.workers.zygote DESCRIPTOR MODULE:FUNCTION``),
so that it holds none of the server's threads, locks or ports.

Both sides speak over one socket of records, each a pickled tuple. The server sends ``("fork", number, assignment)``
with the worker's end of its control connection, ``("kill", pid)`` and ``("ping",)``; it is told
``("forked", number, pid)`` and ``("exited", pid, status)``, or ``("refused", number, reason)`` where the system has no
room for a process, and ``("alive", 0, 0)``. When the server is no more, the socket ends, and with it this process and
all workers.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import pkgutil
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from airflow_hops.core.processes.forks import Children

_RECORD_BYTES = 1 << 20


class Zygote:
    """Forks workers and says when they have ended.

    Args:
        commands: The socket to the server.
        run: What a worker does, with its assignment and its end of the control connection.
    """

    def __init__(self, commands: socket.socket, run: Callable[[Any, socket.socket], None]) -> None:
        self._commands = commands
        self._run = run
        self._workers = Children()

    def serve(self) -> None:
        """Serves until the server is no more, then kills the workers."""
        self._workers.serve(self._commands, self._obey, self._reap)
        for pid in self._workers.running:
            self._workers.kill(pid)

    def _reap(self) -> None:
        for pid, status in self._workers.take_ended():
            self._tell("exited", pid, status)

    def _obey(self) -> bool:
        record, descriptors, _, _ = socket.recv_fds(self._commands, _RECORD_BYTES, 1)
        if not record:
            return False
        command, *given = pickle.loads(record)
        if command == "fork":
            number, assignment = given
            self._fork(number, assignment, descriptors[0])
        elif command == "kill":
            (pid,) = given
            self._workers.kill(pid)
        else:
            self._tell("alive", 0, 0)
        return True

    def _fork(self, number: int, assignment: bytes, control: int) -> None:
        def worker() -> None:
            self._commands.close()
            self._run(pickle.loads(assignment), socket.socket(fileno=control))

        try:
            pid = self._workers.fork(worker)
        except OSError as error:
            self._tell("refused", number, f"fork: {error.strerror}")
        else:
            self._tell("forked", number, pid)
        finally:
            os.close(control)

    def _tell(self, *report: object) -> None:
        with contextlib.suppress(ConnectionError):  # the server is no more, as the next look at the socket shows
            self._commands.sendall(pickle.dumps(report))


def main(descriptor: int, program: str) -> None:
    """Imports what workers need, and forks them.

    Args:
        descriptor: Of the socket to the server.
        program: ``module:function``, what they do.
    """
    # Who stops a service, or presses Ctrl-C, signals all of its processes: workers end when the server has drained.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    import airflow_hops.serving.models.saved_model  # noqa: F401
    from airflow_hops.serving.models.memory import set_imports_apart

    run = pkgutil.resolve_name(program)
    set_imports_apart()  # what is shared with the workers stays shared
    Zygote(socket.socket(fileno=descriptor), run).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
