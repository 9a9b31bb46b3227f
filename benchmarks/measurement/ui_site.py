"""An Airflow with the pages and nothing else running: its API server, over artifacts of the sizes to be measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import httpx

from demo.airflow_api import AirflowApi
from demo.services import REPOSITORY, Stack, free_port

DAG = "ui_sizes"
WIDE = "ui_wide"
MANY = "ui_many"
DAGS = REPOSITORY / "benchmarks" / "ui_dags"
AIRFLOW = (sys.executable, "-m", "airflow")


@dataclass
class PagesSite(Stack):
    """The API server alone: once written, nothing here changes.

    Args:
        settings: Further environment variables of Airflow.
    """

    settings: dict[str, str] = field(default_factory=dict)

    def start(self, *dag_ids: str) -> AirflowApi:
        """Writes what is not there yet of some DAGs, and starts the API server.

        Raises:
            ServiceFailed: it did not start.
            CalledProcessError: the artifacts cannot be written; ``logs/airflow.log`` says why.
        """
        for dag_id in dag_ids:
            written = self.home / f"{dag_id}.written"
            if not written.exists():
                self.say(f"Writing the artifacts of {dag_id}, which takes minutes the first time")
                self._airflow(["db", "migrate"], ["dags", "reserialize"], ["dags", "test", dag_id])
                if dag_id == MANY:
                    self._write_records("--models=200")
                written.touch()
        return self._serve(lambda api: api.runs(DAG))

    def start_without_runs(self, pipelines: int) -> AirflowApi:
        """Starts the API server over pipelines that have not run, each with a model that serves; see :meth:`start`."""
        self.settings = {"UI_MODELS": str(pipelines)}
        self._airflow(["db", "migrate"], ["dags", "reserialize"])
        self._write_records("--runs=0", f"--models={pipelines}")
        path = f"/hops/api/pipelines?limit={pipelines}"
        return self._serve(
            lambda api: len(httpx.get(api.url + path, trust_env=False, timeout=60).json()["entries"]) >= pipelines
        )

    def _airflow(self, *commands: list[str]) -> None:
        for folder in (self.home / "logs", self.store):
            folder.mkdir(parents=True, exist_ok=True)
        environment = {**self.airflow_environment(free_port()), **self.settings}
        with (self.home / "logs" / "airflow.log").open("ab") as log:
            for command in commands:
                subprocess.run([*AIRFLOW, *command], env=environment, stdout=log, stderr=log, check=True)

    def _write_records(self, *options: str) -> None:
        command = [str(self.runtime / "bin" / "python"), "-m", "benchmarks.measurement.many_runs"]
        subprocess.run([*command, self.store.as_uri(), MANY, *options], cwd=REPOSITORY, check=True)

    def _serve(self, shows: Callable[[AirflowApi], object]) -> AirflowApi:
        """Starts the API server, and returns when it shows what was written."""
        port = free_port()
        environment = {**self.airflow_environment(port), **self.settings}
        service = self._launch("API server", [*AIRFLOW, "api-server", "--port", str(port)], environment)
        api = AirflowApi(f"http://127.0.0.1:{port}")

        def answers() -> bool:
            try:
                return bool(shows(api))
            except (httpx.HTTPError, ValueError, KeyError):  # the server starts
                return False

        self._wait(service, answers)
        return api
