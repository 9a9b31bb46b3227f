"""Model servers as forks of a process in which TensorFlow is imported: that alone takes six seconds of a core."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import runpy
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from server_process import ServerProcess, runtime_variables

from tests.ml.waiting_ranks import forkserver

SERVER, WORKER = "airflow_hops.serving", "airflow_hops.extensions.server_extras.serving.worker"


class ForkedProgram:
    """A fork that runs a model server, with the methods of ``subprocess.Popen``.

    Args:
        arguments: Flags of the server.
        env: All of its environment variables.
        log_file: File for its output.
    """

    stdin = None

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], log_file: Path) -> None:
        values = list(arguments), dict(env), str(log_file)
        self._process = forkserver().Process(target=run_server, args=values, daemon=True)
        self._process.start()
        self._lock = threading.Lock()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        with self._lock:
            code: int | None = self._process.exitcode
        return code

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.returncode
        if code is None:
            raise subprocess.TimeoutExpired(SERVER, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_server(arguments: list[str], env: dict[str, str], log_file: str) -> None:
    """Runs the program in a new fork."""
    os.setsid()
    log = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in (1, 2):
        os.dup2(log, number)
    os.environ.clear()
    os.environ.update(env)
    from airflow_hops.core.processes import programs

    start_program = programs.start_module

    def start_module(module: str, *given: Any, **options: Any) -> Any:
        if module == WORKER:
            options["preexec_fn"] = _run_worker
        return start_program(module, *given, **options)

    programs.start_module = start_module
    _run(SERVER, arguments)


def _run_worker() -> None:
    """Runs in the fork of a server, in place of the worker's program."""
    os.closerange(3, 65_536)  # the ports and the pipes of other workers; Popen returns, too, once its pipe is closed
    os.environ["OMP_NUM_THREADS"] = "1"
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    _run(WORKER, [])


def _run(module: str, arguments: list[str]) -> None:
    faulthandler.enable(2)
    gc.enable()
    sys.argv = [module, *arguments]
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    status: Any = 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the module is imported already
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(bool(end.code))
    finally:
        sys.stderr.flush()
        os._exit(status)


class ForkedServer(ServerProcess):
    """The bundled model server as a fork."""

    def launch(self, arguments: list[str]) -> Any:
        return ForkedProgram(arguments, runtime_variables(), self.log_file)


@contextlib.contextmanager
def running_fork(module: str, *arguments: str, grace_s: float, stdout: Any, stderr: int) -> Iterator[ForkedProgram]:
    """Does as ``airflow_hops.core.processes.programs.running_module``."""
    assert (module, stderr) == (SERVER, subprocess.STDOUT)
    process = ForkedProgram(arguments, runtime_variables(), Path(stdout.name))
    try:
        yield process
    finally:
        process.kill()
        process.wait()
