"""A model server for tests of both environments: its process, and what is asked of it over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
from waiting import wait_for

from airflow_hops.core.serving_api import protocol, tensors

REPOSITORY = Path(__file__).resolve().parents[1]
READY_TIMEOUT_S = 90.0
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def runtime_variables() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "3"}


class ServerProcess:
    """The bundled model server.

    Args:
        python: The runtime environment's.
        folder: For its log and ready file.
        flags: Beside those for its ports; None leaves one out.
    """

    program: tuple[str, ...] = ("-m", "airflow_hops.serving")

    def __init__(self, python: Path, folder: Path, flags: Mapping[str, Any] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.python, self.folder, self.flags = python, folder, flags or {}
        self.ready_file, self.log_file = folder / "ready.json", folder / "server.log"
        self.ports: dict[str, Any] = {"port": 0, "rest_api_port": "auto"}
        self.token = ""

    def start(self) -> Self:
        """Starts it, or starts it again at the same ports."""
        self.ready_file.unlink(missing_ok=True)
        options = {**self.ports, "ready_file": self.ready_file, **self.flags}
        self.process = self.launch([f"--{name}={value}" for name, value in options.items() if value is not None])
        return self

    def launch(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        """Starts the program with arguments."""
        command = [str(self.python), *self.program, *arguments]
        with self.log_file.open("ab") as log:
            return subprocess.Popen(command, env=runtime_variables(), stdout=log, stderr=log, start_new_session=True)

    def wait_until_ready(self) -> Self:
        wait_for(lambda: self.ready_file.exists() or self.process.poll() is not None, self.log, READY_TIMEOUT_S)
        assert self.process.poll() is None, self.log()
        result = json.loads(self.ready_file.read_text())
        self.ports = {"port": result["grpc_port"], "rest_api_port": result["rest_api_port"]}
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
        return self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.terminate()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

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

    def flush(self) -> None:
        """Has the server write what it has captured; on a busy machine this may take longer than a request."""
        wait_for(lambda: self.call("/v1/capture:flush", b"")[0] == 200, lambda: str(self.get("/v1/capture")))

    def predict(self, path: str, body: object, **keywords: Any) -> Any:
        return self.post(f"/v1/models/{path}:predict", body, **keywords)

    def error(self, path: str, body: object = None, **keywords: Any) -> tuple[int, str]:
        status, answer = self.call(path, body, **keywords)
        assert status != 200, answer
        return status, answer["error"]

    def cpu_s(self) -> float:
        """Seconds of a core that the process has taken."""
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system

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


Publish = Callable[..., Path]
"""Publishes a version of a model below a base path."""
Start = Callable[..., ServerProcess]
"""Starts a server with flags; ``wait=False`` returns before it is ready."""


def write_models(folder: Path, /, **models: Any) -> Path:
    """Writes ``models.config`` in a folder: a base path for each model, or base path and the rest of the entry."""
    entries = ""
    for name, model in models.items():
        base_path, rest = model if isinstance(model, tuple) else (model, "")
        entries += f'config {{ name: "{name}" base_path: "{base_path}" model_platform: "tensorflow" {rest} }}\n'
    path = folder / "models.config"
    path.write_text(f"model_config_list {{\n{entries}}}\n")
    return path


def versions(*numbers: int) -> str:
    """The policy of a model in ``models.config``: these versions, or all."""
    return f"model_version_policy {{ {f'specific {{ versions: {list(numbers)} }}' if numbers else 'all {}'} }}"


def predict_request(model: str, signature: str = "", **inputs: Any) -> Any:
    """A Predict request; inputs are arrays, or values that make one."""
    request = protocol.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = model, signature
    for alias, value in inputs.items():
        tensors.fill_proto(request.inputs[alias], np.asarray(value))
    return request
