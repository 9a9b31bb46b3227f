"""Starts what the demo and the benchmarks run on: Airflow, the model server and the warm process; and stops them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from airflow_hops.core.processes.cpu_time import GivenTime
from airflow_hops.core.processes.programs import module_command
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions import step_variables
from airflow_hops.runner.launchers.warm import warm_command, warm_variables
from demo.airflow_api import AirflowApi

REPOSITORY = Path(__file__).resolve().parent.parent
STARTUP_TIMEOUT_S = 600.0
"""Seconds in which a service must be ready; those in which it waits for a core do not count."""
STOP_GRACE_S = 20.0


class ServiceFailed(Exception):
    """A service did not start, or ended by itself; the message carries the last lines of its log."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def zone_where_it_is_noon() -> str:
    """A time zone whose midnight is far, so that no DAG that runs daily starts a run of its own amid the showing."""
    ahead = 12 - time.gmtime().tm_hour
    return f"Etc/GMT{-ahead:+d}"  # in these names, the sign is that of the hours behind Greenwich


@dataclass
class Service:
    """A process group that a keeper runs for this program, and ends with it at the latest; and its log."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raises ServiceFailed when the process has ended."""
        if self.process.poll() is not None:
            raise ServiceFailed(
                f"{self.name} ended with exit code {self.process.returncode}; the end of {self.log}:\n{self.tail()}"
            )

    def tail(self, lines: int = 20) -> str:
        """The last lines of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """Ends the process and its group: asks first, then insists."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@dataclass
class Stack:
    """Airflow, the model server and a warm process, on free ports, with all their state in one folder.

    Args:
        home: Folder of all state; AIRFLOW_HOME is ``airflow`` in it.
        runtime: Folder of the runtime environment.
        dags: The DAG folder.
        say: Called with a line about each thing that is started.
    """

    home: Path
    runtime: Path
    dags: Path
    say: Callable[[str], None] = print
    services: list[Service] = field(default_factory=list)
    grpc_port: int = 0
    rest_port: int = 0
    log_ports: tuple[int, int] = field(default_factory=lambda: (free_port(), free_port()))

    def __enter__(self) -> Stack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def store(self) -> Path:
        """The artifact store."""
        return self.home / "store"

    @property
    def serving(self) -> Path:
        """Folder of the model server's models, configuration and captured requests."""
        return self.home / "serving"

    @property
    def capture(self) -> Path:
        """Folder of the captured requests."""
        return self.serving / "capture"

    def artifact_store(self) -> ArtifactStore:
        """Opens the artifact store."""
        return ArtifactStore(self.store.as_uri())

    def start(self) -> AirflowApi:
        """Starts everything; returns when all of it answers.

        Raises:
            ServiceFailed: something did not start.
        """
        for folder in (self.home / "logs", self.store, self.serving / "models", self.capture):
            folder.mkdir(parents=True, exist_ok=True)
        self.grpc_port, self.rest_port = free_port(), free_port()
        # Airflow takes longest; the others start beside it.
        airflow, api = self.launch_airflow()
        warm = self._start_warm_process()
        model_server = self._launch_model_server()
        self._wait(model_server, (self.serving / "ready.json").exists)
        self.say(f"model server: gRPC 127.0.0.1:{self.grpc_port}, REST http://127.0.0.1:{self.rest_port}")
        self.wait_for_airflow(airflow, api)
        if warm is not None:
            # A step that came before it would have another one started, which nobody here would stop.
            self._wait(warm, self._warm_socket().exists)
        return api

    def stop(self) -> None:
        """Stops what was started: Airflow first, which uses the others."""
        while self.services:
            service = self.services.pop(0)
            self.say(f"stopping {service.name}")
            service.stop()

    def _launch_model_server(self) -> Service:
        """Starts the bundled model server with an empty configuration, unless an earlier run left one."""
        config, ready = self.serving / "models.config", self.serving / "ready.json"
        if not config.exists():
            config.write_text("model_config_list {}\n")
        ready.unlink(missing_ok=True)
        command = module_command(
            self.runtime / "bin" / "python",
            "airflow_hops.serving",
            f"--port={self.grpc_port}",
            f"--rest_api_port={self.rest_port}",
            f"--model_config_file={config}",
            "--model_config_file_poll_wait_seconds=0.2",
            "--traffic_config_file_poll_wait_seconds=0.2",
            "--max_num_load_retries=0",
            "--file_system_poll_wait_seconds=1",
            f"--traffic_config_file={self.serving / 'traffic.json'}",
            f"--capture_base_path={self.places()['serving_capture_path']}",
            "--capture_mode=all",
            "--request_series",
            f"--log_file={self.home / 'logs' / 'model-server-lines.log'}",
            f"--ready_file={ready}",
        )
        return self._launch("model server", command, self.server_environment())

    def server_environment(self) -> dict[str, str]:
        """The model server's environment variables."""
        return step_variables(self.runtime)

    def places(self) -> dict[str, str]:
        """Where artifacts, runs, models and captured requests lie: fields of the connection."""
        return {
            "store": self.store.as_uri(),
            "tracking_uri": f"sqlite:///{self.home}/mlflow.db",
            "serving_base_path": str(self.serving / "models"),
            "serving_config_file": str(self.serving / "models.config"),
            "serving_traffic_file": str(self.serving / "traffic.json"),
            "serving_capture_path": str(self.capture),
        }

    def connections(self) -> dict[str, dict[str, Any]]:
        """The connections of the pipelines, by id."""
        extra = {"runtime": str(self.runtime), "serving_rest_port": self.rest_port, **self.places()}
        return {
            "hops_default": {"conn_type": "hops", "host": "127.0.0.1", "port": self.grpc_port, "extra": extra},
            "spark_default": {"conn_type": "spark", "host": "local[*]"},
        }

    def airflow_environment(self, port: int) -> dict[str, str]:
        """Airflow's settings, as environment variables."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AIRFLOW", "PYTHON")) or name.startswith("AIRFLOW__METRICS__")
        }
        return {
            **kept,
            "PATH": f"{Path(sys.executable).parent}:{kept.get('PATH', os.defpath)}",
            "AIRFLOW_HOME": str(self.home / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__DEFAULT_TIMEZONE": zone_where_it_is_noon(),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
            # On a busy machine, a first parse and the answer to a starting task take longer than by default they may.
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
            "AIRFLOW__DAG_PROCESSOR__DAG_FILE_PROCESSOR_TIMEOUT": "600",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            # A file is parsed when it changes; each of the others takes a second, every half minute by default.
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(self.log_ports[0]),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(self.log_ports[1]),
            # A task follows its upstream at once, not at the next full second.
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": kept.get("HOPS_DEMO_SCHEDULER_SLEEP_S", "0.1"),
            # A worker that looks a moment too early for the end of its task's process looks again only after this many
            # seconds; until then it takes no other task, and a skipped one is not known to be over.
            "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
            "AIRFLOW__TRIGGERER__CAPACITY": "50",
            # Where events are collected, none is lost on a busy machine.
            "AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT": "120",
            **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(value) for name, value in self.connections().items()},
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def launch_airflow(self) -> tuple[Service, AirflowApi]:
        """Starts Airflow, and does not wait for it."""
        port = free_port()
        command = [sys.executable, "-m", "airflow", "standalone"]
        service = self._launch("Airflow", command, self.airflow_environment(port))
        return service, AirflowApi(f"http://127.0.0.1:{port}")

    def wait_for_airflow(self, service: Service, api: AirflowApi) -> None:
        """Returns when Airflow's parts are up.

        Raises:
            ServiceFailed: it did not start.
        """

        def healthy() -> bool:
            try:
                health = api.health()
            except httpx.HTTPError:
                return False
            parts = ("metadatabase", "scheduler", "dag_processor")
            return all((health.get(part) or {}).get("status") == "healthy" for part in parts)

        self._wait(service, healthy)
        self.say(f"Airflow: {api.url}")

    def _start_warm_process(self) -> Service | None:
        path = self._warm_socket()
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        command = [*warm_command(self.runtime / "bin" / "python", path), "--idle-timeout-s", "86400"]
        return self._launch("warm process", command, {**warm_variables(), "HOPS_DEMO_HOME": str(self.home)})

    def _warm_socket(self) -> Path:
        # Importing Airflow takes a second, in which it starts already.
        from airflow_hops.runner.runtime import warm_socket

        return warm_socket(self.runtime)

    def _launch(self, name: str, command: list[str], environment: Mapping[str, str]) -> Service:
        log = self.home / "logs" / f"{name.replace(' ', '-').lower()}.log"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-I", str(REPOSITORY / "demo" / "keeper.py"), str(STOP_GRACE_S), *command],
                env=dict(environment),
                cwd=self.home,
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        service = Service(name, process, log)
        self.services.append(service)
        return service

    def _wait(self, service: Service, ready: Callable[[], bool]) -> None:
        given = GivenTime(os.getpid())
        while not ready():
            for each in self.services:
                each.check()
            if given.seconds() > STARTUP_TIMEOUT_S:
                raise ServiceFailed(
                    f"{service.name} is not ready after {STARTUP_TIMEOUT_S:.0f} s; the end of {service.log}:\n"
                    f"{service.tail()}"
                )
            time.sleep(0.2)
