"""Programs that answer requests: the bundled server, the echo, and the peers; each with how its CPU is read."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from benchmarks.measurement.processes import cpu_seconds, pin, trees

REPOSITORY = Path(__file__).resolve().parent.parent.parent
RUNTIME = REPOSITORY / ".venv-runtime" / "bin" / "python"
PEERS = REPOSITORY / ".hops" / "peers"
PREDICT = "/tensorflow.serving.PredictionService/Predict"


class Target:
    """A program that is started, asked, and stopped with all its descendants.

    Args:
        name: What it is called in the tables.
        command: Program and arguments.
        folder: For its log.
        environment: Variables in addition.
    """

    def __init__(
        self, name: str, command: Sequence[str | Path], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.folder = folder
        self._command = [str(word) for word in command]
        self._environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore", **(environment or {})}

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        with (self.folder / f"{self.name}.log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=REPOSITORY,
                env={**inherited, "PYTHONPATH": str(REPOSITORY), **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            deadline_s = time.monotonic() + 180
            while not self.is_ready():
                if self._process.poll() is not None or time.monotonic() > deadline_s:
                    log_text = (self.folder / f"{self.name}.log").read_text(errors="replace")
                    raise RuntimeError(f"{self.name} did not start; the end of its log:\n{log_text[-3000:]}")
                time.sleep(0.1)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Asks it to end, and ends what is left of it."""
        processes = trees([psutil.Process(self._process.pid)]) if self._process.poll() is None else []
        self._process.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(processes, timeout=15)
        for process in alive:
            process.kill()
        self._process.wait()

    def is_ready(self) -> bool:
        """Whether it answers; asked while it starts."""
        raise NotImplementedError

    def order(self, bodies: Path, model: str, rows: int) -> dict[str, Any]:
        """The address and content of a client's requests."""
        raise NotImplementedError

    def cpu_s(self) -> float:
        """CPU seconds so far, of it and its descendants."""
        return cpu_seconds(trees([psutil.Process(self._process.pid)]))

    def pin(self, cores: Iterable[int]) -> None:
        """Has it and its descendants run on these cores alone."""
        pin(trees([psutil.Process(self._process.pid)]), cores)

    def rss_mib(self) -> float:
        """Resident memory of it and its descendants."""
        return sum(process.memory_info().rss for process in trees([psutil.Process(self._process.pid)])) / 2**20


class WithReadyFile(Target):
    """One that writes a JSON file when it is ready."""

    ready: Mapping[str, Any]

    @property
    def ready_file(self) -> Path:
        return self.folder / f"{self.name}.ready.json"

    def __enter__(self) -> Self:
        self.ready_file.unlink(missing_ok=True)
        return super().__enter__()

    def is_ready(self) -> bool:
        """Whether the file is there."""
        if not self.ready_file.exists():
            return False
        try:
            self.ready = json.loads(self.ready_file.read_text())
        except ValueError:
            return False
        return True


class ModelServer(WithReadyFile):
    """The bundled server with the models of a config file.

    Args:
        name: Name.
        folder: For its files.
        config: Its ``--model_config_file``.
        rest: Whether it is asked over REST.
        flags: More of its flags.
    """

    def __init__(self, name: str, folder: Path, config: Path, *, rest: bool = False, **flags: Any) -> None:
        self._rest = rest
        self.folder = folder
        self.name = name
        given = {
            "port": 0,
            "rest_api_port": "auto",
            "ready_file": self.ready_file,
            "model_config_file": config,
            **flags,
        }
        command = [RUNTIME, "-m", "airflow_hops.serving", *(f"--{flag}={value}" for flag, value in given.items())]
        super().__init__(name, command, folder)

    def order(self, bodies: Path, model: str, rows: int) -> dict[str, Any]:
        """gRPC, or REST."""
        if self._rest:
            url = f"http://127.0.0.1:{self.ready['rest_api_port']}/v1/models/{model}:predict"
            return {"url": url, "body": str(bodies / f"{model}-{rows}.json")}
        address = f"127.0.0.1:{self.ready['grpc_port']}"
        return {"address": address, "method": PREDICT, "body": str(bodies / f"{model}-{rows}.grpc")}

    def over_rest(self) -> Self:
        """The same running server, asked over REST."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, _rest=True)
        return other


class CapturingInTurns(ModelServer):
    """The bundled server, which captures every other half second; see ``capture_turns.py``."""

    def __init__(self, name: str, folder: Path, config: Path, **flags: Any) -> None:
        super().__init__(name, folder, config, **flags)
        self._figures = folder / f"{name}.turns.json"
        index = self._command.index("airflow_hops.serving")
        self._command[index : index + 1] = ["benchmarks.measurement.capture_turns", str(self._figures)]

    def turns(self) -> dict[str, dict[str, float]]:
        """``off`` and ``on`` to ``requests``, ``cpu_s`` and ``seconds`` so far."""
        found: dict[str, dict[str, float]] = json.loads(self._figures.read_text())
        return found

    def writer_cpu_s(self) -> float:
        """CPU seconds so far of the process that writes what was captured, once all of it is written."""
        post(f"http://127.0.0.1:{self.ready['rest_api_port']}/v1/capture:flush")
        (writer,) = psutil.Process(self._process.pid).children()
        return cpu_seconds([writer])


class Echo(WithReadyFile):
    """The echo of the same messages on the same gRPC library, in so many processes that share a port."""

    def __init__(self, folder: Path, answers: Path, threads: int, processes: int = 1) -> None:
        self.folder, self.name = folder, f"echo{processes}"
        arguments = [
            "-m",
            "benchmarks.measurement.serving_limits",
            "echo",
            self.ready_file,
            answers,
            threads,
            processes,
        ]
        super().__init__(self.name, [RUNTIME, *map(str, arguments)], folder)

    def order(self, bodies: Path, model: str, rows: int) -> dict[str, Any]:
        """The same message as the server's."""
        address = f"127.0.0.1:{self.ready['grpc_port']}"
        return {"address": address, "method": PREDICT, "body": str(bodies / f"{model}-{rows}.grpc")}


class MLServer(Target):
    """MLServer, Open Inference Protocol over REST."""

    def __init__(self, folder: Path, models: Path) -> None:
        self._port = _free_port()
        app = REPOSITORY / "benchmarks" / "peers" / "mlserver_app.py"
        python = PEERS / "mlserver" / "bin" / "python"
        command = [python, app, models, folder / "mlserver", str(self._port), str(_free_port())]
        super().__init__("mlserver", command, folder)

    def is_ready(self) -> bool:
        """Whether it says so."""
        return _answers(f"http://127.0.0.1:{self._port}/v2/health/ready")

    def order(self, bodies: Path, model: str, rows: int) -> dict[str, Any]:
        """The V2 route."""
        url = f"http://127.0.0.1:{self._port}/v2/models/{model}/infer"
        return {"url": url, "body": str(bodies / f"{model}-{rows}.v2.json")}


class BentoML(Target):
    """BentoML, a service of one worker."""

    def __init__(self, folder: Path, models: Path) -> None:
        self._port = _free_port()
        program = PEERS / "bentoml" / "bin" / "bentoml"
        command = [program, "serve", "benchmarks.peers.bentoml_app:Models", "--port", str(self._port)]
        command += ["--host", "127.0.0.1"]
        environment = {
            "BENCHMARK_MODELS": str(models),
            "BENTOML_HOME": str(folder / "bentoml"),
            "BENTOML_DO_NOT_TRACK": "1",
        }
        super().__init__("bentoml", command, folder, environment)

    def is_ready(self) -> bool:
        """Whether it says so."""
        return _answers(f"http://127.0.0.1:{self._port}/readyz")

    def order(self, bodies: Path, model: str, rows: int) -> dict[str, Any]:
        """The endpoint of the model."""
        return {"url": f"http://127.0.0.1:{self._port}/{model}", "body": str(bodies / f"{model}-{rows}.json")}


class RayServe(WithReadyFile):
    """Ray Serve, one replica a model."""

    def __init__(self, folder: Path, models: Path) -> None:
        self.folder, self.name = folder, "ray_serve"
        app = REPOSITORY / "benchmarks" / "peers" / "ray_serve_app.py"
        command = [PEERS / "ray_serve" / "bin" / "python", app, models, str(_free_port()), self.ready_file]
        super().__init__("ray_serve", command, folder, {"RAY_USAGE_STATS_ENABLED": "0"})

    def order(self, bodies: Path, model: str, rows: int) -> dict[str, Any]:
        """The route of the model."""
        return {"url": f"http://127.0.0.1:{self.ready['port']}/{model}", "body": str(bodies / f"{model}-{rows}.json")}


@dataclass(frozen=True)
class Measured:
    """The measurements of clients.

    Attributes:
        rate: Requests a second.
        per_core: Requests a CPU second of the server.
        p50_ms: Median latency.
        p99_ms: 99th percentile.
        errors: Requests that failed.
    """

    rate: float
    per_core: float
    p50_ms: float
    p99_ms: float
    errors: int


class Clients:
    """The process of the clients."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [str(RUNTIME), "-m", "benchmarks.measurement.serving_load"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()
        return self

    def pin(self, cores: Iterable[int]) -> None:
        """Has the clients run on these cores alone."""
        pin([psutil.Process(self._process.pid)], cores)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)

    def measure(self, target: Target, bodies: Path, model: str, rows: int, clients: int, seconds: float) -> Measured:
        """Asks a target with so many clients at once.

        Raises:
            RuntimeError: Requests failed.
        """
        order = {**target.order(bodies, model, rows), "clients": clients, "warm_up_s": 0.5, "seconds": seconds}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self._line()  # warmed up
        start_cpu_s = target.cpu_s()
        found = json.loads(self._line())
        used = target.cpu_s() - start_cpu_s
        if found["errors"] or not found["requests"]:
            raise RuntimeError(f"{target.name}, {model}, {rows} rows, {clients} clients: {found}")
        return Measured(found["rate"], found["requests"] / used, found["p50_ms"], found["p99_ms"], found["errors"])

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the clients' process has ended")
        return line


def call_in_process(models: Path, bodies: Path, model: str, rows: int, seconds: float) -> dict[str, Any]:
    """Rates of the model in process; leaves the answer's bytes for the echo."""
    body = bodies / f"{model}-{rows}.grpc"
    answers = bodies / "answers"
    answers.mkdir(exist_ok=True)
    answer = answers / f"{body.stat().st_size}.answer"
    arguments = ["in_process", models / model / "1", body, seconds, answer]
    done = subprocess.run(
        [str(RUNTIME), "-m", "benchmarks.measurement.serving_limits", *map(str, arguments)],
        cwd=REPOSITORY,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def post(url: str) -> Any:
    """Answers of a POST without a body."""
    with urllib.request.urlopen(urllib.request.Request(url, method="POST", data=b""), timeout=60) as response:
        return json.load(response)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
