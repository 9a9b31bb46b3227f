"""Forks steps from a warm process that has imported the ML libraries: milliseconds instead of seconds."""

# The dialogue on a connection to the warm process, for one step:
# 1. The client sends the request, a line of JSON, with the descriptor of the step's log.
# 2. The warm process forks, and replies with the fork's pid. The fork waits.
# 3. The client sends GO, and the fork begins. A client that got no reply in time closes the connection instead, and
#    starts the step in a new process: the fork ends without having begun, so no step runs twice.
# 4. When the fork has ended, the warm process sends its status, and the connection ends. A connection that ends without
#    a status means that the warm process was killed, and the kernel has killed its forks with it.
# The lock on ``<socket>.lock`` is taken by the first client that finds no warm process, and inherited by the one that
# it starts; the kernel releases it at the end of that process, so there is at most one.

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.files import try_lock
from airflow_hops.core.processes.forks import GO, send_request
from airflow_hops.core.processes.programs import module_command, with_package
from airflow_hops.core.steps.protocol import STEP_ID_VARIABLE
from airflow_hops.core.store.private_folders import private_folder
from airflow_hops.runner.launchers.process import LOG, StepProcess, new_step_id, open_log

_CONNECT_TIMEOUT_S = 5.0
_PATHS = ("HOME", "LANG", "PATH", "TMPDIR")
_READ_AT_IMPORT = ("KERAS_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "TF_", "XLA_")


class WarmStart:
    """The client of ``airflow_hops.ml.step.warm``.

    Args:
        path: The warm process's socket.
        python: The runtime environment's Python. If no warm process listens, it starts one in the background for later
            steps, which ends by itself when idle for a while. If None, only a running process is used.
    """

    def __init__(self, path: Path, python: Path | None = None) -> None:
        self.path, self.python = path, python

    def start(self, spec_path: Path, env: Mapping[str, str]) -> StepProcess | None:
        """Starts a step in a fork of the warm process, which also waits for its end.

        Args:
            spec_path: The step's ``spec.json``; its folder becomes the working directory.
            env: All environment variables of the step; a step's id is added if they have none.

        Returns:
            The step's process, or None if no warm process answers, and the caller must start the step itself.
        """
        env = {STEP_ID_VARIABLE: new_step_id(), **env}
        folder = spec_path.parent
        try:
            private_folder(self.path.parent)
        except BadInput:  # other users could create a socket there, and read steps' environments
            return None
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_CONNECT_TIMEOUT_S)
        output = open_log(folder)
        try:
            connection.connect(str(self.path))
            send_request(connection, {"spec": str(spec_path), "cwd": str(folder), "env": env}, [output])
            reply = connection.makefile("rb", 0).readline()
            if not reply:
                raise ConnectionError("the warm process closed the connection")
            connection.sendall(GO)
        except OSError:
            connection.close()
            self._start_warm_process()
            return None
        finally:
            os.close(output)
        return StepProcess(env[STEP_ID_VARIABLE], json.loads(reply)["pid"], folder / LOG, _status_on(connection))

    def _start_warm_process(self) -> None:
        if self.python is None:
            return
        # One warm process at a time: it inherits the lock, and holds it until it ends.
        lock = os.open(self.path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
        try:
            if try_lock(lock):  # else another task is starting it
                subprocess.Popen(
                    warm_command(self.python, self.path),
                    env=warm_variables(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=[lock],
                    cwd="/",
                )
        finally:
            os.close(lock)


def warm_command(python: Path, path: Path) -> list[str]:
    """Returns the command of a warm process that listens at ``path``."""
    return module_command(python, "airflow_hops.ml.step.warm", "--socket", path)


def warm_variables() -> dict[str, str]:
    """Returns a warm process's environment variables: paths of the worker, and what libraries read at import.

    A step has its own variables, but libraries have been imported by then.
    """
    return with_package({name: os.environ[name] for name in _PATHS if name in os.environ} | import_settings())


def import_settings() -> dict[str, str]:
    """Returns variables that libraries read at import; steps with different values need another warm process."""
    return {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONWARNINGS": "ignore::FutureWarning",
        "TF_ENABLE_ONEDNN_OPTS": "0",
        **{name: value for name, value in os.environ.items() if name.startswith(_READ_AT_IMPORT)},
    }


def _status_on(connection: socket.socket) -> Callable[[], int | None]:
    """Returns the ``poll`` of a step: its exit status, which the warm process will send on a connection."""
    code: int | None = None

    def poll() -> int | None:
        nonlocal code
        if code is None and select.select([connection], [], [], 0)[0]:
            try:
                code = os.waitstatus_to_exitcode(json.loads(connection.makefile("rb", 0).readline())["status"])
            except (OSError, ValueError):
                code = -9  # the warm process has ended, and its children with it
            with contextlib.suppress(OSError):
                connection.close()
        return code

    return poll
