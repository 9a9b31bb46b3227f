"""Airflow as teams run it: PostgreSQL, Celery workers by way of Redis, two schedulers, and a store on S3.

Each part of Airflow has a folder, a temporary folder and a host name as if it were on a machine of its own. The two
workers share the store and nothing else. Connections are in a secrets backend, task logs in the store's bucket.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions import step_variables
from demo.airflow_api import AirflowApi
from demo.services import Service, ServiceFailed, Stack, free_port

WORKERS = ("worker-1", "worker-2")
PARTS = ("dag-processor", "triggerer", "scheduler-1", "scheduler-2", *WORKERS)
_USED = ("postgres", "redis-server", "s3", "mlflow")


def find_program(name: str) -> str:
    """Path of a program of PostgreSQL or Redis.

    Raises:
        ServiceFailed: it is not installed.
    """
    debian = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *debian]))
    if path is None:
        raise ServiceFailed(f"the program {name!r} was not found; install it: apt-get install postgresql redis-server")
    return path


@dataclass
class Production(Stack):
    """The services of the demo as several machines would run them; all state is new, and ends with them.

    Attributes:
        key: The key of all parts of Airflow, and password of the S3 server.
    """

    key: str = field(default_factory=lambda: base64.urlsafe_b64encode(os.urandom(32)).decode(), repr=False)
    _port: int = field(default_factory=free_port)
    _ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in _USED})
    _database: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="hops-postgres-", dir="/tmp")
    )

    def places(self) -> dict[str, str]:
        """None is a path of this machine."""
        return {
            "store": "s3://hops/store",
            "storage_conn_id": "aws_default",
            "tracking_uri": f"http://127.0.0.1:{self._ports['mlflow']}",
            "serving_base_path": "s3://hops/models",
            "serving_capture_path": "s3://hops/capture",
        }

    def storage_options(self) -> dict[str, str]:
        """The options of fsspec for the S3 server."""
        return {"key": "hops", "secret": self.key, "endpoint_url": f"http://127.0.0.1:{self._ports['s3']}"}

    def artifact_store(self) -> ArtifactStore:
        """Opens the artifact store on S3."""
        return ArtifactStore("s3://hops/store", storage_options=self.storage_options())

    def server_environment(self) -> dict[str, str]:
        """The model server has no connection, and gets the password so."""
        return {**super().server_environment(), "FSSPEC_S3": json.dumps(self.storage_options())}

    def part_environment(self, part: str) -> dict[str, str]:
        """Airflow's settings for one of its parts, as environment variables."""
        folder, ports = self.home / part, self._ports
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        database = f"postgresql+psycopg2://airflow@127.0.0.1:{ports['postgres']}/postgres"
        backend = {
            "BACKEND": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
            "BACKEND_KWARGS": json.dumps({"connections_file_path": str(self.home / "connections.json")}),
        }
        settings = self.airflow_environment(self._port)
        return {
            **{name: value for name, value in settings.items() if not name.startswith(("AIRFLOW_CONN_", "AWS_"))},
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__API__SECRET_KEY": self.key,
            "AIRFLOW__API_AUTH__JWT_SECRET": self.key,
            "AIRFLOW__CELERY__BROKER_URL": f"redis://127.0.0.1:{ports['redis-server']}/0",
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{database}",
            "AIRFLOW__CELERY__WORKER_CONCURRENCY": "2",
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CORE__FERNET_KEY": self.key,
            "AIRFLOW__CORE__HOSTNAME_CALLABLE": "airflow_hops.core.steps.jobs.this_host",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
            "AIRFLOW__LOGGING__REMOTE_LOGGING": "True",
            "AIRFLOW__LOGGING__REMOTE_BASE_LOG_FOLDER": "s3://hops/logs",
            "AIRFLOW__LOGGING__REMOTE_LOG_CONN_ID": "aws_default",
            # A task whose worker has died is tried again on another one after this time, by default 300 seconds.
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
            **{f"AIRFLOW__SECRETS__{name}": value for name, value in backend.items()},
            **{f"AIRFLOW__WORKERS__SECRETS_{name}": value for name, value in backend.items()},
            "HOPS_HOST": part,
            "TMPDIR": str(folder / "tmp"),
        }

    def launch_airflow(self) -> tuple[Service, AirflowApi]:
        """Starts what Airflow needs, then its parts, and does not wait for these."""
        self.home.chmod(0o700)
        extra = {"endpoint_url": self.storage_options()["endpoint_url"], "region_name": "us-east-1"}
        aws: dict[str, Any] = {"conn_type": "aws", "login": "hops", "password": self.key, "extra": extra}
        (self.home / "connections.json").write_text(json.dumps({**self.connections(), "aws_default": aws}))
        self._launch_used()
        self.artifact_store().files.remote().fs.mkdir("hops")
        self._run([sys.executable, "-m", "airflow", "db", "migrate"], self.part_environment("api-server"))
        for part in ("api-server", *PARTS):
            self.launch_part(part)
        return self.services[-len(PARTS) - 1], AirflowApi(f"http://127.0.0.1:{self._port}")

    def launch_part(self, part: str) -> None:
        """Starts a part of Airflow, and does not wait for it."""
        command = ["celery", "worker", "--celery-hostname", part, "--skip-serve-logs"]
        command = command if part in WORKERS else [part.removesuffix("-1").removesuffix("-2")]
        self._launch(part, [sys.executable, "-m", "airflow", *command], self.part_environment(part))

    def stop(self) -> None:
        """Stops Airflow and the model server, then what they use, and removes their temporary folders."""
        for service in self.services:
            if service.name in PARTS and service.process.stdin is not None:
                service.process.stdin.close()  # they end at the same time
        self.services.reverse()
        super().stop()
        self._database.cleanup()
        for part in PARTS:
            shutil.rmtree(self.home / part / "tmp", ignore_errors=True)

    def _launch_used(self) -> None:
        """Starts PostgreSQL, which refuses to run as root, Redis, S3 and MLflow; returns when they answer."""
        ports, python = self._ports, str(self.runtime / "bin" / "python")
        data, user = self._database.name, list[str]()
        if os.geteuid() == 0:
            user = ["runuser", "-u", "postgres", "--"]
            shutil.chown(data, "postgres")
        self._run([*user, find_program("initdb"), "-D", data, "-U", "airflow", "--auth=trust"], os.environ)
        postgres = ["-D", data, "-h", "127.0.0.1", "-p", str(ports["postgres"]), "-k", ""]
        redis = ["--bind", "127.0.0.1", "--port", str(ports["redis-server"]), "--save", ""]
        s3 = [str(Path(sys.executable).with_name("moto_server")), "--host", "127.0.0.1", "--port", str(ports["s3"])]
        mlflow = ["server", f"--backend-store-uri=sqlite:///{self.home}/mlflow.db", f"--port={ports['mlflow']}"]
        mlflow += [f"--artifacts-destination={self.home}/mlflow", "--workers=1"]
        environment = {**step_variables(self.runtime), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        self._launch("postgres", [*user, find_program("postgres"), *postgres], os.environ)
        self._launch("redis-server", [find_program("redis-server"), *redis], os.environ)
        self._launch("s3", s3, os.environ)
        self._launch("mlflow", [python, "-m", "mlflow", *mlflow], environment)
        for service in [*self.services]:
            self._wait(service, lambda port=ports[service.name]: _answers(port))  # type: ignore[misc]

    def _start_warm_process(self) -> None:
        """Leaves it to each worker to start its own."""

    def _run(self, command: list[str], environment: Mapping[str, str]) -> None:
        done = subprocess.run(command, env=dict(environment), cwd="/", capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServiceFailed(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
