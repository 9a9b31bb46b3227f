"""A model server for tests of both environments: its process, and what is asked of it over HTTP."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from waiting import wait_for

REPOSITORY = Path(__file__).resolve().parents[1]
READY_TIMEOUT_S = 90.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def runtime_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "3"}


class ForkedProcess:
    """What of :class:`subprocess.Popen` tests use, of a server that the zygote has forked."""

    def __init__(self, pid: int, status_file: Path) -> None:
        self.pid, self.returncode, self._status_file = pid, None, status_file
        self.returncode: int | None

    def poll(self) -> int | None:
        if self.returncode is None and self._status_file.exists():
            self.returncode = int(self._status_file.read_text())
        return self.returncode

    def wait(self, timeout: float = 60) -> int:
        wait_for(lambda: self.poll() is not None, f"process {self.pid} ends", timeout, 0.005)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Zygote:
    """The process that servers are forked from (``server_zygote.py``).

    Args:
        requests: The socket to it.
        wait: Waits for its end, which that of the socket brings about.
    """

    def __init__(self, requests: socket.socket, wait: Callable[[], object]) -> None:
        self._lock = threading.Lock()
        self._requests, self._wait = requests, wait
        self._answers = requests.makefile("r")
        atexit.register(self.close)

    @classmethod
    def started_by(cls, python: Path) -> Self:
        """One in a new process of this Python."""
        ours, theirs = socket.socketpair()
        command = [str(python), str(REPOSITORY / "tests" / "server_zygote.py"), str(theirs.fileno())]
        with theirs:
            program = subprocess.Popen(
                command, env=runtime_environment(), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        return cls(ours, lambda: program.wait(30))

    def fork(self, arguments: list[str], environment: Mapping[str, str], log: Path, status_file: Path) -> ForkedProcess:
        files = {"log": str(log), "status": str(status_file)}
        asked = {"arguments": arguments, "environment": dict(environment), **files}
        with self._lock:
            self._requests.sendall(json.dumps(asked).encode() + b"\n")
            pid = self._answers.readline()
        assert pid, "the process that model servers are forked from has ended"
        return ForkedProcess(int(pid), status_file)

    def close(self) -> None:
        self._requests.shutdown(socket.SHUT_WR)
        self._wait()


ZYGOTES: dict[Path, Zygote] = {}
"""By Python, the zygote of this process's tests; the first server starts it."""


class ServerProcess:
    """The bundled model server.

    Args:
        python: The runtime environment's.
        folder: For its log and ready file.
        flags: Beside those for its ports; None leaves one out.
        from_nothing: Whether it is started as a user does, in place of a fork of a process that has imported all.
    """

    def __init__(
        self, python: Path, folder: Path, flags: Mapping[str, Any] | None = None, *, from_nothing: bool = False
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.python, self.folder, self.flags, self.from_nothing = python, folder, flags or {}, from_nothing
        self.ready_file, self.log_file = folder / "ready.json", folder / "server.log"
        self.ports: dict[str, Any] = {"port": 0, "rest_api_port": "auto"}
        self.token = ""
        self._starts = 0

    def start(self) -> Self:
        """Starts it, or starts it again at the same ports."""
        self.ready_file.unlink(missing_ok=True)
        self._starts += 1
        given = {**self.ports, "ready_file": self.ready_file, **self.flags}
        arguments = [f"--{name}={value}" for name, value in given.items() if value is not None]
        environment = runtime_environment()
        self.process: subprocess.Popen[bytes] | ForkedProcess
        if self.from_nothing:
            command = [str(self.python), "-m", "airflow_hops.serving", *arguments]
            with self.log_file.open("ab") as log:
                self.process = subprocess.Popen(
                    command, env=environment, stdout=log, stderr=log, start_new_session=True
                )
        else:
            status_file = self.folder / f"status-{self._starts}"
            if self.python not in ZYGOTES:
                ZYGOTES[self.python] = Zygote.started_by(self.python)
            self.process = ZYGOTES[self.python].fork(arguments, environment, self.log_file, status_file)
        return self

    def wait_until_ready(self) -> Self:
        wait_for(lambda: self.ready_file.exists() or self.process.poll() is not None, self.log, READY_TIMEOUT_S)
        assert self.process.poll() is None, self.log()
        found = json.loads(self.ready_file.read_text())
        self.ports = {"port": found["grpc_port"], "rest_api_port": found["rest_api_port"]}
        return self

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports['port']}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['rest_api_port']}"

    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""

    def terminate(self) -> int:
        """Sends SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.terminate()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)

    def call(
        self, path: str, body: object = None, *, headers: dict[str, str] | None = None, method: str | None = None
    ) -> tuple[int, Any]:
        """Status and parsed JSON of one HTTP request; a body that is not bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        shown = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(self.url + path, data, {**shown, **(headers or {})}, method=method)
        try:
            with _OPENER.open(request, timeout=60) as response:
                self.headers = response.headers
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            self.headers = error.headers
            return error.code, json.loads(error.read())

    def get(self, path: str) -> Any:
        return self.post(path, None)

    def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Any:
        """The parsed JSON of an answer that is no error."""
        status, answer = self.call(path, body, headers=headers)
        assert status == 200, answer
        return answer

    def predict(self, path: str, body: object, **keywords: Any) -> Any:
        return self.post(f"/v1/models/{path}:predict", body, **keywords)

    def error(self, path: str, body: object = None, **keywords: Any) -> tuple[int, str]:
        status, answer = self.call(path, body, **keywords)
        assert status != 200, answer
        return status, answer["error"]

    def versions(self, model: str) -> dict[int, str]:
        """State of each version; empty where the model is not known."""
        status, answer = self.call(f"/v1/models/{model}")
        if status == 404:
            return {}
        return {int(entry["version"]): entry["state"] for entry in answer["model_version_status"]}

    def available(self, model: str) -> list[int]:
        return sorted(version for version, state in self.versions(model).items() if state == "AVAILABLE")

    def wait_for_versions(self, model: str, wanted: dict[int, str], timeout_s: float = 30) -> None:
        wait_for(lambda: self.versions(model) == wanted, lambda: f"{wanted}: {self.log()}", timeout_s)
