"""The tutorial, by its own text and from the wheel alone: from an empty folder to a monitor that notices bad data."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from snippets import BLOCK, COMMAND, REPOSITORY
from uv import find_uv_bin
from waiting import wait_for

from airflow_hops.runner.environments.runtime import uv_variables
from demo.airflow_api import FINISHED, AirflowApi
from demo.services import free_port

TUTORIAL = (REPOSITORY / "docs" / "start" / "tutorial.md").read_text()
INSTALLS = ("pip install ", "airflow hops runtime create")
SERVICES = ("airflow standalone", "airflow hops serve")


class Reader:
    """Somebody who does what the tutorial says, at ports that are free.

    Attributes:
        folder: An empty folder.
        text: The tutorial, with these ports.
        api: Airflow's REST API.
        said: What the commands have printed.
    """

    def __init__(self, folder: Path, programs: Path, runtime: Path) -> None:
        airflow, grpc, rest = free_port(), free_port(), free_port()
        self.folder, self.said, self.api = folder, "", AirflowApi(f"http://localhost:{airflow}")
        self.text = TUTORIAL
        for in_text, port in {"8080": airflow, "8090": airflow, "9500": grpc, "9501": rest, "8501": rest}.items():
            self.text = re.sub(rf"\b{in_text}\b", str(port), self.text)
        retained = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
        self.environment = {
            **retained,
            "PATH": f"{programs}:{retained['PATH']}",
            "AIRFLOW__HOPS__RUNTIME": str(runtime),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
            "NO_PROXY": "127.0.0.1,localhost",
            **{name: value.strip("'") for name, value in re.findall(r"`(AIRFLOW_[A-Z_]+)=([^`\s]+)`", self.text)},
        }
        self.services: list[subprocess.Popen[bytes]] = []

    def do(self, language: str, text: str) -> None:
        """Follows one block of the text."""
        if language == "python":
            (name,) = re.findall(r"Save it as `(\S+)`", self.text)
            (self.folder / name).write_text(text)
            return
        for command in COMMAND.findall(text):
            if command.startswith("export "):
                assignments = re.findall(r"(\w+)=(\S+)", command)
                self.environment |= {name: value.replace("$PWD", str(self.folder)) for name, value in assignments}
            elif command in SERVICES:
                log = (self.folder / f"{command.replace(' ', '-')}.log").open("wb")
                self.services.append(self.start(command, stdout=log, stderr=subprocess.STDOUT))
                wait_for(self.airflow_is_ready if command == SERVICES[0] else self.server_answers, command, 300)
            elif not command.startswith(INSTALLS):
                process = self.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                output, errors = process.communicate()
                assert process.returncode == 0, f"{command}: {errors.decode()}"
                self.said += output.decode()
                if triggered := re.search(r"airflow dags trigger (\w+)", command):
                    self.wait_for_run(triggered[1])
        for line in text.splitlines():
            assert line.startswith(("$ ", "    ")) or line in self.said, (
                f"the tutorial shows {line!r}; said was {self.said}"
            )

    def start(self, command: str, **streams: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["bash", "-c", command.replace("curl ", "curl -sS ")],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **streams,
        )

    def airflow_is_ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            for dag_id in ("penguins_training", "penguins_monitoring"):
                self.api.wait_for_dag(dag_id)
            return str((self.api.health().get("scheduler") or {}).get("status")) == "healthy"
        return False

    def server_answers(self) -> bool:
        return "serving gRPC" in (self.folder / "airflow-hops-serve.log").read_text()

    def wait_for_run(self, dag_id: str) -> None:
        def is_over() -> bool:
            return self.triggered(dag_id)["state"] in FINISHED

        wait_for(is_over, lambda: str(self.states(dag_id)), 300, poll_s=0.5)

    def triggered(self, dag_id: str) -> dict[str, Any]:
        """The run that a command has triggered, rather than the clock."""
        (run,) = (run for run in self.api.runs(dag_id) if run["run_type"] == "manual")
        return run

    def states(self, dag_id: str) -> dict[str, str]:
        instances = self.api.task_instances(dag_id, self.triggered(dag_id)["dag_run_id"])
        return {instance["task_id"]: instance["state"] for instance in instances}


@pytest.fixture
def programs(tmp_path: Path, wheel_file: Path) -> Path:
    """Folder of the programs of an environment with the wheel and what else the tutorial installs."""
    environment = tmp_path / "environment"
    uv, retained = find_uv_bin(), uv_variables(os.environ)
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(environment)], env=retained, check=True)
    (names,) = re.findall(r"^\$ pip install (.*)$", TUTORIAL, re.MULTILINE)
    packages = [str(wheel_file) if name == "airflow-hops" else name for name in names.split()]
    command = [uv, "pip", "install", "--quiet", "--python", str(environment / "bin" / "python"), *packages]
    command += ["--constraints", str(REPOSITORY / "requirements" / "airflow.txt")]
    subprocess.run(command, env=retained, cwd=tmp_path, check=True)
    link_bytecode(environment)
    return environment / "bin"


def link_bytecode(environment: Path) -> None:
    """Gives an environment what Python has compiled for this one: uv links both to the same files of its cache.

    Else each of Airflow's processes, which start together, would compile it for itself.
    """
    ours = Path(sysconfig.get_path("purelib"))
    (theirs,) = environment.glob("lib/python3*/site-packages")
    for compiled in ours.rglob("__pycache__/*.pyc"):
        linked = theirs / compiled.relative_to(ours)
        if linked.parent.parent.is_dir():
            linked.parent.mkdir(exist_ok=True)
            with contextlib.suppress(OSError):  # on another file system: it is compiled
                linked.hardlink_to(compiled)


@pytest.fixture
def reader(tmp_path: Path, programs: Path, runtime: Path) -> Iterator[Reader]:
    folder = tmp_path / "empty"
    folder.mkdir()
    reader = Reader(folder, programs, runtime)
    yield reader
    for service in reader.services:
        os.killpg(service.pid, signal.SIGTERM)
    end = time.monotonic() + 60
    for service in reader.services:
        with contextlib.suppress(subprocess.TimeoutExpired):
            service.wait(max(end - time.monotonic(), 0.1))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(service.pid, signal.SIGKILL)
        service.wait()


# extensions/projects/test_init.py has the project that it makes; the demo runs such a loop in a real Airflow.
@pytest.mark.runtime
@pytest.mark.airflow
@pytest.mark.server
@pytest.mark.spark
@pytest.mark.scheduled(part="campaigns")
def test_tutorial_ends_with_a_served_and_monitored_model(reader: Reader) -> None:
    for _, _, language, block in BLOCK.findall(reader.text):
        reader.do(language, block)
    assert set(reader.states("penguins_training").values()) == {"success"}
    assert '"class":"Gentoo"' in reader.said and "333 penguins asked about" in reader.said
    run_id = reader.triggered("penguins_monitoring")["dag_run_id"]
    skew = reader.api.xcom("penguins_monitoring", run_id, "skew")["properties"]
    assert (skew["verdict"], skew["causes"]) == ("pipeline_fault", {"bill_length_mm": "unit_change"})
    assert reader.states("penguins_monitoring")["request_retraining"] == "skipped"
    captured = pq.read_table(reader.folder / "airflow" / "hops-serving" / "captured" / "penguins")
    assert captured.num_rows == 1 + 333


@pytest.mark.parametrize("name", ["tutorial.md", "own_project.md", "nightly.md"])
def test_code_and_commands_of_the_tutorials_are_valid(name: str) -> None:
    from airflow.cli.cli_parser import get_parser

    for _, _, language, block in BLOCK.findall((REPOSITORY / "docs" / "start" / name).read_text()):
        if language == "python":
            compile(block, name, "exec")
        for command in COMMAND.findall(block):
            if command.startswith("airflow "):
                get_parser().parse_args(shlex.split(command)[1:])


def test_quickstart_matches_the_tutorial() -> None:
    text = (REPOSITORY / "docs" / "start" / "quickstart.md").read_text()
    (text,) = re.findall(r"^## Install it in your Airflow$(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    commands = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    assert commands == ["pip install airflow-hops", INSTALLS[1], "airflow hops doctor", *SERVICES]
