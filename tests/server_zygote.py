"""Forks model servers from a process that has TensorFlow imported; run with the runtime environment's Python.

Each line that comes by the socket whose descriptor is given is a JSON object: ``arguments`` and ``environment`` of a
server, its ``log``, and a file for the ``status`` that it ends with. It is answered with a line: the process id.
Servers end with this process, which ends with the socket, or when who started it is gone.

The process that a server forks its workers or fronts from is a fork, too; what takes its place is a program.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from airflow_hops.core.processes.forks import receive_request, send_request
from airflow_hops.core.processes.lifetime import end_with, started_at

STATUS_FILES: dict[int, str] = {}


def reap(*_: object) -> None:
    """Writes the statuses of servers that have ended."""
    for pid in list(STATUS_FILES):
        with contextlib.suppress(ChildProcessError):  # this function was called meanwhile, by a signal
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                path = Path(STATUS_FILES.pop(pid))
                path.with_suffix(".new").write_text(str(os.waitstatus_to_exitcode(status)))
                path.with_suffix(".new").rename(path)


class PopenOfFork(subprocess.Popen[bytes]):
    """Starts programs, but for the first one that workers are forked from: this is a fork, made ahead."""

    ahead: tuple[int, socket.socket] | None = None

    def _execute_child(self, command: list[str], *given: Any) -> None:
        if self.ahead is None or "airflow_hops.serving.models.workers.zygote" not in command:
            super()._execute_child(command, *given)  # type: ignore[misc]
            return
        (self.pid, asking), PopenOfFork.ahead = self.ahead, None
        with asking:
            send_request(asking, {"program": command[-1], "environment": given[5]}, [int(command[-2])])
        self._child_created = True
        self._close_pipe_fds(*given[9:15])  # type: ignore[attr-defined]


def fork_ahead() -> None:
    """Forks what workers will be forked from, while this process has one thread."""
    from airflow_hops.serving.models.workers import zygote

    ours, theirs = socket.socketpair()
    if pid := os.fork():
        theirs.close()
        PopenOfFork.ahead = pid, ours
        subprocess.Popen = PopenOfFork  # type: ignore[misc]
        return
    ours.close()
    status = 1
    try:
        asked, (descriptor,) = receive_request(theirs, 1)
        os.environ |= asked["environment"]
        zygote.main(descriptor, asked["program"])
        status = 0
    except ConnectionError:
        pass  # the server has ended without it
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def become_server(asked: dict[str, Any]) -> None:
    """Runs the program as ``python -m airflow_hops.serving`` does; never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(asked["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for target, source in enumerate((nothing, log, log)):
        os.dup2(source, target)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv[1:] = asked["arguments"]
    if any(argument.startswith(("--fronts=", "--workers=")) for argument in sys.argv):
        fork_ahead()
    status = 1
    try:
        runpy.run_module("airflow_hops.serving", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def serve(descriptor: int) -> None:
    """Forks servers until the socket ends, then ends them."""
    end_with(f"{os.getppid()}:{started_at(os.getppid())}")
    gc.disable()
    import airflow_hops.serving.fronts.front
    import airflow_hops.serving.models.saved_model
    import airflow_hops.serving.models.workers.process
    import airflow_hops.serving.models.workers.zygote
    import airflow_hops.serving.server  # noqa: F401
    from airflow_hops.serving.models.memory import set_imports_apart

    set_imports_apart()  # once, in place of in each server
    gc.enable()
    signal.signal(signal.SIGCHLD, reap)
    requests = socket.socket(fileno=descriptor)
    for line in requests.makefile("r"):
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            requests.close()
            become_server(asked)
        STATUS_FILES[pid] = asked["status"]
        requests.sendall(b"%d\n" % pid)
        reap()  # it may have ended before it was known
    for pid in list(STATUS_FILES):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
