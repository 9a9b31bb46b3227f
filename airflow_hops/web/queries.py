"""Queries to the ML side: a server in the runtime environment reads what needs pyarrow, TFDV's protos or MLflow.

The queries are functions of the modules in :mod:`airflow_hops.ml.queries`. The first request starts one server per
runtime environment, which ends after five minutes without requests.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from fastapi import HTTPException

from airflow_hops.core.contract.artifacts import HopsError
from airflow_hops.core.contract.profiles import profile_of
from airflow_hops.core.processes.ending import end_process
from airflow_hops.core.processes.programs import module_command
from airflow_hops.core.store.newer_profile import written_by_newer
from airflow_hops.hooks.runtime import RuntimeHook
from airflow_hops.launchers.local import runtime_python, step_variables

_START_TIMEOUT_S = 60.0
_ADDRESS = re.compile(rb"^[^\n]+: (http://\S+?)/?$", re.MULTILINE)


@dataclass(frozen=True)
class ServerProgram:
    """A program, ``python -m <module> <arguments>``, whose first line of output ends with its address.

    Attributes:
        name: Name in messages.
        runtime: The runtime environment.
        folder: The server ends when this folder is gone.
        secrets: Environment variables with secrets.
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

    Each is a separate process that listens on the loopback interface only, and ends after ``idle_timeout_s`` without a
    request, or with this process.

    Args:
        idle_timeout_s: Seconds without a request after which a server is ended; an open page asks more often.
        most: Maximum number of servers; one more replaces the least recently used.
    """

    def __init__(self, idle_timeout_s: float = 300.0, most: int = 8) -> None:
        self.idle_timeout_s, self.most = idle_timeout_s, most
        self._servers: dict[ServerProgram, _Server] = {}
        self._lock = threading.Lock()
        self._sweeper: threading.Thread | None = None

    def address(self, program: ServerProgram) -> str:
        """Returns the address of a program's server, ``http://127.0.0.1:<port>``, and starts the server if necessary.

        Raises:
            HopsError: the server does not start.
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
        """Ends all servers."""
        with self._lock:
            for server in self._servers.values():
                _end(server.process)
            self._servers.clear()

    def _sweep(self) -> None:
        while True:
            time.sleep(min(self.idle_timeout_s, 5.0))
            with self._lock:
                for program, server in list(self._servers.items()):
                    # The folder of a training is moved when the training ends.
                    idle = time.monotonic() - server.used > self.idle_timeout_s or not program.folder.is_dir()
                    if idle or server.process.poll() is not None:
                        _end(server.process)
                        del self._servers[program]


def _start(program: ServerProgram) -> _Server:
    python = runtime_python(program.runtime)
    env = step_variables(program.runtime)
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            module_command(python, program.module, *program.arguments),
            env={**env, **program.secrets},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd="/",
            # The server kills its process group if this process is gone, so it needs its own group.
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


_TIMEOUT_S = 120.0
_AT_ONCE = 24
"""Maximum number of waiting requests, since they use the threads of Airflow's own routes."""
_TOKEN = secrets.token_urlsafe(32)
_servers = RuntimeServers()
_waiting = threading.BoundedSemaphore(_AT_ONCE)


def ask(hook: RuntimeHook, query: str, params: Mapping[str, Any]) -> Any:
    """Returns the JSON value of a query.

    Args:
        hook: Hook with the store, MLflow and runtime environment to query.
        query: ``<module>/<function>`` below ``airflow_hops.ml.queries``.
        params: Parameters of the query; JSON values.

    Raises:
        HTTPException: 422, the parameters are invalid; 410, the data was deleted; 502, the ML side or a service behind
            it does not answer; 503, too many requests are waiting.
    """
    return json.loads(ask_bytes(hook, query, params))


def ask_bytes(hook: RuntimeHook, query: str, params: Mapping[str, Any]) -> bytes:
    """Returns the raw response of a query; see :func:`ask`."""
    settings = hook.settings
    place = {
        "store_uri": settings.store,
        "storage_options": dict(settings.storage_options),
        "tracking_uri": settings.tracking_uri,
    }
    program = ServerProgram(
        name="the query server of the web pages",
        module="airflow_hops.ml.queries",
        runtime=settings.runtime,
        folder=settings.runtime,
        secrets={"HOPS_QUERIES_TOKEN": _TOKEN},
    )
    if not _waiting.acquire(blocking=False):
        raise HTTPException(
            503, f"{_AT_ONCE} requests are already waiting for the runtime environment; try again in a moment"
        )
    try:
        answer = _client().post(
            f"{_servers.address(program)}/{query}",
            json={"place": place, "params": dict(params)},
            headers={"Authorization": f"Bearer {_TOKEN}"},
        )
    except (HopsError, httpx.HTTPError) as error:
        raise HTTPException(
            502, f"the runtime environment does not respond ({type(error).__name__}: {error})"
        ) from error
    finally:
        _waiting.release()
    if answer.status_code != 200:
        known = answer.status_code in (410, 422)
        try:
            detail = str(answer.json()["detail"])
        except (ValueError, KeyError, TypeError):
            detail = answer.text[-500:]
        artifact = params.get("artifact")
        if isinstance(artifact, Mapping) and answer.status_code != 410:
            uris = [str(artifact.get("uri"))]
            detail += written_by_newer(hook.store, uris, profile_of(settings.runtime))
        raise HTTPException(answer.status_code if known else 502, detail)
    return answer.content


@cache
def _client() -> httpx.Client:
    # Plain HTTP on the loopback interface: reading certificates would take longer than a request.
    return httpx.Client(timeout=_TIMEOUT_S, trust_env=False, verify=False)
