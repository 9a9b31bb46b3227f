"""Servers of the runtime environment that this process has started, ended when nobody asks them any more."""

from __future__ import annotations

import os
import re
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.core.processes.ending import end_process
from airflow_hops.core.processes.programs import module_command
from airflow_hops.launchers.local import runtime_python, step_environment

_START_TIMEOUT_S = 60.0
_ADDRESS = re.compile(rb"^[^\n]+: (http://\S+?)/?$", re.MULTILINE)


@dataclass(frozen=True)
class ServerProgram:
    """A program: ``python -m <module> <arguments>``, whose first line ends with its address.

    Attributes:
        name: For messages.
        module: Its module.
        runtime: The runtime environment.
        folder: What it is about; it ends when this folder is gone.
        arguments: Of the command line.
        secrets: Variables of its environment.
    """

    name: str
    module: str
    runtime: Path
    folder: Path
    arguments: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)


@dataclass
class _Server:
    process: subprocess.Popen[bytes]
    address: str
    used: float = field(default_factory=time.monotonic)


class RuntimeServers:
    """Starts servers on demand.

    Each is a process of its own, listens on the loopback interface alone, and ends after ``idle_timeout_s`` without a
    request, or with this process.

    Args:
        idle_timeout_s: Seconds without a request after which a server is ended; an open page asks more often.
        most: How many there are at once: another takes the place of the one that was asked least recently.
    """

    def __init__(self, idle_timeout_s: float = 300.0, most: int = 8) -> None:
        self.idle_timeout_s, self.most = idle_timeout_s, most
        self._servers: dict[ServerProgram, _Server] = {}
        self._lock = threading.Lock()
        self._sweeper: threading.Thread | None = None

    def address(self, program: ServerProgram) -> str:
        """The address of a program's server, ``http://127.0.0.1:<port>``, started if there is none.

        Raises:
            HopsError: it does not start.
        """
        with self._lock:
            server = self._servers.get(program)
            if server is None or server.process.poll() is not None:
                others = [each for each in self._servers if each != program]
                others.sort(key=lambda each: self._servers[each].used)
                for other in others[: max(0, len(others) - self.most + 1)]:
                    _end(self._servers.pop(other).process)
                server = self._servers[program] = _start(program)
                if self._sweeper is None:
                    self._sweeper = threading.Thread(target=self._sweep, name="runtime-server-sweeper", daemon=True)
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
                for program, server in list(self._servers.items()):
                    # The folder of a training moves when it has finished.
                    idle = time.monotonic() - server.used > self.idle_timeout_s or not program.folder.is_dir()
                    if idle or server.process.poll() is not None:
                        _end(server.process)
                        del self._servers[program]


def _start(program: ServerProgram) -> _Server:
    python = runtime_python(program.runtime)
    environment = step_environment(program.runtime)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            module_command(python, program.module, *program.arguments),
            env={**environment, **program.secrets},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd="/",
            # When its starter is gone it ends with all of its group: that must not be the starter's.
            start_new_session=True,
        )
        address = _read_address(process)
        if address is None:
            _end(process)
            errors.seek(0)
            last = errors.read()[-2000:].decode(errors="replace").strip()
            raise HopsError(f"{program.name} did not start; its last lines:\n{last}")
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
        match = _ADDRESS.search(said)
        if match is not None and b"\n" in said[match.start() :]:
            return match[1].decode()
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    end_process(process, grace_s=5)
    if process.stdout is not None:
        process.stdout.close()
