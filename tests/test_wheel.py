"""From the wheel alone, by the commands of the quickstart: a pipeline deploys a model, which serves and captures."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest
from conftest import REPOSITORY
from uv import find_uv_bin

from airflow_hops.environments import uv_environment
from demo.services import free_port

_WAIT_S = 240.0
_DAG = """
from airflow.sdk import DAG, task

from airflow_hops.operators.deploy import DeployModelOperator
from airflow_hops.operators.ingest import IngestOperator

with DAG("from_wheel", schedule="@once"):
    rows = IngestOperator(task_id="ingest", sources={"rows": "ROWS"})

    @task.hops(output_kind="model")
    def fit(context, rows: dict) -> dict:
        import pyarrow.parquet as pq
        import tensorflow as tf

        mean = pq.read_table(context.local("rows") / "rows")["x"].to_numpy().mean()

        class Scorer(tf.Module):
            @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
            def score(self, x):
                return {"score": x - mean}

        scorer = Scorer()
        with context.output() as writer:
            tf.saved_model.save(scorer, str(writer.path / "saved_model"), {"serving_default": scorer.score})
            return writer.commit()

    DeployModelOperator(task_id="deploy", model=fit(rows.output), model_name="scorer")
"""


def commands_of_the_quickstart() -> list[str]:
    """What the quickstart says to run in one's own Airflow."""
    text = (REPOSITORY / "docs" / "start" / "quickstart.md").read_text()
    (text,) = re.findall(r"^## Install it in your Airflow$(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    return re.findall(r"^\$ (.*)$", text, re.MULTILINE)


@pytest.fixture
def programs(tmp_path: Path, wheel_file: Path) -> Path:
    """Folder of the programs of an environment into which the wheel was installed."""
    environment = tmp_path / "environment"
    uv, kept = find_uv_bin(), uv_environment(os.environ)
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(environment)], env=kept, check=True)
    command = [uv, "pip", "install", "--quiet", "--python", str(environment / "bin" / "python"), str(wheel_file)]
    command += ["--constraints", str(REPOSITORY / "requirements" / "airflow.txt")]
    subprocess.run(command, env=kept, cwd=tmp_path, check=True)
    return environment / "bin"


class Terminals:
    """Where the page's commands run; ports and folders are the test's own.

    Attributes:
        airflow: Address of Airflow's API server.
        model: Address of the pipeline's model.
    """

    def __init__(self, folder: Path, programs: Path, runtime: Path) -> None:
        rest_port, airflow_port = free_port(), free_port()
        self._folder = folder
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))},
            "PATH": f"{programs}:{os.environ['PATH']}",
            "AIRFLOW_HOME": str(folder / "airflow"),
            "AIRFLOW__HOPS__RUNTIME": str(runtime),
            "AIRFLOW__HOPS__WARM_START": "False",  # nothing is to be left behind
            "AIRFLOW_CONN_HOPS_DEFAULT": f"hops://127.0.0.1:{free_port()}/?serving_rest_port={rest_port}",
            "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "1",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{airflow_port}/execution/",
            "AIRFLOW__API__PORT": str(airflow_port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        }
        self._started: list[subprocess.Popen[bytes]] = []
        self.airflow = f"http://127.0.0.1:{airflow_port}"
        self.model = f"http://127.0.0.1:{rest_port}/v1/models/scorer"

    def start(self, command: str) -> subprocess.Popen[bytes]:
        """Starts a command."""
        with (self._folder / f"{command}.log").open("wb") as log:
            process = subprocess.Popen(
                command.split(),
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def last_lines(self) -> str:
        """The end of what the commands and the tasks have said."""
        logs = [*self._folder.glob("*.log"), *self._folder.glob("airflow/logs/dag_id=*/**/*.log")]
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in logs)

    def close(self) -> None:
        """Ends what still runs."""
        for process in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def terminals(tmp_path: Path, programs: Path, runtime: Path) -> Iterator[Terminals]:
    opened = Terminals(tmp_path, programs, runtime)
    yield opened
    opened.close()


@pytest.mark.runtime
def test_a_pipeline_runs_from_the_wheel_and_what_its_model_is_asked_is_captured(
    tmp_path: Path, terminals: Terminals
) -> None:
    assert commands_of_the_quickstart() == [
        "pip install airflow-hops",
        "airflow hops runtime create",
        "airflow hops doctor",
        "airflow standalone",
        "airflow hops serve",
    ]
    (tmp_path / "rows.csv").write_text("x\n1.5\n2.5\n")
    (tmp_path / "dags").mkdir()

    airflow, server = terminals.start("airflow standalone"), terminals.start("airflow hops serve")
    deadline = time.monotonic() + _WAIT_S

    def answer_of(address: str, asked: object = None) -> httpx.Response:
        """What is answered when all is there that this takes."""
        while True:
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.request("GET" if asked is None else "POST", address, json=asked, timeout=10)
                if answer.status_code not in (404, 503):
                    return answer
            assert airflow.poll() is None and server.poll() is None, terminals.last_lines()
            assert time.monotonic() < deadline, terminals.last_lines()
            time.sleep(0.5)

    assert answer_of(f"{terminals.airflow}/api/v2/version").status_code == 200  # without it, a task fails
    (tmp_path / "dags" / "from_wheel.py").write_text(_DAG.replace("ROWS", str(tmp_path / "rows.csv")))
    answered = answer_of(f"{terminals.model}:predict", {"instances": [{"x": 3.0}, {"x": 5.0}]})
    assert answered.json() == {"predictions": [1.0, 3.0]}
    server.terminate()
    assert server.wait(30) == 0
    captured = pq.read_table(tmp_path / "airflow" / "hops-serving" / "captured" / "scorer")
    assert captured["input.x"].to_pylist() == [3.0, 5.0]
    assert captured["output.score"].to_pylist() == [1.0, 3.0]
