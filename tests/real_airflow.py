"""An Airflow alone, with the store that tests share: scheduler, task runner, task state store."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from otlp_receiver import OtlpReceiver, otlp_receiver
from step_runner import StepRunner

from airflow_hops.runner.launchers.local import LocalLauncher
from airflow_hops.runner.runtime import warm_socket
from demo.airflow_api import AirflowApi
from demo.services import Stack, free_port

TESTS = Path(__file__).parent
DAGS = ("partitions.py", "train_durable.py", "train_durable_model.py")


class RealAirflow(Stack):
    """Airflow in a process of its own, whose parts can be killed.

    Attributes:
        runner: Runs steps in its store.
        tracking_uri: MLflow's database.
        api: Its REST API.
        receiver: Gets its spans.
    """

    runner: StepRunner
    tracking_uri: str
    api: AirflowApi
    receiver: OtlpReceiver
    port = 0

    def airflow_environment(self, port: int) -> dict[str, str]:
        self.port = port
        store = self.runner.store.root
        extra = {"store": store, "runtime": str(self.runtime), "tracking_uri": self.tracking_uri}
        return {
            **super().airflow_environment(port),
            "AIRFLOW_CONN_HOPS_DEFAULT": json.dumps({"conn_type": "hops", "extra": extra}),
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            "AIRFLOW__HOPS__ORPHAN_TIMEOUT": "180",
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "4",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
            "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "10",
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.5",
            "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
            "AIRFLOW__TRACES__OTEL_ON": "True",
            "OTEL_TRACES_EXPORTER": "otlp_proto_http",
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": self.receiver.url,
            "PYTHONPATH": str(self.home / "package"),
            "TMPDIR": str(self.home / "tmp"),
        }

    def kill_and_start(self, component: str) -> None:
        """Kills a component of Airflow with all its processes, and starts another."""
        self.kill(component)
        self.start(component)

    def kill(self, component: str) -> None:
        """Kills a component of Airflow with all its processes."""
        processes = [
            process
            for service in self.services
            if service.process.poll() is None
            for process in psutil.Process(service.process.pid).children(recursive=True)
            if component in command_of(process)
        ]
        assert processes, f"no process of the {component}"
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                children = process.children(recursive=True)
                for each in (process, *children):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()

    def start(self, component: str) -> None:
        """Starts a component of Airflow."""
        environment = {
            **self.airflow_environment(self.port),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": f"{free_port()}",
        }
        self._launch(component, [sys.executable, "-m", "airflow", component], environment)

    def use_warm_process(self, path: Path) -> None:
        """Has steps forked from a process that listens elsewhere."""
        folder = self.home / "tmp"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(folder))
            link = warm_socket(self.runtime)
        link.parent.mkdir(parents=True, mode=0o700)
        link.symlink_to(path)


def command_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


@contextlib.contextmanager
def start_airflow(
    home: Path,
    runtime: Path,
    launcher: LocalLauncher,
    runner: StepRunner,
    tracking_uri: str,
) -> Iterator[RealAirflow]:
    """Starts it in an empty folder; its steps are forked from the launcher's warm process."""
    for folder in ("logs", "dags", "tmp"):
        (home / folder).mkdir()
    # A copy: an edit of the sources meanwhile would make another training of a retry's.
    for folder in ("airflow_hops", "requirements"):
        shutil.copytree(TESTS.parent / folder, home / "package" / folder)
    for name in DAGS:
        shutil.copy(TESTS / "dags" / name, home / "dags")
    airflow = RealAirflow(home, runtime, home / "dags")
    airflow.runner, airflow.tracking_uri = runner, tracking_uri
    assert launcher.warm is not None
    airflow.use_warm_process(launcher.warm.path)
    with otlp_receiver() as airflow.receiver, airflow:
        service, airflow.api = airflow.launch_airflow()
        airflow.wait_for_airflow(service, airflow.api)
        yield airflow
