"""Processes of TensorBoard in the runtime environment, one for each folder of event files that somebody looks at."""

from __future__ import annotations

import os
import re
import select
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from airflow_hops.core.errors import HopsError
from airflow_hops.core.processes.cpu_time import GivenTime
from airflow_hops.core.processes.ending import end_process
from airflow_hops.core.processes.programs import start_module
from airflow_hops.runner.launchers.local import runtime_python, step_variables

_START_TIMEOUT_S = 60.0
_ADDRESS = re.compile(rb"^[^\n]+: (http://\S+?)/?$", re.MULTILINE)


@dataclass
class _Server:
    process: subprocess.Popen[bytes]
    address: str
    used: float = field(default_factory=time.monotonic)


class TensorBoards:
    """Starts TensorBoard on demand.

    Each is a separate process that listens on the loopback interface only, and ends after ``idle_timeout_s`` without a
    request, or with this process.

    Args:
        idle_timeout_s: Seconds without a request after which a process is ended; an open page asks more often.
        most: Maximum number of processes; one more replaces the least recently used.
    """

    def __init__(self, idle_timeout_s: float = 300.0, most: int = 8) -> None:
        self.idle_timeout_s, self.most = idle_timeout_s, most
        self._servers: dict[Path, _Server] = {}
        self._lock = threading.Lock()
        self._sweeper: threading.Thread | None = None

    def address(self, logdir: Path, runtime: Path) -> str:
        """Returns the address of a folder's TensorBoard, ``http://127.0.0.1:<port>``; starts it if necessary.

        Raises:
            HopsError: it does not start.
        """
        with self._lock:
            server = self._servers.get(logdir)
            if server is None or server.process.poll() is not None:
                others = [each for each in self._servers if each != logdir]
                others.sort(key=lambda each: self._servers[each].used)
                for other in others[: max(0, len(others) - self.most + 1)]:
                    _end(self._servers.pop(other).process)
                server = self._servers[logdir] = _start(logdir, runtime)
                if self._sweeper is None:
                    self._sweeper = threading.Thread(target=self._sweep, name="tensorboard-sweeper", daemon=True)
                    self._sweeper.start()
            server.used = time.monotonic()
            return server.address

    def end(self) -> None:
        """Ends all processes."""
        with self._lock:
            for server in self._servers.values():
                _end(server.process)
            self._servers.clear()

    def _sweep(self) -> None:
        while True:
            time.sleep(min(self.idle_timeout_s, 5.0))
            with self._lock:
                for logdir, server in list(self._servers.items()):
                    # The folder of a training is moved when the training ends.
                    idle = time.monotonic() - server.used > self.idle_timeout_s or not logdir.is_dir()
                    if idle or server.process.poll() is not None:
                        _end(server.process)
                        del self._servers[logdir]


def _start(logdir: Path, runtime: Path) -> _Server:
    with tempfile.TemporaryFile() as errors:
        process = start_module(
            "airflow_hops.ml.tracking.tensorboard",
            *("--logdir", logdir),
            python=runtime_python(runtime),
            env=step_variables(runtime),
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd="/",
            # It kills its process group if this process is gone, so it needs its own group.
            start_new_session=True,
        )
        address = _read_address(process)
        if address is None:
            _end(process)
            errors.seek(0)
            last = errors.read()[-2000:].decode(errors="replace").strip()
            raise HopsError(f"TensorBoard of {logdir} did not start; its last lines:\n{last}")
    return _Server(process, address)


def _read_address(process: subprocess.Popen[bytes]) -> str | None:
    assert process.stdout is not None
    used, output = GivenTime(process.pid), b""
    while used.seconds() < _START_TIMEOUT_S:
        if not select.select([process.stdout], [], [], 0.2)[0]:
            continue
        chunk = os.read(process.stdout.fileno(), 4096)
        if not chunk:
            return None
        output += chunk
        match = _ADDRESS.search(output)
        if match is not None and b"\n" in output[match.start() :]:
            return match[1].decode()
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    end_process(process, grace_s=5)
    if process.stdout is not None:
        process.stdout.close()
