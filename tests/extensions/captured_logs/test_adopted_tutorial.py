"""The tutorial on adoption, by its own text: MLServer, its monitor, a successor, and bad candidates."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from other_projects import free_port, is_ready, python_in
from snippets import BLOCK, COMMAND, REPOSITORY
from waiting import wait_for

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.evaluation import EvaluationReport
from airflow_hops.core.models.model_record import ModelRecord, read_record
from demo.airflow_api import FINISHED, AirflowApi
from demo.services import Stack

pytestmark = [pytest.mark.runtime, pytest.mark.scheduled(part="open_inference")]

PAGE = REPOSITORY / "docs" / "start" / "adopted.md"
SERVICES = ("pip install", "mlserver start", "airflow hops serve")


class Reader:
    """Somebody who does what the tutorial says, at ports that are free.

    Attributes:
        seconds: How long each command took.
    """

    def __init__(self, stack: Stack, api: AirflowApi, mlserver: Path) -> None:
        self.stack, self.api, self.mlserver = stack, api, mlserver
        self.folder = stack.home
        self.environment = stack.airflow_environment(int(api.url.rpartition(":")[2]))
        self.seconds: dict[str, float] = {}
        text = PAGE.read_text().replace("/srv/churn/", f"{self.folder}/")
        ports = {"9080": free_port(), "9081": free_port(), "9082": free_port(), "8501": stack.rest_port}
        for in_text, port in ports.items():
            text = re.sub(rf"\b{in_text}\b", str(port), text)
        self.url = f"http://127.0.0.1:{ports['9080']}"
        self.sections = {each.partition("\n")[0]: each for each in text.split("\n## ")}

    def section(self, number: int) -> list[tuple[str, str]]:
        """Language and text of each block of a section."""
        (text,) = (text for title, text in self.sections.items() if title.startswith(f"{number}."))
        return [(match[3], match[4]) for match in BLOCK.finditer(text)]

    def write_files(self) -> None:
        """Writes the files of all sections but the DAG and its module."""
        for number in range(1, 5):
            for language, text in self.section(number):
                if language == "python":
                    path = self.folder / text.partition("\n")[0].removeprefix("# ")
                    path.write_text(text)

    def commands(self, number: int) -> list[str]:
        blocks = [text for language, text in self.section(number) if language == "console"]
        return COMMAND.findall("\n".join(blocks))

    def run(self, command: str) -> str:
        """Runs a command in the folder; returns what it printed."""
        if command.startswith(SERVICES):
            return ""
        started = time.monotonic()
        words = command.replace("python", str(self.mlserver)) if command == "python endpoint.py" else command
        ran = subprocess.run(
            ["bash", "-c", words],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.seconds[command] = time.monotonic() - started
        assert ran.returncode == 0, f"{command}: {ran.stderr}"
        return ran.stdout

    def run_all(self, commands: list[str]) -> str:
        return "".join(map(self.run, commands))

    def runs(self, dag_id: str, count: int, run_type: str = "") -> list[dict[str, Any]]:
        """The runs of a DAG, of a type if it is given, in their order, once so many have finished."""

        def matching() -> list[dict[str, Any]]:
            return [run for run in self.api.runs(dag_id) if run_type in run["run_type"]]

        def finished() -> bool:
            return sum(run["state"] in FINISHED for run in matching()) >= count

        wait_for(finished, lambda: str([self.states(dag_id, run) for run in matching()]), 240, poll_s=0.5)
        return sorted(matching(), key=lambda run: run["run_after"])

    def states(self, dag_id: str, run: dict[str, Any]) -> dict[str, str]:
        instances = self.api.task_instances(dag_id, run["dag_run_id"])
        return {instance["task_id"]: instance["state"] for instance in instances}

    def record(self) -> ModelRecord:
        return read_record(self.stack.artifact_store(), "churn")

    def report(self, dag_id: str, run: dict[str, Any], task: str, file: str) -> Any:
        """A file of the artifact of a task."""
        store = self.stack.artifact_store()
        artifact = Artifact.from_dict(self.api.xcom(dag_id, run["dag_run_id"], task))
        return json.loads(store.read_text(f"{artifact.uri}/{file}"))

    def shares(self) -> dict[int, float]:
        """The shares of the requests by version that are in effect."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.stack.rest_port}/v1/stats") as answer:
            versions = json.load(answer)["models"]["churn"]["versions"]
        return {int(name): each["traffic_percent"] for name, each in versions.items() if each["traffic_percent"]}

    def roll_back(self) -> None:
        """Returns to the former champion, as a person does on the page Models."""
        url, trust = self.api.url, {"trust_env": False, "timeout": 60}
        token = httpx.get(f"{url}/auth/token", **trust).json()["access_token"]
        answer = httpx.post(
            f"{url}/hops/api/dags/churn_training/models/churn/roll_back",
            json={"to_version": "previous", "reason": "it was better", "request_id": uuid.uuid4().hex},
            headers={"Authorization": f"Bearer {token}"},
            **trust,
        )
        assert answer.status_code == 200, answer.text


@pytest.fixture
def reader(runtime: Path, tmp_path: Path) -> Iterator[Reader]:
    mlserver = python_in(tmp_path / "other-projects", "mlserver")
    (tmp_path / "home" / "dags").mkdir(parents=True)
    with Stack(tmp_path / "home", runtime, tmp_path / "home" / "dags") as stack:
        yield Reader(stack, stack.start(), mlserver)


@pytest.fixture
def endpoint(reader: Reader) -> Iterator[subprocess.Popen[bytes]]:
    """MLServer with the model of the tutorial."""
    reader.write_files()
    training = list((reader.folder / "dags").glob("*.py"))
    for path in training:  # which the reader writes later
        path.rename(path.with_suffix(".later"))
    reader.run("python endpoint.py")
    program, log = reader.mlserver.with_name("mlserver"), reader.folder / "mlserver.log"
    with log.open("wb") as stream:
        process = subprocess.Popen([program, "start", "."], cwd=reader.folder, stdout=stream, stderr=stream)
    try:
        wait_for(lambda: is_ready(f"{reader.url}/v2/models/churn/ready"), log.read_text, 120)
        yield process
    finally:
        process.kill()
        process.wait()


class Asking:
    """The application, which asks until it is stopped."""

    def __init__(self, reader: Reader, command: str) -> None:
        self._reader, self._command, self._done = reader, command, threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.errors: list[str] = []

    def _ask(self) -> None:
        while not self._done.is_set():
            try:
                self._reader.run(self._command)
            except AssertionError as error:
                self.errors.append(str(error))

    def __enter__(self) -> Asking:
        self._thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._done.set()
        self._thread.join()


def test_loop_closes_around_mlserver(reader: Reader, endpoint: Any) -> None:
    began = time.monotonic()
    reader.run_all(reader.commands(2))
    assert "Reference: 4800 rows of version 'v1'" in reader.run_all(reader.commands(3))
    first = reader.runs("churn_monitor", 1)[0]
    seconds = time.monotonic() - began
    print(f"the first verdict after {seconds:.0f} s: {reader.seconds}")
    assert seconds < 600
    states = reader.states("churn_monitor", first)
    assert states == {"requests": "success", "skew": "success", "request_retraining": "success"}
    report = reader.report("churn_monitor", first, "skew", "report.json")
    scores = {name: feature["score"] for name, feature in report["features"].items()}
    assert report["verdict"] == "drift" and max(scores, key=scores.__getitem__) == "fare" and scores["age"] < 0.05
    assert reader.record().champion.serving_path == reader.url

    for path in (reader.folder / "dags").glob("*.later"):
        path.rename(path.with_suffix(".py"))
    commands = reader.commands(4)
    asks = commands.index(next(each for each in commands if each.startswith("python application.py")))
    reader.run_all(commands[:asks])
    with Asking(reader, commands[asks]):
        (trained,) = reader.runs("churn_training", 1)
    assert set(reader.states("churn_training", trained).values()) == {"success"}
    evaluation = EvaluationReport.from_dict(reader.report("churn_training", trained, "evaluate", "evaluation.json"))
    figures = evaluation.splits["eval"]
    assert evaluation.blessed and evaluation.champion.version == 1
    assert figures.candidate["auc"] > figures.champion["auc"] > 0.6
    record = reader.record()
    assert record.champion.version == 2 and record.challenger is None and record.traffic == {2: 100}
    assert reader.shares() == {2: 100}

    reader.run_all(commands[asks:])
    *_, monitored = reader.runs("churn_monitoring", 1, "manual")
    states = reader.states("churn_monitoring", monitored)
    assert states == {"skew": "success", "request_retraining": "skipped"}
    report = reader.report("churn_monitoring", monitored, "skew", "report.json")
    assert report["verdict"] == "stable" and report["versions"].keys() == {"1", "2"}

    noise, trigger, inverted, again, asks = reader.commands(5)
    reader.run_all([noise, trigger])
    *_, refused = reader.runs("churn_training", 2)
    states = reader.states("churn_training", refused)
    assert states["evaluate"] == "success" and states["deploy"] == "skipped"
    assert reader.record() == record
    reader.run_all([inverted, again])
    with Asking(reader, asks):
        *_, judged = reader.runs("churn_training", 3)
    states = reader.states("churn_training", judged)
    assert set(states.values()) == {"success"}
    assert reader.record().history[-1].event == "rolled_back" and "prediction" in reader.record().history[-1].why
    assert reader.record().champion.version == 2 and reader.shares() == {2: 100}
    reader.roll_back()
    assert reader.record().champion.version == 1 and reader.shares() == {1: 100}
    reader.run(asks)
