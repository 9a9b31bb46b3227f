"""A real server process, real SavedModels, and clients that know nothing of the server's code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
READY_TIMEOUT_S = 90.0


def runtime_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.fixture(scope="session")
def saved_models(runtime_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with ``flights`` (versions 1, 2, 3), ``vectors`` (version 7) and ``fragile`` (version 1)."""
    folder = tmp_path_factory.mktemp("saved-models")
    script = Path(__file__).with_name("make_models.py")
    subprocess.run(
        [str(runtime_python), str(script), str(folder)],
        check=True,
        env=runtime_environment(),
        capture_output=True,
        timeout=300,
    )
    return folder


class Server:
    """A model server process."""

    def __init__(self, python: Path, folder: Path, flags: dict[str, object]) -> None:
        self.ready_file = folder / "ready.json"
        self.log_file = folder / "server.log"
        given = {"port": 0, "rest_api_port": "auto", "ready_file": self.ready_file, **flags}
        arguments = [f"--{name}={value}" for name, value in given.items() if value is not None]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [str(python), "-m", "airflow_hops.serving", *arguments],
                env=runtime_environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_ready(self) -> Server:
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while not self.ready_file.exists():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline_s, f"not ready after {READY_TIMEOUT_S} s: {self.log()}"
            time.sleep(0.05)
        ready = json.loads(self.ready_file.read_text())
        self.address = f"127.0.0.1:{ready['grpc_port']}"
        self.url = f"http://127.0.0.1:{ready['rest_api_port']}"
        return self

    def log(self) -> str:
        return self.log_file.read_text()

    def call(
        self, path: str, body: object = None, *, headers: dict[str, str] | None = None, method: str | None = None
    ) -> tuple[int, Any]:
        """Status and parsed JSON of one HTTP request; a body that is not bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                self.headers = response.headers
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def predict(self, path: str, body: object, **keywords: Any) -> Any:
        status, answer = self.call(f"/v1/models/{path}:predict", body, **keywords)
        assert status == 200, answer
        return answer

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

    def wait_for_versions(self, model: str, wanted: dict[int, str], timeout_s: float = 30) -> None:
        deadline_s = time.monotonic() + timeout_s
        while (found := self.versions(model)) != wanted:
            assert time.monotonic() < deadline_s, f"{found} is not {wanted}: {self.log()}"
            time.sleep(0.05)

    def terminate(self) -> int:
        """Sends SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def start_server(runtime_python: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers of one test; ``wait=False`` returns before they are ready."""
    servers: list[Server] = []

    def start(*, wait: bool = True, **flags: object) -> Server:
        folder = tmp_path / f"server-{len(servers)}"
        folder.mkdir()
        server = Server(runtime_python, folder, flags)
        servers.append(server)
        return server.wait_until_ready() if wait else server

    yield start
    for server in servers:
        server.close()


@pytest.fixture(scope="package")
def shared_server(
    runtime_python: Path, saved_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server of ``flights`` (versions 1 and 2, labels stable and canary) and ``vectors`` that tests only ask."""
    folder = tmp_path_factory.mktemp("shared-server")
    config = folder / "models.config"
    config.write_text(
        f"""
        model_config_list {{
          config {{
            name: "flights" base_path: "{saved_models}/flights" model_platform: "tensorflow"
            model_version_policy {{ specific {{ versions: 1 versions: 2 }} }}
            version_labels {{ key: "stable" value: 1 }}
            version_labels {{ key: "canary" value: 2 }}
          }}
          config {{ name: "vectors" base_path: "{saved_models}/vectors" model_platform: "tensorflow" }}
        }}
        """
    )
    server = Server(runtime_python, folder, {"model_config_file": config}).wait_until_ready()
    yield server
    server.close()


@pytest.fixture(scope="session")
def format_models(runtime_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a model of each kind that the server opens, each as version 1."""
    folder = tmp_path_factory.mktemp("format-models")
    script = Path(__file__).with_name("make_format_models.py")
    command = [str(runtime_python), str(script), str(folder)]
    subprocess.run(command, check=True, env=runtime_environment(), capture_output=True, timeout=300)
    return folder


@pytest.fixture(scope="package")
def formats_server(
    runtime_python: Path, format_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server of all ``format_models`` that tests only ask; it prefers TensorFlow Lite."""
    folder = tmp_path_factory.mktemp("formats-server")
    config = folder / "models.config"
    models = "".join(
        f'config {{ name: "{path.name}" base_path: "{path}" model_platform: "tensorflow" }}\n'
        for path in sorted(format_models.iterdir())
    )
    config.write_text(f"model_config_list {{\n{models}}}\n")
    flags = {"prefer_tflite_model": "true", "trusted_skops_types": "_operator.neg", "max_num_load_retries": 0}
    server = Server(runtime_python, folder, {"model_config_file": config, **flags}).wait_until_ready()
    yield server
    server.close()


@pytest.fixture(scope="session")
def in_runtime(runtime_python: Path) -> Callable[..., Any]:
    """Runs lines of Python in the runtime environment; what they put into ``result`` comes back through JSON.

    Keywords are variables of the lines. An exception comes back as ``{"error": "Type: message"}``.
    """

    def run(lines: str, **variables: object) -> Any:
        program = (
            "import json, sys\n"
            "result = None\n"
            "globals().update(json.loads(sys.argv[1]))\n"
            "try:\n" + textwrap.indent(textwrap.dedent(lines).strip(), "    ") + "\nexcept Exception as error:\n"
            "    result = {'error': f'{type(error).__name__}: {error}'}\n"
            "print('\\n' + json.dumps(result))\n"
        )
        done = subprocess.run(
            [str(runtime_python), "-c", program, json.dumps(variables, default=str)],
            env=runtime_environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.rstrip().rpartition("\n")[2])

    return run


@pytest.fixture
def publish(saved_models: Path) -> Callable[..., Path]:
    """Publishes a copy of a version under a base path by rename, as a deploy does."""

    def publish_version(model: str, version: int, base_path: Path, as_version: int | None = None) -> Path:
        target = base_path / str(as_version or version)
        base_path.mkdir(parents=True, exist_ok=True)
        temporary = base_path / f".{target.name}.tmp"
        shutil.copytree(saved_models / model / str(version), temporary)
        temporary.rename(target)
        return target

    return publish_version
