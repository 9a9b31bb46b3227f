"""The process that workers are forked from: it imports TensorFlow once, runs nothing of it, and has one thread.

Importing TensorFlow costs seconds, a fork milliseconds; and what the import leaves in memory is shared by all workers.
The server starts it as a program (``python -m airflow_hops.serving.models.workers.zygote DESCRIPTOR``), so that it
holds none of the server's threads, locks or ports.

Both sides speak over one socket of records, each a pickled tuple. The server sends ``("fork", number, job)`` with the
worker's end of its control connection, and ``("kill", pid)``; it is told ``("forked", number, pid)`` and
``("exited", pid, status)``, or ``("refused", number, reason)`` where the system has no room for a process. When the
server is no more, the socket ends, and with it this process and all workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import selectors
import signal
import socket
import sys
import traceback

_RECORD_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1


class Zygote:
    """Forks workers and says when they have ended.

    Args:
        commands: The socket to the server.
    """

    def __init__(self, commands: socket.socket) -> None:
        self._commands = commands
        self._workers: set[int] = set()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def serve(self) -> None:
        """Serves until the server is no more, then kills the workers."""
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self._commands, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            serving = True
            while serving:
                for key, _ in selector.select():
                    if key.fileobj is self._commands:
                        serving = self._obey() and serving
                    else:
                        with contextlib.suppress(BlockingIOError):
                            os.read(self._wake_read, 4096)
                        self._reap()
        for pid in self._workers:
            os.kill(pid, signal.SIGKILL)

    def _obey(self) -> bool:
        record, descriptors, _, _ = socket.recv_fds(self._commands, _RECORD_BYTES, 1)
        if not record:
            return False
        command, number, *rest = pickle.loads(record)
        if command == "fork":
            self._fork(number, rest[0], descriptors[0])
        elif number in self._workers:
            os.kill(number, signal.SIGKILL)
        return True

    def _fork(self, number: int, job: bytes, control: int) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(control)
            self._tell("refused", number, f"fork: {error.strerror}")
            return
        if pid == 0:
            self._commands.close()
            os.close(self._wake_read)
            _become_worker(job, control, parent)
        os.close(control)
        self._workers.add(pid)
        self._tell("forked", number, pid)

    def _reap(self) -> None:
        for pid in list(self._workers):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._workers.discard(pid)
                self._tell("exited", pid, status)

    def _tell(self, *report: object) -> None:
        with contextlib.suppress(ConnectionError):  # the server is no more, as the next look at the socket shows
            self._commands.sendall(pickle.dumps(report))


def _become_worker(job: bytes, control: int, parent: int) -> None:
    """Turns a forked child into a worker; never returns."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            from airflow_hops.serving.models.workers.process import run_worker

            run_worker(pickle.loads(job), socket.socket(fileno=control))
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(1)


def main(descriptor: int) -> None:
    """Imports what workers need, and forks them."""
    # Who stops a service, or presses Ctrl-C, signals all of its processes: workers end when the server has drained.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    from airflow_hops.runtime.tensorflow_graphs import import_tensorflow
    from airflow_hops.serving.models.memory import set_imports_apart

    import_tensorflow()
    import airflow_hops.serving.models.saved_model
    import airflow_hops.serving.models.workers.process  # noqa: F401

    set_imports_apart()  # what is shared with the workers stays shared
    Zygote(socket.socket(fileno=descriptor)).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))
