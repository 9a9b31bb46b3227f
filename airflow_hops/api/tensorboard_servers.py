"""TensorBoards that this process has started: one for each folder, ended when nobody looks at it any more."""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import airflow_hops
from airflow_hops.artifacts import HopsError
from airflow_hops.launchers.local import runtime_python, step_environment

_START_TIMEOUT_S = 60.0
_ADDRESS = re.compile(rb"^TensorBoard of .*: (http://\S+?)/?$", re.MULTILINE)


@dataclass
class _Server:
    process: subprocess.Popen[bytes]
    address: str
    used: float = field(default_factory=time.monotonic)


class TensorBoardServers:
    """Starts TensorBoards on demand.

    Each is a process of its own, listens on the loopback interface alone, and ends after ``idle_timeout_s`` without a
    request, or with this process.

    Args:
        idle_timeout_s: Seconds without a request after which a TensorBoard is ended; an open page asks every 30.
    """

    def __init__(self, idle_timeout_s: float = 300.0) -> None:
        self.idle_timeout_s = idle_timeout_s
        self._servers: dict[Path, _Server] = {}
        self._lock = threading.Lock()
        self._sweeper: threading.Thread | None = None

    def address(self, logdir: Path, runtime: Path) -> str:
        """The address of a folder's TensorBoard, ``http://127.0.0.1:<port>``, started if there is none.

        Args:
            logdir: Folder of event files.
            runtime: The runtime environment.

        Raises:
            HopsError: it does not start.
        """
        with self._lock:
            server = self._servers.get(logdir)
            if server is None or server.process.poll() is not None:
                server = self._servers[logdir] = _start(logdir, runtime)
                if self._sweeper is None:
                    self._sweeper = threading.Thread(target=self._sweep, name="tensorboard-sweeper", daemon=True)
                    self._sweeper.start()
            server.used = time.monotonic()
            return server.address

    def end(self) -> None:
        """Ends all of them."""
        with self._lock:
            for server in self._servers.values():
                _end(server.process)
            self._servers.clear()

    def _sweep(self) -> None:
        while True:
            time.sleep(min(self.idle_timeout_s, 5.0))
            with self._lock:
                for logdir, server in list(self._servers.items()):
                    # The folder of a training moves when it has finished.
                    idle = time.monotonic() - server.used > self.idle_timeout_s or not logdir.is_dir()
                    if idle or server.process.poll() is not None:
                        _end(server.process)
                        del self._servers[logdir]


def _start(logdir: Path, runtime: Path) -> _Server:
    python = runtime_python(runtime)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [str(python), "-m", "airflow_hops.runtime.tensorboard", "--logdir", str(logdir)],
            env=step_environment(runtime, Path(airflow_hops.__file__).parent.parent),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=tempfile.gettempdir(),
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
    deadline = time.monotonic() + _START_TIMEOUT_S
    said = b""
    while time.monotonic() < deadline:
        if not select.select([process.stdout], [], [], 0.2)[0]:
            continue
        chunk = os.read(process.stdout.fileno(), 4096)
        if not chunk:
            return None
        said += chunk
        found = _ADDRESS.search(said)
        if found is not None and b"\n" in said[found.start() :]:
            return found[1].decode()
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
    if process.poll() is None:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
